"""The environment variables of `make test-cpus` do what it needs: torch and oneDNN use the older instructions."""

from __future__ import annotations

import platform
import re
import shlex
from pathlib import Path

import pytest

from tests.processes import python

MAKEFILE = (Path(__file__).parents[1] / "Makefile").read_text()
X86 = platform.machine() in ("x86_64", "AMD64")  # other processors have no such instruction sets to choose from
RUNS = re.findall(r"^\t(ATEN\S+ ONEDNN\S+)", MAKEFILE, re.M) if X86 else []
CONVOLUTION = """
import torch
from torch.backends import cpu, mkldnn
layer, images = torch.nn.Conv2d(16, 16, 3), torch.zeros(32, 16, 32, 32)
with mkldnn.verbose(mkldnn.VERBOSE_ON), torch.no_grad():
    layer(images)
print(cpu.get_cpu_capability())
"""


@pytest.mark.parametrize("variables", RUNS)
def test_older_instructions_are_used(variables: str) -> None:
    chosen = dict(word.split("=") for word in shlex.split(variables))
    said = python("-c", CONVOLUTION, **chosen)
    (found,) = re.findall(r"cpu,isa:Intel (.*)", said)
    assert found.replace(".", "") == chosen["ONEDNN_MAX_CPU_ISA"]
    assert said.splitlines()[-1] == chosen["ATEN_CPU_CAPABILITY"].upper()


def test_two_older_instruction_sets_are_tried() -> None:
    assert len(RUNS) == (2 if X86 else 0)
