"""The machine and the software that times were measured with: times hold for these only."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

from secateur.measuring.engines import Engine

CPU_FILE = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class MeasuredWith:
    """Where and how layers were timed."""

    engine: str
    engine_version: str
    torch_version: str
    machine: str  # model of the processor or of the GPU
    instructions: str  # its widest vector instructions
    threads: int
    batch: int

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        where = f"{self.machine} ({self.instructions})"
        return f"{self.engine} {self.engine_version}, batch {self.batch}, {threads}, {where}"


def measured_with(engine: Engine, device: torch.device, batch: int, threads: int) -> MeasuredWith:
    """The setting of a measurement on this machine."""
    return MeasuredWith(
        engine.name, version(engine.package), torch.__version__, *machine_of(device), threads=threads, batch=batch
    )


def machine_of(device: torch.device) -> tuple[str, str]:
    """Model and instruction set of the processor, or of the GPU if the device is one."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return str(properties.name), f"sm_{properties.major}{properties.minor}"
    return processor(), torch.backends.cpu.get_cpu_capability()


@cache
def processor() -> str:
    """The model of the processor. Virtual machines hide its name, so family, model and stepping are added."""
    try:
        text = CPU_FILE.read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    name, *numbers = (_entry(key, text) for key in ("model name", "cpu family", "model", "stepping"))
    return f"{name or platform.machine()} {'-'.join(filter(None, numbers))}".strip()


def _entry(key: str, text: str) -> str:
    found = re.search(rf"^{key}\s*:\s*(.+?)\s*$", text, re.MULTILINE)
    return found.group(1) if found else ""
