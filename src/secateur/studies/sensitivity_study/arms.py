"""The two arms of the sensitivity study, and the network that both start from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from secateur.base.batches import Batches
from secateur.base.progress import PhaseProgress
from secateur.channels.files import load
from secateur.channels.graph import ChannelGraph, trace
from secateur.deciding.settings import RANKING
from secateur.deciding.splits.uniform import uniform
from secateur.errors import DecideError
from secateur.measuring.accuracy import Accuracy, evaluate
from secateur.running.compress import Compressed, compress
from secateur.running.folder import SUMMARY, RunFolder
from secateur.running.run_context import RunData
from secateur.running.settings import Settings
from secateur.scoring.score import score
from secateur.studies.effectiveness_study.comparison import units_to_prune
from secateur.studies.folder import StudyFolder, StudyRow
from secateur.studies.sensitivity_study.settings import SensitivityStudySettings
from secateur.studies.sensitivity_study.table import METHODS
from secateur.studies.work_sharing import wait_until

STEP = 0.005  # between the uniform ratios that are tried for the start
SPLITS = {"flops": "algorithm1", "ratio": "ratio"}  # arm -> split
TOLERANCE = 0.02  # fraction of the network's MACs by which the start may differ from the wanted share


@dataclass(frozen=True)
class SensitivityArms:
    """The study while it runs: the unpruned network, the start of both arms, and the arms."""

    place: StudyFolder
    graph: ChannelGraph  # of the unpruned network
    settings: SensitivityStudySettings
    images: RunData
    progress: PhaseProgress

    def base(self, rank: int) -> StudyRow:
        """Accuracy of the unpruned network."""
        if rank == 0 and self.place.row("base") is None:
            self.place.keep("base", self._scored(self.graph.model))
        wait_until(lambda: self.place.row("base") is not None)
        return self.place.row("base") or {}

    def start(self, share: float, rank: int) -> nn.Module:
        """The network without `share` of its MACs: the same ratio of every inner unit, retrained like the arms."""
        folder = self.place.path / "start"
        inner = units_to_prune(self.graph, "inner")
        if rank == 0:
            ratio = ratio_for(self.graph, inner, share)
            unranked = {name: getattr(Settings(), name) for name in RANKING}  # a ratio ranks no units
            self._compress("start", self.graph.model, ratio=ratio, only=tuple(inner), last_epochs=None, **unranked)
        wait_until((folder / SUMMARY).exists)
        return load(folder, self.graph.model)

    def run_arm(self, method: str, first: nn.Module) -> None:
        """All iterations of one method. Writes their rows."""
        if self.place.row(method) is not None:
            return
        begin = trace(first, self.graph.example, self.settings.streams)
        target = 1 - (1 - self.settings.end) * self.graph.macs / begin.macs
        if not 0 < target < 1:
            removed = 1 - begin.macs / self.graph.macs
            raise DecideError(f"the start has already lost {removed:.1%} of the MACs; end must be above that")
        result = self._compress(method, first, target=target, rounds=self.settings.iterations, split=SPLITS[method])
        found = {**self._scored(first), "alpha": None}
        self._keep(method, 0, begin.macs, begin.params, {"units": 0, "channels": 0, "cut": found["holdout"], **found})
        rounds = result.rounds[: self.settings.iterations]
        for number, outcome in enumerate(rounds, start=1):
            network, _ = RunFolder(self.place.path / method).load_model(first, number)
            lost = {"units": len(outcome.chosen), "channels": sum(outcome.chosen.values())}
            found = {"cut": self._shown(outcome.pruned), "holdout": self._shown(outcome.after)}
            found |= {"test": self._test(network), "alpha": outcome.alpha if method == "flops" else None}
            self._keep(method, number, outcome.macs, outcome.params, {**lost, **found})
        self.place.keep(method, {"iterations": len(rounds)})  # fewer than asked for if no channels are left to remove

    def finished(self) -> bool:
        """Whether both arms are finished."""
        return all(self.place.row(method) is not None for method in METHODS)

    def rows(self) -> list[StudyRow]:
        """All rows, one method after the other."""
        counts = {method: (self.place.row(method) or {}).get("iterations", 0) for method in METHODS}
        found = [self.place.row(f"{method},{n}") for method in METHODS for n in range(counts[method] + 1)]
        return [{"alpha": None, **row} for row in found if row is not None]  # rows of older versions have no alpha

    def _keep(self, method: str, number: int, macs: int, params: int, found: StudyRow) -> None:
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
            self.progress(f"{name}, {phase}", done, total, note)

        return compress(
            model,
            self.images.train,
            self.images.holdout,
            score_on=self.images.score_on,
            example=self.graph.example,
            settings=self.settings.run_settings(),
            folder=self.place.path / name,
            progress=tell,
            **goal,
        )

    def _scored(self, model: nn.Module) -> StudyRow:
        return {"holdout": self._measured(model, self.images.holdout), "test": self._test(model)}

    def _test(self, model: nn.Module) -> float | None:
        return None if self.images.test is None else self._measured(model, self.images.test)

    def _measured(self, model: nn.Module, images: Batches) -> float:
        own = self.settings.evaluate
        return self._shown(own(model, images) if own else evaluate(model, images, task=self.settings.task))

    def _shown(self, found: Accuracy) -> float:
        """Accuracy in per cent, or the quality of another task in its unit."""
        return round(self.settings.quality.factor * found.top1, 4)


def ratio_for(graph: ChannelGraph, units: list[str], share: float) -> float:
    """The uniform ratio of these units that comes closest to removing `share` of the MACs."""
    scores = score(graph, None, "l1")  # only the number of channels matters here
    tries = [round(STEP * number, 6) for number in range(1, round(1 / STEP))]
    removed = {r: 1 - graph.cost(uniform(graph, scores, r, units=units)).macs / graph.macs for r in tries}
    best = min(tries, key=lambda ratio: abs(removed[ratio] - share))
    if abs(removed[best] - share) > TOLERANCE:
        raise DecideError(
            f"no uniform ratio of the inner units removes {share:.1%} of the MACs; the nearest, {best:.1%}, removes "
            f"{removed[best]:.1%}. Use that as the start, or the folder of a finished run"
        )
    return best
