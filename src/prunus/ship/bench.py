"""Speed of several models in several engines, measured in turns in one run, next to their MACs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from prunus.errors import ModelError, RunError, TraceError
from prunus.graph.channel_graph import trace
from prunus.graph.memory import peak_of
from prunus.graph.selection import selection_of
from prunus.ship.fold import fold_batch_norm
from prunus.timing.engines import ENGINES, PreparedModel
from prunus.timing.latency import (
    Speedup,
    Timing,
    check_example,
    check_turns,
    latency,
    prepare,
    ready_to_time,
    repeated,
    speedup,
)
from prunus.timing.onnx_export import OnnxFile
from prunus.util.progress import Progress, shown, steps
from prunus.util.text import count, short_table


@dataclass(frozen=True)
class ModelProfile:
    """What a model costs on paper."""

    macs: int | None  # for one image; None if the network cannot be traced
    selections: int  # number of layers that select their input channels
    memory: int | None = None  # bytes of activations for one image at their peak; None if it is not known


def profile(model: nn.Module, example: Any) -> ModelProfile:
    """The profile of a model. Little is known about an ONNX file."""
    selections = sum(selection_of(module) is not None for module in model.modules())
    try:
        graph = None if isinstance(model, OnnxFile) else trace(model, repeated(example, 1))
    except TraceError:
        graph = None
    return ModelProfile(None, selections) if graph is None else ModelProfile(graph.macs, selections, peak_of(graph))


@dataclass(frozen=True)
class BenchRow:
    """One model in one engine at one batch size."""

    model: str
    engine: str
    timing: Timing
    speedup: float  # relative to the first model in the same engine at the same batch size: median over paired turns
    interval: tuple[float, float] = (0.0, math.inf)  # 95% confidence interval of the speed-up

    def speed_text(self) -> str:
        """The speed-up with its interval, or that there is no measurable difference."""
        return "" if math.isnan(self.speedup) else str(Speedup(self.speedup, *self.interval))


@dataclass(frozen=True, repr=False)
class Benched:
    """The result of `bench`. Its `repr` is a short table.

    Attributes:
        rows: One for each model, engine and batch size.
        profiles: What each model costs on paper.
        threads: Number of CPU threads.
        notes: Models that an engine could not run, and why.
    """

    rows: tuple[BenchRow, ...]
    profiles: Mapping[str, ModelProfile]
    threads: int
    notes: tuple[str, ...]

    def best(self, model: str, batch: int) -> BenchRow:
        """The row of this model with the highest throughput at this batch size."""
        rows = [row for row in self.rows if row.model == model and row.timing.batch_size == batch]
        if not rows:
            raise RunError(f"{model!r} was not measured at batch size {batch}")
        return min(rows, key=lambda row: row.timing.median)

    def __repr__(self) -> str:
        """A short table: the time and speed of every model in every engine, and the notes."""
        title = f"Benched {count(len(self.profiles), 'model')} on {count(self.threads, 'thread')}"
        rows = [
            (row.model, row.engine, str(row.timing.batch_size), f"{1e3 * row.timing.median:.3f}", row.speed_text())
            for row in self.rows
        ]
        return "\n".join([short_table(title, ("model", "engine", "batch", "ms", "speed"), rows), *self.notes])


def bench(
    models: Mapping[str, nn.Module],
    example: Any,
    batches: Sequence[int] = (1, 64),
    engines: Sequence[str] | None = None,
    *,
    rounds: int = 20,
    threads: int | None = None,
    fold_bn: bool = False,
    cpu_time: bool = False,
    progress: Progress | bool | None = None,
) -> Benched:
    """Median latency and its spread for each model in each engine at each batch size, on the device of each model.

    All measurements take turns, so that other load on the machine affects all of them equally: ratios are reliable
    even where absolute times are not. Speedups are relative to the first model. If an engine cannot run a model, the
    result has a note that says why.

    Args:
        models: Networks by name.
        example: A batch of one or more images [N, C, H, W], or a tuple or dict of tensors for several inputs.
        batches: Batch sizes.
        engines: Names of engines; all that are installed by default.
        rounds: Number of turns of each model.
        threads: Number of CPU threads; PyTorch's current number if not given.
        fold_bn: Fold the batch norms of all models first (`fold_batch_norm`). onnxruntime always does this.
        cpu_time: Measure processor time instead of wall-clock time. Use it with one thread on a busy machine.
        progress: False shows nothing; a function is called with the batch sizes done and their number.
    """
    if not isinstance(engines, str | Sequence | None):
        raise RunError(f"engines must be a list of names, got {type(engines).__name__}")
    if engines is None:
        engines = [engine.name for engine in ENGINES.values() if engine.is_installed and not engine.crashes()]
    engines = (engines,) if isinstance(engines, str) else tuple(engines)
    if not isinstance(models, Mapping):
        raise RunError(f"models must be a dict of name -> network, got {type(models).__name__}")
    for engine in engines:
        ENGINES.check(engine)
    if not engines or not models:
        raise RunError(f"expected at least one model and one engine, got {list(models)} and {list(engines)}")
    check_example(example)
    check_turns(models, rounds, batches)
    if fold_bn:
        models = {
            name: model if isinstance(model, OnnxFile) else fold_batch_norm(model, repeated(example, 1))
            for name, model in models.items()
        }
    with ready_to_time(models.values(), threads), shown(progress, steps("timing")) as report:
        with shown(False if callable(progress) else progress, steps("preparing networks for engines")) as prepares:
            prepared, notes = _prepare_all(models, example, batches, engines, prepares)
        timings = latency(
            {"\n".join(key): model for key, model in prepared.items()},
            example,
            batch_sizes=batches,
            rounds=rounds,
            cpu_time=cpu_time,
            progress=report,
        )
        profiles = {name: profile(model, example) for name, model in models.items()}
        return Benched(_rows(timings), profiles, torch.get_num_threads(), notes)


def _prepare_all(
    models: Mapping[str, nn.Module], example: Any, batches: Sequence[int], engines: Sequence[str], report: Progress
) -> tuple[dict[tuple[str, str], PreparedModel], tuple[str, ...]]:
    """(model, engine) -> the model ready to run there; and notes on the pairs that do not work."""
    prepared: dict[tuple[str, str], PreparedModel] = {}
    notes: list[str] = []
    for name, model in models.items():
        for engine in engines:
            report(len(prepared) + len(notes), len(models) * len(engines))
            try:
                prepared[name, engine] = prepare(model, engine, example, batches)
            except (ModelError, RunError) as error:
                notes.append(f"{name} does not run in {engine}: {error}")
    if not prepared:
        raise RunError(f"no model runs in any of the engines: {'; '.join(notes)}")
    return prepared, tuple(notes)


def _rows(timings: Sequence[Timing]) -> tuple[BenchRow, ...]:
    by_key = {(*timing.name.split("\n"), timing.batch_size): timing for timing in timings}
    first = timings[0].name.split("\n")[0]
    rows = []
    for (name, engine, size), timing in by_key.items():
        row = BenchRow(str(name), str(engine), timing, math.nan)
        if (against := by_key.get((first, engine, size))) is not None:
            gain = speedup(against.seconds, timing.seconds)
            row = replace(row, speedup=gain.ratio, interval=(gain.low, gain.high))
        rows.append(row)
    return tuple(rows)
