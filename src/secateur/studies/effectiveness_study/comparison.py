"""Every network is cut by every metric, at every ratio and with every seed; each cut is measured once and stored."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from secateur.base.batches import Batches, device_of
from secateur.base.progress import PhaseProgress, Progress
from secateur.channels.graph import ChannelGraph
from secateur.channels.plan import Plan
from secateur.deciding.candidates import candidates
from secateur.deciding.splits.uniform import uniform
from secateur.errors import DecideError
from secateur.measuring.accuracy import Accuracy
from secateur.measuring.quality_sums import inputs_alone
from secateur.measuring.quality_words import QualityWords
from secateur.measuring.tasks import Task, task_of
from secateur.repairing.repair import repair
from secateur.scoring.metric_choice import ChosenMetric
from secateur.scoring.sampling import sampled
from secateur.scoring.score import score_by
from secateur.scoring.scores import Scores, load_scores, save_scores
from secateur.scoring.settings import ScoreSettings
from secateur.studies.effectiveness_study.settings import EffectivenessSettings, Units
from secateur.studies.effectiveness_study.table import AS_CUT, MEASURED
from secateur.studies.fast_evaluate import accuracy_of, pruned_or_same
from secateur.studies.folder import StudyFolder, StudyRow
from secateur.studies.work_sharing import wait_until
from secateur.training.fit import fit
from secateur.training.presets import preset_of

RetrainOn = Batches | Callable[[int], Batches]  # batches, or a function of the seed that returns them


@dataclass(frozen=True)
class ComparisonImages:
    """The images of the study: to score and repair on, to retrain on, and to measure on."""

    train: Batches
    retrain_on: RetrainOn
    test: Batches


@dataclass(frozen=True)
class UniformCut:
    """One row of the study: a network cut by a metric at a ratio, with a seed."""

    network: str
    metric: ChosenMetric
    ratio: float
    seed: int

    @property
    def key(self) -> str:
        """Its name in the folder."""
        return f"{self.network},{self.metric.name},{self.ratio:g},{self.seed}"


@dataclass
class MetricComparison:
    """The study while it runs."""

    folder: StudyFolder
    settings: EffectivenessSettings
    metrics: Sequence[ChosenMetric]
    graphs: Mapping[str, ChannelGraph]
    images: ComparisonImages
    progress: PhaseProgress
    measured: dict[str, StudyRow] = field(default_factory=dict)  # measurements of plans that were seen before
    measured_as_cut: dict[tuple[str, str], StudyRow] = field(default_factory=dict)  # by network and plan, for all seeds
    scores: dict[Path, dict[str, Scores]] = field(default_factory=dict)
    samples: dict[int, list[Any]] = field(default_factory=dict)  # seed -> images for the repair

    @property
    def task(self) -> Task:
        """What the networks are for."""
        return task_of(self.settings.task)

    def cuts(self) -> list[UniformCut]:
        """All rows of the study, including ratio 0, the unpruned network."""
        ratios = sorted({0.0, *self.settings.ratios})
        return [
            UniformCut(network, metric, ratio, seed)
            for network in self.graphs
            for seed in self.settings.seeds
            for metric in self.metrics
            for ratio in ratios
        ]

    def finished_rows(self) -> list[StudyRow]:
        """The rows that are in the folder."""
        return [row for row in map(self._finished, self.cuts()) if row is not None]

    def run(self, rank: int, world: int) -> None:
        """Compute this process's share of the missing rows, and wait for the other processes."""
        cuts = self.cuts()
        for cut in cuts:
            row = self._finished(cut)
            if row is not None:
                self.measured[self._same_measurement(cut, row["plan"])] = row
                self.measured_as_cut[cut.network, row["plan"]] = {key: row[key] for key in AS_CUT}
        # Passes and rows are assigned by their position among all of them, not among the missing ones: a process that
        # starts late would count differently, and some rows would belong to no process.
        for path in list(dict.fromkeys(map(self._scores_path, cuts)))[rank::world]:
            waiting = [cut for cut in cuts if self._scores_path(cut) == path and self._finished(cut) is None]
            if waiting and not (path / "scores.json").exists():
                self._score(waiting[0])
        mine = [cut for cut in cuts[rank::world] if self._finished(cut) is None]
        for number, cut in enumerate(mine):
            self.folder.keep(cut.key, self._row(cut, number, len(mine)))
        wait_until(lambda: all(self._finished(cut) is not None for cut in cuts))

    def _finished(self, cut: UniformCut) -> StudyRow | None:
        return self.folder.row(cut.key)

    def _score(self, first: UniformCut) -> None:
        """One pass over the images for all metrics that share it."""
        group = [one for one in self.metrics if one.shares == first.metric.shares]
        phase = f"score {first.network}, {first.metric.shares}"
        settings = self.settings
        found = score_by(
            self.graphs[first.network],
            self.images.train,
            group,
            ScoreSettings(
                settings.num_images,
                num_map_images=settings.num_map_images,
                memory_gib=settings.memory_gib,
                seed=first.seed,
                task=settings.task,
            ),
            progress=lambda done, total: self._say(phase, done, total or done),
        )
        save_scores(found, self._scores_path(first))

    def _scores_path(self, cut: UniformCut) -> Path:
        shares = cut.metric.shares
        # A pass over all images is the same for all seeds.
        seedless = self.settings.num_images is None and not cut.metric.is_sampled
        seed = self.settings.seed if seedless else cut.seed
        name = "".join(c if c.isalnum() or c in "-_.=" else "-" for c in f"{cut.network}-{shares}-{seed}")
        return self.folder.path / "scores" / name

    def _scores_of(self, cut: UniformCut) -> Scores:
        path = self._scores_path(cut)
        if path not in self.scores:
            wait_until((path / "scores.json").exists)
            self.scores[path] = load_scores(path)
        return self.scores[path][cut.metric.name]

    def scores_of_all(self, network: str) -> dict[str, Scores]:
        """Scores of the pruned units by every metric, from the first sample; metrics without a file are left out."""
        names = units_to_prune(self.graphs[network], self.settings.units)
        cuts = [UniformCut(network, metric, 0.0, self.settings.seed) for metric in self.metrics]
        there = [cut for cut in cuts if (self._scores_path(cut) / "scores.json").exists()]
        every = {cut.metric.name: self._scores_of(cut) for cut in there}
        return {name: each.of_units([n for n in names if n in each.values]) for name, each in every.items()}

    def _row(self, cut: UniformCut, number: int, total: int) -> StudyRow:
        started = time.perf_counter()
        graph, scores = self.graphs[cut.network], self._scores_of(cut)
        plan = uniform(graph, scores, cut.ratio, units=units_to_prune(graph, self.settings.units))
        cost, name = graph.cost(plan), _digest(plan)
        same = self._same_measurement(cut, name)
        if same not in self.measured:
            self.measured[same] = self._measure(cut, plan, number, total)
        found = self.measured[same]
        return {
            "network": cut.network,
            "metric": cut.metric.name,
            "ratio": cut.ratio,
            "seed": cut.seed,
            "images": scores.num_images,
            "macs_removed": round(1 - cost.macs / graph.macs, 6),
            "params_removed": round(1 - cost.params / graph.params, 6),
            **{key: found[key] for key in MEASURED if key in found},
            "plan": name,
            "seconds": round(time.perf_counter() - started, 2),
        }

    def _measure(self, cut: UniformCut, plan: Plan, number: int, total: int) -> StudyRow:
        """Accuracy, or the task's quality, as cut and, if asked for, repaired and retrained."""
        graph, settings = self.graphs[cut.network], self.settings
        factor = QualityWords.of(self.task).factor
        note = f"row {number + 1} of {total}: {cut.network}, {cut.metric.name}, {cut.ratio:.0%} removed"

        def say(done: int, of: int | None) -> None:
            if of:
                self._say("evaluate", number * of + done, total * of, note)

        def measured(model: nn.Module) -> Accuracy:
            return accuracy_of(model, graph, self.images.test, self.task, say)

        model = pruned_or_same(graph, plan)
        row = dict(self._as_cut(cut, plan, model, say))
        if settings.repair != "none" and model is graph.model:  # nothing is removed, so there is nothing to repair
            row["repaired"] = row["accuracy"]
        elif settings.repair != "none":
            model = repair(graph, plan, self._repair_images(cut.seed), how=settings.repair, seed=cut.seed)
            row["repaired"] = round(factor * measured(model).top1, 4)
        if settings.epochs:
            row["retrained"] = round(factor * measured(self._retrained(cut, model)).top1, 4)
        return row

    def _as_cut(self, cut: UniformCut, plan: Plan, model: nn.Module, say: Progress) -> StudyRow:
        """Accuracy as cut, which is measured once for all seeds that remove the same channels."""
        key = cut.network, _digest(plan)
        if key not in self.measured_as_cut:
            found = accuracy_of(model, self.graphs[cut.network], self.images.test, self.task, say)
            self.measured_as_cut[key] = _figures(found, QualityWords.of(self.task).factor)
        return self.measured_as_cut[key]

    def _retrained(self, cut: UniformCut, model: nn.Module) -> nn.Module:
        checkpoint = self.folder.path / "checkpoints" / _digest(cut.key)
        batches = self.images.retrain_on
        phase = f"retrain {cut.key}"
        fitted = fit(
            model,
            batches(cut.seed) if callable(batches) else batches,
            preset=preset_of(self.settings.preset, epochs=self.settings.epochs, lr=self.settings.lr),
            device=device_of(model),
            seed=cut.seed,
            task=self.task,
            checkpoint_dir=checkpoint,
            progress=lambda news: self._say(phase, (news.epoch - 1) * news.steps + news.step, news.epochs * news.steps),
        )
        shutil.rmtree(checkpoint, ignore_errors=True)
        return fitted.model

    def _repair_images(self, seed: int) -> list[Any]:
        if seed not in self.samples:
            some = sampled(self.images.train, self.settings.num_repair_images, seed, self.task)
            self.samples[seed] = inputs_alone(self.task, some)
        return self.samples[seed]

    def _same_measurement(self, cut: UniformCut, plan: str) -> str:
        """Key that rows with equal measurements share. Repair and retraining depend on the seed, a cut does not."""
        seeded = self.settings.repair != "none" or self.settings.epochs > 0
        return f"{cut.network},{plan},{cut.seed if seeded else ''}"

    def _say(self, phase: str, done: int, total: int, note: str = "") -> None:
        self.progress(phase, done, total, note)


def units_to_prune(graph: ChannelGraph, which: Units) -> list[str]:
    """The names of the inner (private) units, or of all units that can be pruned."""
    found = [name for name in candidates(graph) if which == "all" or graph.units[name].kind == "private"]
    if not found:
        raise DecideError("the network has no inner units: all of its channels pass through additions; use units='all'")
    return found


def _figures(found: Accuracy, factor: float) -> StudyRow:
    return {
        "accuracy": round(factor * found.top1, 4),
        "top5": None if found.top5 is None else round(100 * found.top5, 4),
        "loss": round(found.loss, 6),
        "test_images": found.num_images,
    }


def _digest(what: Plan | str) -> str:
    text = what if isinstance(what, str) else json.dumps(sorted((name, list(kept)) for name, kept in what.keep.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
