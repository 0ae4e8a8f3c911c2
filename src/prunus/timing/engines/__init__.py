"""Engines that run a network, one file each. Nothing here imports torch: the command line lists the engines quickly.

An engine runs a PyTorch network (`make`), or it reads ONNX (`open_onnx`): the network is then exported for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from prunus.errors import ModelError, RunError
from prunus.util.registry import Entry, Registry

if TYPE_CHECKING:
    import torch
    from torch import nn

SelectionForm = Literal["gather", "convolution"]
NUM_CALIBRATION = 200  # images that the ranges of 8-bit integers are measured on


@dataclass(frozen=True)
class PreparedModel:
    """A network that is ready to run in an engine. Call it with a batch of the example's structure, on `device`."""

    run: Callable[[Any], Any]
    device: torch.device
    specialize: Callable[[Any], object] = lambda batch: None  # to be called once for each batch size

    def __call__(self, batch: Any) -> Any:
        return self.run(batch)


class OnnxProgram(NamedTuple):
    """An ONNX model that an engine has opened: the names of its inputs, and a function of their arrays."""

    inputs: list[str]
    run: Callable[[list[Any]], Any]


@dataclass(frozen=True, kw_only=True)
class Engine(Entry):
    """An engine and the packages that it needs. It has either `make` or `open_onnx`."""

    make: Callable[[nn.Module, Any, int], PreparedModel] | None = None  # (model, example, threads)
    open_onnx: Callable[[bytes, int], OnnxProgram] | None = None  # (content of a file, threads)
    open_together: Callable[[Sequence[bytes], int], list[OnnxProgram]] | None = None  # several, where that is quicker
    requires: Mapping[str, str] = field(default_factory=dict)  # package -> the extra of prunus that has it, or ""
    package: str = "torch"  # whose version decides how fast it is
    layers_in: str = ""  # where preparing takes seconds: the engine that times the layers, scaled to the whole network
    crashes: Callable[[], bool] = lambda: False  # whether running it on this machine would end the process
    on_request: bool = False  # timed only if it is named: its speed on this machine says little about the device
    selection: SelectionForm = "gather"  # how channel selections are written for it, see `prunus.graph.selection`
    # If it computes in 8-bit integers: the ONNX file in them, with ranges measured on these inputs of one image each.
    quantise: Callable[[bytes, Iterable[Any]], bytes] | None = None

    def prepare(self, model: nn.Module, example: Any, threads: int) -> PreparedModel:
        """Make `model` ready to run. It must be in eval mode, now and as long as the result is used.

        Args:
            model: The network, or an `OnnxFile`.
            example: A tensor, a tuple of positional arguments or a dict of keyword arguments; batches are like it, with
                any number of images.
            threads: Number of CPU threads. PyTorch's own number belongs to the whole process, so the caller must set it
                with `torch.set_num_threads`.
        """
        self.check_installed()
        content = getattr(model, "content", None)  # of an `OnnxFile`
        if self.open_onnx is None:
            if self.make is None or isinstance(content, bytes):
                raise ModelError(f"{self.name} does not read ONNX files")
            return self.make(model, example, threads)
        from prunus.timing.onnx_export import exported

        return self.open(content if isinstance(content, bytes) else exported(model, example, self.selection), threads)

    def open_all(self, contents: Sequence[bytes], threads: int) -> list[OnnxProgram]:
        """A program of each ONNX file, in one step where the engine can."""
        assert self.open_onnx is not None
        if self.open_together is not None:
            return self.open_together(contents, threads)
        return [self.open_onnx(content, threads) for content in contents]

    def open(self, content: bytes, threads: int) -> PreparedModel:
        """The network of an ONNX file, of whose content an engine with `open_onnx` makes a program."""
        import torch

        from prunus.timing.onnx_export import inputs_of

        assert self.open_onnx is not None
        names, run = self.open_onnx(content, threads)
        return PreparedModel(lambda batch: run(inputs_of(batch, names)), torch.device("cpu"))

    @property
    def is_installed(self) -> bool:
        return all(find_spec(package) is not None for package in self.requires)

    @property
    def is_ready(self) -> bool:
        """Whether it can be tried without being asked for: installed, quick to prepare and safe on this machine."""
        return self.is_installed and not self.layers_in and not self.on_request and not self.crashes()

    def check_installed(self) -> None:
        """Raise RunError with the command to run if a package that the engine needs is missing."""
        require(self.requires, f"the engine {self.name}")


def one_for_each_shape(open_for: Callable[[Any], Callable[[Any], Any]]) -> PreparedModel:
    """A network whose programs take batches of one size: `open_for` makes one for a batch when it is first needed."""
    import torch
    from torch.utils._pytree import tree_leaves

    programs: dict[tuple[int, ...], Callable[[Any], Any]] = {}

    def program(batch: Any) -> Callable[[Any], Any]:
        key = tuple(size for value in tree_leaves(batch) if isinstance(value, torch.Tensor) for size in value.shape)
        if key not in programs:
            programs[key] = open_for(batch)
        return programs[key]

    return PreparedModel(lambda batch: program(batch)(batch), torch.device("cpu"), program)


ENGINES: Registry[Engine] = Registry("engine", "prunus.timing.engines", RunError)


def default_engine() -> str:
    """The engine in which time is measured if none is named: onnxruntime if it is installed, or else eager."""
    return "onnxruntime" if find_spec("onnxruntime") is not None else "eager"  # asked by --help, without an import


def require(packages: Mapping[str, str], purpose: str) -> None:
    """Raise RunError with the command to run if one of these packages (name -> extra of prunus, or "") is missing."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        extras = ",".join(sorted({packages[package] for package in missing} - {""}))
        install = f"'prunus[{extras}]'" if extras else " ".join(missing)
        verb = "is" if len(missing) == 1 else "are"
        raise RunError(f"{purpose} needs {' and '.join(missing)}, which {verb} not installed: pip install {install}")
