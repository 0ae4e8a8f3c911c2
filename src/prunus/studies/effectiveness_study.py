"""The effectiveness study: which metric picks the channels that can be removed (the paper's Figs. 2 and 4).

Each metric removes the same fraction of every unit, and accuracy (or the task's quality) is measured before repair
and, if asked for, after a repair and after retraining. The study makes no decisions: all figures are of test images.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

import torch
from torch import Tensor, nn

from prunus.deciding.splits import uniform
from prunus.deciding.widths import candidates
from prunus.errors import DecideError, ModelError, TraceError
from prunus.graph.channel_graph import ChannelGraph, prune, trace
from prunus.graph.plan import Plan
from prunus.repairing.repair import repair
from prunus.run.context import first_image
from prunus.run.folder import CONFIG
from prunus.run.qualities import Predictions, read_predictions, write_predictions
from prunus.scoring.choice import ALL, ChosenMetric, choose_metrics, without_classes
from prunus.scoring.metrics import METRICS
from prunus.scoring.passes import sampled
from prunus.scoring.score import score
from prunus.scoring.scores import Scores, load_scores, rank_correlation, save_scores
from prunus.ship.fold import fold_batch_norm
from prunus.studies.effectiveness_tables import STAGES, as_latex, column_of, draw_effectiveness, write_correlations
from prunus.studies.folder import Provenance, StudyFolder, StudyRow, processes_apart, wait_until
from prunus.studies.settings import EffectivenessSettings
from prunus.tasks import Task, task_of
from prunus.tasks.evaluate import Evaluation, See, evaluate_by_class, inputs_alone, unpack_for
from prunus.tasks.paired import ByImage, ImageValues, paired_test
from prunus.tasks.quality import ACCURACY, QualityText
from prunus.train.checkpoint import digest
from prunus.train.fit import fit
from prunus.train.settings import preset_of
from prunus.util.batches import Batch, Batches, device_of, order_channels_last
from prunus.util.options import plain, replaced
from prunus.util.progress import PhaseProgress, phases, shown

BEFORE_REPAIR = ("accuracy", "top5", "loss", "test_images")
MEASURED = (*BEFORE_REPAIR, "repaired", "retrained")
TITLE = "Which metric picks the channels that can be removed?"
ALPHA = 0.05  # of the paired tests
BATCH = 32  # images per batch whose activations fit in the cache
KEPT_BYTES = 2**30  # of images in memory; larger data sets are read again each time

RetrainOn = Batches | Callable[[int], Batches]  # batches, or a function of the seed that returns them


def averaged(single: Sequence[StudyRow]) -> list[StudyRow]:
    """One row per network, metric and ratio: means over the seeds, and their standard errors if there are several.

    The standard error of the mean of n seeds is their standard deviation / sqrt(n).
    """
    groups: dict[tuple[Any, ...], list[StudyRow]] = {}
    for row in single:
        groups.setdefault((row["network"], row["metric"], row["ratio"]), []).append(row)
    means = []
    for rows in groups.values():
        first = rows[0]
        row = {key: first[key] for key in ("network", "metric", "ratio", "images")} | {"seeds": len(rows)}
        row |= {key: round(mean(each[key] for each in rows), 6) for key in ("macs_removed", "params_removed")}
        for stage in (stage for stage in STAGES if stage in first):
            values = [each[stage] for each in rows]
            row[stage] = round(mean(values), 4)
            error = round(stdev(values) / math.sqrt(len(values)), 4) if len(values) > 1 else None
            row |= {column_of("standard_error", stage): error, column_of("p", stage): None}  # p: `against_the_best`
        row["top5"] = None if first["top5"] is None else round(mean(each["top5"] for each in rows), 4)
        row["loss"] = round(mean(each["loss"] for each in rows), 6)
        means.append(row)
    return means


def sentences(rows: Sequence[StudyRow], single: Sequence[StudyRow], text: QualityText) -> list[str]:
    """Notes on the quality before pruning and on the best metric at each ratio."""
    notes = []
    for network in dict.fromkeys(row["network"] for row in rows):
        mine = [row for row in rows if row["network"] == network]
        base = next(row for row in mine if row["ratio"] == 0)
        images = next(row["test_images"] for row in single if row["network"] == network)
        value = f"{text.name_unless_accuracy}{text.scaled(base['accuracy'])}"
        notes.append(f"{network}: {value} on {images:,} test images before pruning.")
        for stage in (stage for stage in STAGES if stage in base):
            best = []
            for ratio in sorted({row["ratio"] for row in mine} - {0}):
                top = max((row for row in mine if row["ratio"] == ratio), key=lambda row: float(row[stage]))
                best.append(f"{top['metric']} at {ratio:.0%} ({text.scaled(top[stage])})")
            if best:
                notes.append(f"{network}, {STAGES[stage]}, the best metric: {', '.join(best)}.")
    notes.append("No decision used the test images: every metric removes the same fraction of every unit.")
    return notes


@dataclass(frozen=True)
class UniformCut:
    """One row of the study: a network cut by a metric at a ratio, with a seed."""

    network: str
    metric: ChosenMetric
    ratio: float
    seed: int

    @property
    def key(self) -> str:
        return f"{self.network},{self.metric.name},{self.ratio:g},{self.seed}"


@dataclass
class MetricComparison:
    """The study while it runs: each network is cut by each metric, at each ratio and with each seed."""

    folder: StudyFolder
    settings: EffectivenessSettings
    metrics: Sequence[ChosenMetric]
    graphs: Mapping[str, ChannelGraph]
    train: Batches  # to score and repair on
    retrain_on: RetrainOn
    test: Batches  # to measure on
    progress: PhaseProgress
    # By network, plan and seed. What does not depend on the seed, as a cut before repair, is stored without it.
    measured: dict[tuple[str, str, int | None], StudyRow] = field(default_factory=dict)
    scores: dict[Path, dict[str, Scores]] = field(default_factory=dict)
    samples: dict[int, list[Any]] = field(default_factory=dict)  # seed -> images for the repair

    def cuts(self) -> list[UniformCut]:
        """All rows of the study, including ratio 0, the unpruned network."""
        each = itertools.product(
            self.graphs, self.settings.each_seed, self.metrics, sorted({0.0, *self.settings.ratios})
        )
        return [UniformCut(network, metric, ratio, seed) for network, seed, metric, ratio in each]

    def run(self, rank: int, world: int) -> list[StudyRow]:
        """Compute this process's share of the missing rows, wait for the other processes, and return all rows."""
        cuts, row_of = self.cuts(), self.folder.row
        for cut in cuts:
            if (row := row_of(cut.key)) is not None:
                self.measured[cut.network, row["plan"], cut.seed] = row
                self.measured[cut.network, row["plan"], None] = {key: row[key] for key in BEFORE_REPAIR}
        # Passes and rows are assigned by their position among all of them, not among the missing ones: a process that
        # starts late would count differently, and some rows would belong to no process.
        for path in list(dict.fromkeys(map(self._scores_path, cuts)))[rank::world]:
            waiting = [cut for cut in cuts if self._scores_path(cut) == path and row_of(cut.key) is None]
            if waiting and not (path / "scores.json").exists():
                self._score(waiting[0])
        mine = [cut for cut in cuts[rank::world] if row_of(cut.key) is None]
        for number, cut in enumerate(mine):
            note = f"{cut.network}, {cut.metric.name}, {cut.ratio:.0%} removed"
            self.progress("evaluate", number, len(mine), note)
            self.folder.keep(cut.key, self._row(cut))
        wait_until(lambda: all(row_of(cut.key) is not None for cut in cuts))
        return [row for cut in cuts if (row := row_of(cut.key)) is not None]

    def _score(self, first: UniformCut) -> None:
        settings, phase = self.settings, f"score {first.network}, {first.metric.shares}"
        scores = score(
            self.graphs[first.network],
            self.train,
            [one for one in self.metrics if one.shares == first.metric.shares],
            settings.num_images,
            num_map_images=settings.num_map_images,
            memory=settings.memory,
            seed=first.seed,
            task=settings.task,
            progress=lambda done, total: self.progress(phase, done, total or done, ""),
        )
        save_scores(scores, self._scores_path(first))

    def _scores_path(self, cut: UniformCut) -> Path:
        # A pass over all images is the same for all seeds.
        seedless = self.settings.num_images is None and not cut.metric.is_sampled
        name = f"{cut.network}-{cut.metric.shares}-{self.settings.seed if seedless else cut.seed}"
        return self.folder.path / "scores" / "".join(c if c.isalnum() or c in "-_.=" else "-" for c in name)

    def _scores_of(self, cut: UniformCut) -> Scores:
        path = self._scores_path(cut)
        if path not in self.scores:
            wait_until((path / "scores.json").exists)
            self.scores[path] = load_scores(path)
        return self.scores[path][cut.metric.name]

    def correlations(self, network: str) -> dict[str, dict[str, float]]:
        """metric -> metric -> Spearman's rank correlation of their scores, averaged over the pruned units of both.

        Scores are those of the first sample; metrics without a file are left out.
        """
        units = units_to_prune(self.graphs[network], self.settings.units)
        cuts = [UniformCut(network, metric, 0.0, self.settings.seed) for metric in self.metrics]
        there = [cut for cut in cuts if (self._scores_path(cut) / "scores.json").exists()]
        every = {cut.metric.name: self._scores_of(cut) for cut in there}
        pruned = {name: each.of_units([u for u in units if u in each.values]) for name, each in every.items()}
        return {a: {b: round(rank_correlation(x, y), 4) for b, y in pruned.items()} for a, x in pruned.items()}

    def _row(self, cut: UniformCut) -> StudyRow:
        started = time.perf_counter()
        graph, scores = self.graphs[cut.network], self._scores_of(cut)
        plan = uniform(graph, scores, cut.ratio, units=units_to_prune(graph, self.settings.units))
        cost = graph.cost(plan)
        name = _digest(json.dumps(sorted((unit, list(kept)) for unit, kept in plan.keep.items())))
        recovers = (
            self.settings.repair != "none" or self.settings.epochs > 0
        )  # which depends on the seed; a cut does not
        same = cut.network, name, cut.seed if recovers else None
        if same not in self.measured:
            self.measured[same] = self._measure(cut, plan, name)
        measured = self.measured[same]
        return {
            "network": cut.network,
            "metric": cut.metric.name,
            "ratio": cut.ratio,
            "seed": cut.seed,
            "images": scores.num_images,
            "macs_removed": round(1 - cost.macs / graph.macs, 6),
            "params_removed": round(1 - cost.params / graph.params, 6),
            **{key: measured[key] for key in MEASURED if key in measured},
            "plan": name,
            "seconds": round(time.perf_counter() - started, 2),
        }

    def _measure(self, cut: UniformCut, plan: Plan, name: str) -> StudyRow:
        """Accuracy, or the task's quality, before repair and, if asked for, after repair and retraining."""
        graph, settings, task = self.graphs[cut.network], self.settings, task_of(self.settings.task)
        factor = QualityText.of(task).factor
        before = cut.network, name, None

        def measured(model: nn.Module, stage: str) -> Evaluation:
            images = ByImage(task)
            evaluation = accuracy_of(model, graph, self.test, task, images.add)
            if (values := images.result()) is not None:
                kept = Predictions({stage: values}, "test", task.measured.name)
                write_predictions(self._predictions_path(cut, name, stage), kept)
            return evaluation

        model = pruned_or_same(graph, plan)
        if before not in self.measured:
            result = measured(model, "accuracy")
            self.measured[before] = {
                "accuracy": round(factor * result.quality, 4),
                "top5": None if result.top5 is None else round(100 * result.top5, 4),
                "loss": round(result.loss, 6),
                "test_images": result.num_images,
            }
        row = dict(self.measured[before])
        if settings.repair != "none" and model is graph.model:  # nothing is removed, so there is nothing to repair
            row["repaired"] = row["accuracy"]
        elif settings.repair != "none":
            if cut.seed not in self.samples:
                some = sampled(self.train, settings.num_repair_images, cut.seed, task)
                self.samples[cut.seed] = inputs_alone(task, some)
            model = repair(graph, plan, self.samples[cut.seed], how=settings.repair, seed=cut.seed)
            row["repaired"] = round(factor * measured(model, "repaired").quality, 4)
        if settings.epochs:
            checkpoint, batches = self.folder.path / "checkpoints" / _digest(cut.key), self.retrain_on
            phase = f"retrain {cut.key}"
            retrained = fit(
                model,
                batches(cut.seed) if callable(batches) else batches,
                preset=preset_of(settings.preset, epochs=settings.epochs, lr=settings.lr),
                device=device_of(model),
                seed=cut.seed,
                task=task,
                checkpoint_dir=checkpoint,
                progress=lambda news: self.progress(
                    phase, (news.epoch - 1) * news.steps + news.step, news.epochs * news.steps, ""
                ),
            )
            shutil.rmtree(checkpoint, ignore_errors=True)
            row["retrained"] = round(factor * measured(retrained.model, "retrained").quality, 4)
        return row

    def _predictions_path(self, cut: UniformCut, plan: str, stage: str) -> Path:
        """What each test image adds to the quality. Before repair it is the same for all seeds that cut alike."""
        seed = "" if stage == "accuracy" else f",{cut.seed}"
        return self.folder.path / "predictions" / f"{stage}-{_digest(f'{cut.network},{plan}{seed}')}.safetensors"

    def against_the_best(self, rows: Sequence[StudyRow]) -> list[str]:
        """Write into each row the p-value of a paired test against the best metric of its network, ratio and stage.

        The networks of the first seed are compared, on the same test images. Returns a note for each stage and ratio:
        which metrics cannot be told from the best one (p > 0.05).
        """
        task = task_of(self.settings.task)
        chosen, notes = {metric.name: metric for metric in self.metrics}, []
        for (network, stage), ratio in itertools.product(
            itertools.product(self.graphs, (stage for stage in STAGES if stage in rows[0])), self.settings.ratios
        ):
            mine = [row for row in rows if (row["network"], row["ratio"]) == (network, ratio) and ratio > 0]
            values: dict[str, ImageValues] = {}
            for row in mine:
                cut = UniformCut(network, chosen[row["metric"]], ratio, self.settings.seed)
                plan = (self.folder.row(cut.key) or {}).get("plan", "")
                predictions = read_predictions(self._predictions_path(cut, plan, stage))
                if predictions is not None:
                    values[row["metric"]] = predictions.of[stage]
            if len(values) < 2:
                continue
            best = max((row for row in mine if row["metric"] in values), key=lambda row: float(row[stage]))["metric"]
            alike = []
            for row in mine:
                if row["metric"] in values and row["metric"] != best:
                    test = paired_test(values[best], values[row["metric"]], task.measured.value)
                    row[column_of("p", stage)] = float(f"{test.p:.3g}")
                    alike += [row["metric"]] if test.p > ALPHA else []
            others = f"and not told from it (p > {ALPHA}): {', '.join(alike)}" if alike else "and told from all others"
            notes.append(
                f"{network}, {STAGES[stage]}, {ratio:.0%} removed: {best} is the best, {others}, by paired tests."
            )
        return notes


