"""The sensitivity study: two ways of choosing the units to prune (the paper's Fig. 5).

Two arms start from one network that has already lost some of its MACs. In a few iterations of pruning and retraining,
one arm ranks units by the FLOP-normalised sensitivity analysis (Algorithm 1) and the other by that of Li et al. Both
use the same metric and epochs, and remove the same MACs in each iteration. Held-out images decide; the test images are
only read when an arm is finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from prunus.deciding.settings import RANKING
from prunus.deciding.splits import uniform
from prunus.errors import DecideError
from prunus.graph.channel_graph import ChannelGraph, trace
from prunus.graph.files import load
from prunus.plots.style import INK, PAGE, figure, legend, line, save
from prunus.run.compress import Compressed, compress
from prunus.run.context import RunData, first_image
from prunus.run.folder import CONFIG, SUMMARY, RunFolder
from prunus.run.settings import Settings
from prunus.scoring.score import score
from prunus.studies.effectiveness_study import units_to_prune
from prunus.studies.folder import Provenance, StudyFolder, StudyRow, processes_apart, wait_until
from prunus.studies.settings import SensitivityStudySettings
from prunus.tasks import task_of
from prunus.tasks.evaluate import Evaluation, evaluate
from prunus.tasks.quality import ACCURACY, QualityText
from prunus.train.checkpoint import digest
from prunus.util.batches import Batches, device_of
from prunus.util.options import replaced
from prunus.util.progress import PhaseProgress, phases, shown

METHODS = {"flops": "FLOP-normalised (Algorithm 1)", "ratio": "Li et al."}
SPLITS = {"flops": "algorithm1", "ratio": "ratio"}
TITLE = "FLOP-normalised sensitivity analysis compared with that of Li et al."
STEP = 0.005  # between the uniform ratios that are tried for the start
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
        if rank == 0 and self.place.row("base") is None:
            self.place.keep("base", self._measured(self.graph.model))
        wait_until(lambda: self.place.row("base") is not None)
        return self.place.row("base") or {}

    def start(self, rank: int) -> nn.Module:
        """The network of a finished run, or without a share of its MACs: equal ratios of inner units, retrained."""
        share, folder, model = self.settings.start, self.place.path / "start", self.graph.model
        if not isinstance(share, float | int):
            return load(share, model)
        if rank == 0:
            inner = units_to_prune(self.graph, "inner")
            unranked = {name: getattr(Settings(), name) for name in RANKING}  # a ratio ranks no units
            ratio = ratio_for(self.graph, inner, share)
            self._compress("start", model, ratio=ratio, only=tuple(inner), last_epochs=None, **unranked)
        wait_until((folder / SUMMARY).exists)
        return load(folder, model)

    def run_arm(self, method: str, first: nn.Module) -> None:
        """All iterations of one method. Writes their rows."""
        if self.place.row(method) is not None:
            return
        begin = trace(first, self.graph.example, **self.graph.ways)
        wanted = self.settings.iterations
        target = 1 - (1 - self.settings.end) * self.graph.macs / begin.macs
        if not 0 < target < 1:
            removed = 1 - begin.macs / self.graph.macs
            raise DecideError(f"the start has already lost {removed:.1%} of the MACs; end must be above that")
        result = self._compress(method, first, target=target, rounds=wanted, split=SPLITS[method])

        def keep(number: int, macs: int, params: int, figures: StudyRow) -> None:
            gone = {
                "macs_removed": round(1 - macs / self.graph.macs, 6),
                "params_removed": round(1 - params / self.graph.params, 6),
            }
            self.place.keep(f"{method},{number}", {"method": method, "iteration": number, **gone, **figures})

        start = self._measured(first)
        keep(0, begin.macs, begin.params, {"units": 0, "channels": 0, "cut": start["holdout"], **start, "alpha": None})
        for number, outcome in enumerate(result.rounds[:wanted], start=1):
            network, _ = RunFolder(self.place.path / method).load_model(first, number)
            figures = {
                "units": len(outcome.chosen),
                "channels": sum(outcome.chosen.values()),
                "cut": self._shown(outcome.pruned),
                "holdout": self._shown(outcome.after),
                "test": self._measured(network, ("test",))["test"],
                "alpha": outcome.alpha if method == "flops" else None,
            }
            keep(number, outcome.macs, outcome.params, figures)
        # Fewer iterations than asked for if no channels are left to remove.
        self.place.keep(method, {"iterations": len(result.rounds[:wanted])})

    def rows(self) -> list[StudyRow]:
        """All rows, one method after the other, when both arms are finished."""
        wait_until(lambda: all(self.place.row(method) is not None for method in METHODS))
        counts = {method: (self.place.row(method) or {})["iterations"] for method in METHODS}
        rows = [self.place.row(f"{method},{n}") for method in METHODS for n in range(counts[method] + 1)]
        return [row for row in rows if row is not None]

    def _compress(self, name: str, model: nn.Module, **goal: Any) -> Compressed:
        return compress(
            model,
            self.images.train,
            self.images.holdout,
            score_on=self.images.score_on,
            example=self.graph.example,
            settings=self.settings.run_settings(),
            timing=False,  # rows have quality and MACs alone
            folder=self.place.path / name,
            progress=lambda phase, done, total, note: self.progress(f"{name}, {phase}", done, total, note),
            **goal,
        )

    def _measured(self, model: nn.Module, parts: Sequence[str] = ("holdout", "test")) -> StudyRow:
        """Quality on each part of the images; None without such images."""
        measure = self.settings.evaluate or partial(evaluate, task=self.settings.task)
        loaders = {part: getattr(self.images, part) for part in parts}
        return {part: None if each is None else self._shown(measure(model, each)) for part, each in loaders.items()}

    def _shown(self, result: Evaluation) -> float:
        return round(self.settings.quality.factor * result.quality, 4)


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


def sentences(rows: Sequence[StudyRow], base: StudyRow, text: QualityText) -> list[str]:
    """Notes on the quality of both arms at the start and at the end."""
    part, name = ("test", "test") if base["test"] is not None else ("holdout", "held-out")
    first = rows[0]
    notes = [
        f"Unpruned: {text.scaled(base[part])} {name} {text.name}. Both start at {text.scaled(first[part])} with "
        f"{first['macs_removed']:.1%} of the MACs removed."
    ]
    curves = {method: [row for row in rows if row["method"] == method] for method in METHODS}
    for method, title in METHODS.items():
        last = curves[method][-1]
        notes.append(
            f"{title}: {text.scaled(last[part])} with {last['macs_removed']:.1%} removed after {last['iteration']} "
            "iterations."
        )
    pairs = list(zip(curves["flops"][1:], curves["ratio"][1:], strict=False))  # one arm may have fewer iterations
    ahead, behind = sum(a[part] > b[part] for a, b in pairs), sum(a[part] < b[part] for a, b in pairs)
    notes.append(f"{METHODS['flops']} is ahead in {ahead} and behind in {behind} of {len(pairs)} iterations.")
    return notes


def draw_sensitivity(
    rows: Sequence[StudyRow], base: StudyRow, folder: Path, text: QualityText = ACCURACY
) -> dict[str, str]:
    """Accuracy (or another quality) against MACs removed: one colour per method; test solid, held-out dotted."""
    fig, axes = figure(PAGE, 3.6)
    parts = [part for part in ("test", "holdout") if base[part] is not None]
    names = {"test": "test", "holdout": "held-out"}
    for number, (method, title) in enumerate(METHODS.items()):
        mine = [row for row in rows if row["method"] == method]
        for part in parts:
            style = line(number)
            if part != parts[0]:
                style |= {"linestyle": ":", "linewidth": 1.0, "markersize": 3.0}
            places = [100 * row["macs_removed"] for row in mine]
            axes.plot(places, [row[part] for row in mine], label=f"{title}, {names[part]}", **style)
    axes.axhline(base[parts[0]], color=INK, linewidth=0.9, linestyle="--", label=f"unpruned, {names[parts[0]]}")
    axes.set_xlabel("MACs removed (%)")
    axes.set_ylabel(text.axis)
    legend(fig, axes, where="below", columns=2)
    return {
        "file": save(fig, folder, "curves"),
        "alt": f"{text.title} against MACs removed in each iteration, for two ways of choosing the units to prune.",
        "caption": "Iterations of pruning and retraining from the same network, with the same metric, epochs and MACs "
        "removed in each iteration. Held-out images decide what is removed; test images are only for this report.",
    }


def sensitivity(
    model: nn.Module,
    train: Batches,
    holdout: Batches,
    folder: str | Path,
    *,
    test: Batches | None = None,
    score_on: Batches | None = None,
    example: Any = None,
    provenance: Provenance | None = None,
    progress: PhaseProgress | bool | None = None,
    **settings: Any,
) -> list[StudyRow]:
    """Two curves of accuracy against MACs removed. Returns one row per method and iteration.

        prunus.studies.sensitivity(model, train, holdout, "runs/fig5", test=test, end=0.5, metric="gsd", epochs=3)

    Args:
        model: The trained network, which is not changed.
        train: Images to retrain on.
        holdout: Images for decisions.
        folder: The same call continues a study that was stopped. Under torchrun the processes share the two arms.
        test: Images for the report.
        score_on: Images to score on; `train` by default.
        example: One input of the network; an image of `train` by default.
        provenance: What the folder records in addition, such as the data set.
        progress: False shows nothing.
        settings: Fields of `SensitivityStudySettings` by name: start, end, iterations, and those of `prunus.compress`
            (metric, epochs, lr, preset, k, repair, num_images, seed, ...) except its goals and its split.
    """
    chosen: SensitivityStudySettings = replaced(SensitivityStudySettings(), settings, DecideError)
    chosen.check()
    asked = {**chosen.to_dict(), "network": digest(model)}
    place = StudyFolder(folder, "sensitivity", asked, provenance)
    images = RunData(train, score_on if score_on is not None else train, holdout, test)
    example = example if example is not None else first_image(train, device_of(model), task_of(chosen.task))
    graph = trace(model, example, chosen.streams or "select")
    with processes_apart() as (rank, world), shown(progress, phases) as report:
        if rank == 0:
            place.start(vars(images))
        wait_until((place.path / CONFIG).exists)
        study = SensitivityArms(place, graph, chosen, images, report)
        base, first = study.base(rank), study.start(rank)
        for method in list(METHODS)[rank::world]:
            study.run_arm(method, first)
        rows = study.rows()
        if rank == 0:
            text = chosen.quality
            unit = f" ({text.unit})" if text.unit else ""
            columns = {
                "macs_removed": "fraction of MACs removed",
                "params_removed": "fraction of weights removed",
                "units": "units pruned",
                "channels": "channels removed",
                "cut": f"held-out {text.name} before retraining{unit}",
                "holdout": f"held-out {text.name}{unit}",
                "test": f"test {text.name}{unit}",
                "alpha": "alpha of Eqn. 3, solved",
            }
            pictures = [draw_sensitivity(rows, base, place.path, text)]
            place.finish(TITLE, rows, pictures, sentences(rows, base, text), columns=columns)
    return rows
