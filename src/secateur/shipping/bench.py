"""How fast models are, side by side: every model in every engine, turn about in one run, beside their MACs."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from secateur.base.batches import device_of
from secateur.base.preserve_state import evaluating
from secateur.channels.graph import trace
from secateur.channels.selection import selection_of
from secateur.errors import ModelError, RunError, TraceError
from secateur.measuring.latency import Runner, Timing, latency
from secateur.shipping.export import export
from secateur.shipping.fold import fold_batch_norm
from secateur.shipping.sessions import onnx_session, run_session

Engine = Literal["eager", "compile", "onnx"]
ENGINES: tuple[Engine, ...] = ("eager", "compile", "onnx")
WATCHED = 5  # forwards in which the layers are timed one by one


@dataclass(frozen=True)
class Row:
    """One model in one engine at one batch size."""

    model: str
    engine: Engine
    timing: Timing
    speedup: float  # times as fast as the first model in the same engine at the same batch size


@dataclass(frozen=True)
class Size:
    """What a model costs on paper, and where its time goes in eager mode at the largest batch size."""

    macs: int | None  # of one image; None where the network cannot be traced
    selections: int  # layers that select their channels
    shares: Mapping[str, float]  # kind of layer -> share of the time, largest first


@dataclass(frozen=True)
class Benched:
    """The result of `bench`."""

    rows: tuple[Row, ...]
    sizes: Mapping[str, Size]
    threads: int
    notes: tuple[str, ...]  # engines that a model could not run in, and why

    def best(self, model: str, batch: int) -> Row:
        """The model's row of the highest throughput at this batch size."""
        rows = [row for row in self.rows if row.model == model and row.timing.batch_size == batch]
        if not rows:
            raise RunError(f"{model!r} was not measured at batch size {batch}")
        return min(rows, key=lambda row: row.timing.median)