def units_to_prune(graph: ChannelGraph, which: Literal["inner", "all"]) -> list[str]:
    """The names of the inner (private) units, or of all units that can be pruned."""
    names = [name for name in candidates(graph) if which == "all" or graph.units[name].kind == "private"]
    if not names:
        raise DecideError("the network has no inner units: all of its channels pass through additions; use units='all'")
    return names


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# -- fast accuracy of many pruned versions of a network on the same images


def in_memory(loader: Batches, task: Task | None = None) -> Batches:
    """The loader's batches in memory, channels_last; the loader itself if they would take more than 1 GiB."""
    kept: list[Batch] = []
    room = KEPT_BYTES
    chosen = task_of(task)
    if chosen.inputs is not None:  # it takes the loader's batches, whatever they are
        return loader
    for number, batch in enumerate(loader):
        images, labels = unpack_for(chosen, batch, number)
        if not isinstance(images, Tensor) or images.ndim != 4 or images.nbytes > room:
            return loader
        room -= images.nbytes
        kept.append((images.contiguous(memory_format=torch.channels_last), labels))
    return kept


def pruned_or_same(graph: ChannelGraph, plan: Plan) -> nn.Module:
    """The pruned network; the network itself if the plan removes nothing."""
    return prune(graph, plan) if any(plan.removed().values()) else graph.model


