"""Which way of choosing layers is better? The paper's Fig. 5.

From a network that has lost some of its MACs already, a few iterations of pruning and retraining, once with the
FLOP-normalised sensitivity analysis (Algorithm 1) and once with that of Li et al.: same metric, same epochs, the same
MACs removed in each iteration. Held-out images decide; the test images are read when an arm is finished.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from secateur.base.batches import Batches, device_of
from secateur.channels.files import load
from secateur.channels.graph import ChannelGraph, trace
from secateur.deciding.uniform import uniform
from secateur.errors import DecideError
from secateur.measuring.accuracy import Accuracy, evaluate
from secateur.running.compress import Compressed, compress, first_image
from secateur.running.folder import SUMMARY, RunFolder
from secateur.running.settings import USUAL_RANKS, Settings, check_settings
from secateur.scoring.score import score
from secateur.studies.effectiveness_study.study import units_of
from secateur.studies.folder import CONFIG, Row, StudyFolder
from secateur.studies.sensitivity_study.table import COLUMNS, METHODS, draw, sentences
from secateur.studies.work_sharing import on_its_own, wait_until
from secateur.training.checkpoint import digest

Phase = Callable[[str, int, int, str], None]  # phase, done, of, note
STEP = 0.005  # between the uniform ratios that are tried for the start
TOLERANCE = 0.02  # of the network's MACs: so far from the asked share the start may be


@dataclass(frozen=True)
class Loaders:
    """The images: to retrain on, to decide on, to report on and to score on."""

    train: Batches
    holdout: Batches
    test: Batches | None
    score_on: Batches


def sensitivity(
    model: nn.Module,
    train: Batches,
    holdout: Batches,
    folder: str | Path,
    *,
    test: Batches | None = None,
    score_on: Batches | None = None,
    example: Any = None,
    start: float | str | Path = 0.31,
    end: float = 0.56,
    iterations: int = 5,
    about: Mapping[str, Any] | None = None,
    command: str | None = None,
    progress: Phase | None = None,
    **settings: Any,
) -> list[Row]:
    """Two curves of MACs removed against accuracy; the table, one row for each method and iteration.

        secateur.studies.sensitivity(model, train, holdout, "runs/fig5", test=test, metric="gsd", epochs=3)

    model: the trained network, which is not changed. holdout: what decisions read; test: what is reported.
    start: the share of MACs that both arms begin without, removed uniformly from the inner units and retrained; or the
        folder of a finished run on `model`. end: the share that they end without; iterations: in so many equal steps.
    settings: by name as in `secateur.compress` (metric=, epochs=, lr=, preset=, k=, repair=, images=, seed=, ...).
    folder: the same call goes on where it stopped; under torchrun the two arms are shared among the processes.
    """
    chosen = _settings(settings)
    begin = start if isinstance(start, float | int) else str(start)
    asked = {**(about or {}), **chosen.to_dict(), "start": begin, "end": end, "iterations": iterations}
    place = StudyFolder(folder, "sensitivity", {**asked, "network": digest(model)}, command)
    images = Loaders(train, holdout, test, score_on if score_on is not None else train)
    example = example if example is not None else first_image(train, device_of(model))
    graph = trace(model, example, chosen.streams)
    _check(begin, end, iterations)
    with on_its_own() as (rank, world):
        if rank == 0:
            place.start()
        wait_until((place.path / CONFIG).exists)
        study = _Study(place, graph, chosen, images, end, iterations, progress)
        base = study.base(rank)
        first = load(start, model) if isinstance(start, str | Path) else study.start(float(start), rank)
        for method in list(METHODS)[rank::world]:
            study.arm(method, first)
        wait_until(study.finished)
        rows = study.rows()
        if rank == 0:
            title = "FLOP-normalised sensitivity analysis beside that of Li et al."
            place.finish(title, rows, [draw(rows, base, place.path)], sentences(rows, base), columns=COLUMNS)
    return rows


@dataclass(frozen=True)
class _Study:
    place: StudyFolder
    graph: ChannelGraph  # of the unpruned network
    settings: Settings
    images: Loaders
    end: float
    iterations: int
    progress: Phase | None

    def base(self, rank: int) -> Row:
        """What the unpruned network scores."""
        if rank == 0 and self.place.row("base") is None:
            self.place.keep("base", self._scored(self.graph.model))
        wait_until(lambda: self.place.row("base") is not None)
        return self.place.row("base") or {}

    def start(self, share: float, rank: int) -> nn.Module:
        """The network without `share` of its MACs, the same ratio of every inner unit, retrained as the arms are."""
        folder = self.place.path / "start"
        inner = units_of(self.graph, "inner")
        if rank == 0:
            ratio = ratio_for(self.graph, inner, share)
            self._compress("start", self.graph.model, ratio=ratio, only=tuple(inner), **USUAL_RANKS)
        wait_until((folder / SUMMARY).exists)
        return load(folder, self.graph.model)

    def arm(self, method: str, first: nn.Module) -> None:
        """All iterations by one method, and their rows."""
        if self.place.row(method) is not None:
            return
        begin = trace(first, self.graph.example, self.settings.streams)
        target = 1 - (1 - self.end) * self.graph.macs / begin.macs
        if not 0 < target < 1:
            removed = 1 - begin.macs / self.graph.macs
            raise DecideError(f"the start has lost {removed:.1%} of the MACs already; end should be above that")
        result = self._compress(method, first, target=target, rounds=self.iterations, method=method)
        found = self._scored(first)
        self._keep(method, 0, begin.macs, begin.params, {"units": 0, "channels": 0, "cut": found["holdout"], **found})
        rounds = result.rounds[: self.iterations]
        for number, outcome in enumerate(rounds, start=1):
            network, _ = RunFolder(self.place.path / method).load_model(first, number)
            lost = {"units": len(outcome.chosen), "channels": sum(outcome.chosen.values())}
            found = {"cut": _percent(outcome.pruned), "holdout": _percent(outcome.after), "test": self._test(network)}
            self._keep(method, number, outcome.macs, outcome.params, {**lost, **found})
        self.place.keep(method, {"iterations": len(rounds)})  # fewer than asked for where nothing is left to take

    def finished(self) -> bool:
        """Whether both arms are."""
        return all(self.place.row(method) is not None for method in METHODS)

    def rows(self) -> list[Row]:
        """All rows, method by method."""
        counts = {method: (self.place.row(method) or {}).get("iterations", 0) for method in METHODS}
        found = [self.place.row(f"{method},{n}") for method in METHODS for n in range(counts[method] + 1)]
        return [row for row in found if row is not None]

    def _keep(self, method: str, number: int, macs: int, params: int, found: Row) -> None:
        row = {
            "method": method,
            "iteration": number,
            "macs_removed": round(1 - macs / self.graph.macs, 6),
            "params_removed": round(1 - params / self.graph.params, 6),
            **found,
        }
        self.place.keep(f"{method},{number}", row)

    def _compress(self, name: str, model: nn.Module, **goal: Any) -> Compressed:
        def tell(phase: str, done: int, total: int, note: str) -> None:
            if self.progress is not None:
                self.progress(f"{name}, {phase}", done, total, note)

        return compress(
            model,
            self.images.train,
            self.images.holdout,
            score_on=self.images.score_on,
            example=self.graph.example,
            settings=self.settings,
            folder=self.place.path / name,
            progress=tell,
            **goal,
        )

    def _scored(self, model: nn.Module) -> Row:
        return {"holdout": _percent(evaluate(model, self.images.holdout)), "test": self._test(model)}

    def _test(self, model: nn.Module) -> float | None:
        return None if self.images.test is None else _percent(evaluate(model, self.images.test))


def ratio_for(graph: ChannelGraph, units: list[str], share: float) -> float:
    """The uniform ratio of these units whose plan removes `share` of the MACs most nearly."""
    scores = score(graph, None, "l1")  # which channels go does not matter here, only how many
    tries = [round(STEP * number, 6) for number in range(1, round(1 / STEP))]
    removed = {r: 1 - graph.cost(uniform(graph, scores, r, units=units)).macs / graph.macs for r in tries}
    best = min(tries, key=lambda ratio: abs(removed[ratio] - share))
    if abs(removed[best] - share) > TOLERANCE:
        raise DecideError(
            f"no uniform ratio of the inner units removes {share:.1%} of the MACs; the nearest, {best:.1%}, removes "
            f"{removed[best]:.1%}. Ask for that, or give the folder of a finished run as the start"
        )
    return best


def _settings(given: Mapping[str, Any]) -> Settings:
    try:
        chosen = Settings(**{"metric": "gsd", **given})
    except TypeError as error:
        raise DecideError(f"{error}; the settings are {', '.join(Settings.__dataclass_fields__)}") from error
    goals = [name for name in ("target", "macs", "params", "ratio", "max_drop", "rounds") if getattr(chosen, name)]
    if goals:
        raise DecideError(f"the goal of both arms is end, in equal iterations; leave {', '.join(goals)} out")
    check_settings(chosen)
    return chosen


def _check(start: float | str, end: float, iterations: int) -> None:
    if isinstance(start, float | int) and not 0 < start < end:
        raise DecideError(f"start and end are shares of MACs removed, 0 < start < end < 1; got {start} and {end}")
    if not 0 < end < 1:
        raise DecideError(f"end is the share of MACs removed at the end, above 0 and below 1; got {end}")
    if iterations < 1:
        raise DecideError(f"iterations must be at least 1, got {iterations}")


def _percent(found: Accuracy) -> float:
    return round(100 * found.top1, 4)