def bench(
    models: Mapping[str, nn.Module],
    example: Tensor,
    batches: Sequence[int] = (1, 64),
    engines: Sequence[Engine] = ENGINES,
    *,
    rounds: int = 20,
    fold_bn: bool = False,
    cpu_time: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Benched:
    """Median latency and its spread of each model in each engine at each batch size, on the CPU or where the model is.

    All runs are interleaved: whatever else the machine does meets all of them alike, so the ratios hold where the
    figures do not. The first model is what the others are compared with. An engine that cannot take a model is noted.
    fold_bn: all of them with batch norms folded (`fold_batch_norm`); onnxruntime does that by itself.
    cpu_time: the processor's seconds instead of the clock's; for one thread, on a machine that others use too.
    """
    unknown = [engine for engine in engines if engine not in ENGINES]
    if unknown or not engines or not models:
        raise RunError(f"expected models and engines out of {', '.join(ENGINES)}; got {list(models)}, {list(engines)}")
    if not isinstance(example, Tensor) or example.dim() < 2:
        raise RunError("the example should be a batch of images [N, C, H, W]; models with several inputs are not timed")
    notes: list[str] = []
    if fold_bn:
        models = {name: fold_batch_norm(model, example[:1]) for name, model in models.items()}
    with _runners(models, example, batches, engines, notes) as runners:
        timings = latency(
            {_key(name, engine): runner for (name, engine), runner in runners.items()},
            example,
            batch_sizes=batches,
            rounds=rounds,
            cpu_time=cpu_time,
            progress=progress,
        )
        rows = _rows(timings, list(runners))
    sizes = {name: _size(model, example, max(batches)) for name, model in models.items()}
    return Benched(tuple(rows), sizes, torch.get_num_threads(), tuple(notes))


def _key(name: str, engine: str) -> str:
    return f"{name}\n{engine}"


@contextmanager
def _runners(
    models: Mapping[str, nn.Module],
    example: Tensor,
    batches: Sequence[int],
    engines: Sequence[Engine],
    notes: list[str],
) -> Iterator[dict[tuple[str, Engine], Runner]]:
    """(model, engine) -> something that takes a batch. ONNX files live as long as the block."""
    found: dict[tuple[str, Engine], Runner] = {}
    # Models of one class share code, and torch.compile gives up on code that it has compiled for many of them.
    limit = torch._dynamo.config.patch(recompile_limit=2 * len(models) * len(batches) + 8)
    with tempfile.TemporaryDirectory() as folder, limit:
        for number, (name, model) in enumerate(models.items()):
            for engine in engines:
                try:
                    found[name, engine] = _runner(model, engine, example, batches, Path(folder) / f"{number}.onnx")
                except ModelError as error:
                    notes.append(f"{name} does not run in {engine}: {error}")
        if not found:
            raise RunError(f"no model runs in any of the engines: {'; '.join(notes)}")
        yield found


def _runner(model: nn.Module, engine: Engine, example: Tensor, batches: Sequence[int], path: Path) -> Runner:
    if engine == "eager":
        return model
    if engine == "onnx":
        export(model, example, path)
        session = onnx_session(path)
        return lambda batch: run_session(session, batch)
    return _compiled(model, example, batches)


def _compiled(model: nn.Module, example: Tensor, batches: Sequence[int]) -> Runner:
    """torch.compile, for each batch size on its own: code for any number of images is slower."""
    try:
        with evaluating(model), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled: Any = torch.compile(model, dynamic=False)
            for size in batches:
                compiled(_batch(model, example, size))
    except Exception as error:
        said = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        hint = " Install g++, or name a compiler in the environment variable CXX." if "C++ compiler" in said else ""
        raise ModelError(f"torch.compile failed: {said}{hint}") from error
    return compiled  # type: ignore[no-any-return]


def _batch(model: nn.Module, example: Tensor, size: int) -> Tensor:
    return example.repeat(-(-size // len(example)), *[1] * (example.dim() - 1))[:size].to(device_of(model))


def _rows(timings: Sequence[Timing], runners: Sequence[tuple[str, Engine]]) -> list[Row]:
    by_key = {(*t.name.split("\n"), t.batch_size): t for t in timings}
    first = runners[0][0]
    rows = []
    for (name, engine, size), timing in by_key.items():
        against = by_key.get((first, engine, size))
        speedup = against.median / timing.median if against is not None else float("nan")
        rows.append(Row(name, engine, timing, speedup))  # type: ignore[arg-type]
    return rows


def _size(model: nn.Module, example: Tensor, batch: int) -> Size:
    try:
        macs = trace(model, example[:1]).macs
    except TraceError:
        macs = None
    selections = sum(selection_of(module) is not None for module in model.modules())
    return Size(macs, selections, _shares(model, example, batch))


def _shares(model: nn.Module, example: Tensor, batch: int) -> dict[str, float]:
    """Kind of layer -> share of the time of a forward in eager mode; what lies between layers is "functions"."""
    images = _batch(model, example, batch)
    with evaluating(model), torch.no_grad():
        model(images)
        with _watched(model) as spent:
            start = time.perf_counter()
            for _ in range(WATCHED):
                model(images)
            total = time.perf_counter() - start
    spent["functions"] = max(0.0, total - sum(spent.values()))
    return {kind: spent[kind] / total for kind in sorted(spent, key=spent.__getitem__, reverse=True)}


@contextmanager
def _watched(model: nn.Module) -> Iterator[dict[str, float]]:
    """Seconds spent in the leaves of `model`, by kind, and in the channel selections in front of layers."""
    spent: dict[str, float] = {}
    clock: dict[nn.Module, float] = {}

    def lap(kind: str, module: nn.Module) -> None:
        now = time.perf_counter()
        spent[kind] = spent.get(kind, 0.0) + now - clock.get(module, now)
        clock[module] = now

    def before(module: nn.Module, _: Any) -> None:
        clock[module] = time.perf_counter()

    def behind_selection(module: nn.Module, _: Any) -> None:
        lap("channel selection", module)

    def after(module: nn.Module, *_: Any) -> None:
        lap(type(module).__name__, module)

    handles = []
    try:
        for module in model.modules():
            if next(module.children(), None) is None:
                handles.append(module.register_forward_pre_hook(before, prepend=True))
                if selection_of(module) is not None:
                    handles.append(module.register_forward_pre_hook(behind_selection))
                handles.append(module.register_forward_hook(after, prepend=True))
        yield spent
    finally:
        for handle in handles:
            handle.remove()