def accuracy_of(
    model: nn.Module, graph: ChannelGraph, test: Batches, task: Task | None = None, also: See | None = None
) -> Evaluation:
    """The result of `prunus.evaluate` for a pruned version of the graph's network, in less time.

    also: Sees outputs, labels and the number of images of each batch.
    """
    if model is not graph.model:  # a faster copy with the same output
        try:
            model = fold_batch_norm(model, graph.example)
        except (ModelError, TraceError):  # keep batch norms that cannot be folded
            model = copy.deepcopy(model)
        model = order_channels_last(model)
    evaluation, _ = evaluate_by_class(model, test, task_of(task), also)
    return evaluation


def effectiveness(
    models: nn.Module | Mapping[str, nn.Module],
    train: Batches,
    test: Batches,
    folder: str | Path,
    *,
    settings: EffectivenessSettings | None = None,
    retrain_on: RetrainOn | None = None,
    example: Any = None,
    provenance: Provenance | None = None,
    progress: PhaseProgress | bool | None = None,
    **changes: Any,
) -> list[StudyRow]:
    """Compare metrics by the accuracy that uniform pruning leaves. Returns one row per network, metric and ratio.

        rows = prunus.studies.effectiveness(model, train, test, "runs/metrics", ratios=(0.1, 0.3), num_images=5000)

    Args:
        models: One network, or several by name. They are not changed.
        train: Images to score on.
        test: Images to measure on.
        folder: For the table, the picture and all finished rows. The same call continues a study that was stopped, and
            so does a call with more ratios or seeds. Under torchrun the processes share the rows.
        settings: An `EffectivenessSettings`.
        retrain_on: Batches to retrain on if not `train`, or a function of the seed that returns them.
        example: One input of the network; an image of `train` by default.
        provenance: What the folder records in addition, such as the data set.
        progress: False shows nothing.
        changes: Fields of `EffectivenessSettings` by name (metrics, ratios, units, repair, ...).
    """
    chosen: EffectivenessSettings = replaced(settings or EffectivenessSettings(), changes, DecideError)
    chosen.check()
    named = dict(models) if isinstance(models, Mapping) else {type(models).__name__: models}
    compared = choose_metrics([name for each in chosen.metrics for name in (METRICS if each == ALL else [each])])
    task = task_of(chosen.task)
    if ALL in chosen.metrics:
        compared = without_classes(compared, task)
    networks = {name: digest(model) for name, model in named.items()}
    asked = {**plain(chosen), "metrics": [one.name for one in compared], "networks": networks}
    place = StudyFolder(folder, "effectiveness", asked, provenance, only_names_rows=("ratios", "seeds"))
    with processes_apart() as (rank, world), shown(progress, phases) as report:
        if rank == 0:
            place.start({"train": train, "test": test})
        wait_until((place.path / CONFIG).exists)
        example = example if example is not None else first_image(train, device_of(next(iter(named.values()))), task)
        graphs = {name: trace(model, example, chosen.streams) for name, model in named.items()}
        measure_on = in_memory(test, task)
        comparison = MetricComparison(place, chosen, compared, graphs, train, retrain_on or train, measure_on, report)
        single = comparison.run(rank, world)
        rows = averaged(single)
        tested = comparison.against_the_best(rows)
        if rank == 0:
            alike = {network: comparison.correlations(network) for network in graphs}
            text = QualityText.of(task)
            value = "accuracy" if text == ACCURACY else "quality"  # what is no accuracy is not called so
            named_rows = [{value if key == "accuracy" else key: each for key, each in row.items()} for row in rows]
            unit = f" ({text.unit})" if text.unit else ""
            columns = {
                "ratio": "fraction of channels removed",
                "images": "number of images scored on",
                "macs_removed": "fraction of MACs removed",
                "params_removed": "fraction of weights removed",
                "top5": "top-5 (%)",
            }
            for stage, when in STAGES.items():
                columns[value if stage == "accuracy" else stage] = f"{text.name} {when}{unit}"
                columns[column_of("standard_error", stage)] = "standard error over seeds"
                columns[column_of("p", stage)] = "p against the best"
            pictures = [draw_effectiveness(rows, place.path, text), *write_correlations(alike, place.path)]
            notes = [*sentences(rows, single, text), *tested]
            place.finish(TITLE, named_rows, pictures, notes, columns=columns, latex=as_latex(rows, text))
    return rows
