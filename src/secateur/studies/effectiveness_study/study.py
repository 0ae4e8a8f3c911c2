"""The effectiveness study: which metric picks the channels that can be removed (the paper's Figs. 2 and 4).

Each metric removes the same fraction of every unit, and accuracy (or the task's quality) is measured as cut and, if
asked for, after a repair and after retraining. The study makes no decisions, so all figures are of the test images.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from secateur.base.batches import Batches, device_of
from secateur.base.options import plain, replaced
from secateur.base.progress import PhaseProgress, phases, shown
from secateur.channels.graph import trace
from secateur.errors import DecideError
from secateur.measuring.quality_words import QualityWords
from secateur.measuring.tasks import is_classification, task_of
from secateur.running.example_input import first_image
from secateur.scoring.evidence_sources import without_classes
from secateur.scoring.metric_choice import ALL, choose_metrics
from secateur.scoring.metrics import METRICS
from secateur.scoring.settings import ScoreSettings
from secateur.studies.effectiveness_study.comparison import ComparisonImages, MetricComparison, RetrainOn
from secateur.studies.effectiveness_study.correlations import correlation_table, write_correlations
from secateur.studies.effectiveness_study.picture import draw_effectiveness
from secateur.studies.effectiveness_study.settings import EffectivenessSettings
from secateur.studies.effectiveness_study.table import averaged, columns, sentences, written
from secateur.studies.fast_evaluate import in_memory
from secateur.studies.folder import CONFIG, Provenance, StudyFolder, StudyRow
from secateur.studies.work_sharing import processes_apart, wait_until
from secateur.training.checkpoint import digest

TITLE = "Which metric picks the channels that can be removed?"


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

        rows = secateur.studies.effectiveness(model, train, test, "runs/metrics", ratios=(0.1, 0.3), num_images=5000)

    models: one network, or several by name; they are not changed. train: images to score on. test: to measure on.
    settings, changes: `EffectivenessSettings`, or its fields by name (metrics=, ratios=, units=, repair=, ...).
    retrain_on: batches to retrain on if not `train`, or a function of the seed that returns them.
    folder: for the table, the picture and all finished rows. The same call continues a study that was stopped, and so
        does a call with more ratios or seeds. Under torchrun the processes share the rows.
    provenance: what the folder records in addition, such as the data set; a study that continues must have the same.
    """
    chosen: EffectivenessSettings = replaced(settings or EffectivenessSettings(), changes, DecideError)
    chosen.check()
    named = dict(models) if isinstance(models, Mapping) else {type(models).__name__: models}
    compared = choose_metrics([name for each in chosen.metrics for name in (METRICS if each == ALL else [each])])
    task = task_of(chosen.task)
    if ALL in chosen.metrics:
        compared = without_classes(compared, ScoreSettings(task=task))
    asked = {**plain(chosen), "metrics": [one.name for one in compared]}
    if is_classification(task):  # as in folders of older versions
        del asked["task"]
    if chosen.memory_gib == EffectivenessSettings().memory_gib:  # likewise
        del asked["memory_gib"]
    asked["networks"] = {name: digest(model) for name, model in named.items()}
    place = StudyFolder(folder, "effectiveness", asked, provenance, only_names_rows=("ratios", "num_seeds"))
    with processes_apart() as (rank, world), shown(progress, phases) as report:
        if rank == 0:
            place.start()
        wait_until((place.path / CONFIG).exists)
        example = example if example is not None else first_image(train, device_of(next(iter(named.values()))), task)
        graphs = {name: trace(model, example, chosen.streams) for name, model in named.items()}
        images = ComparisonImages(train, retrain_on or train, in_memory(test, task))
        comparison = MetricComparison(place, chosen, compared, graphs, images, report)
        comparison.run(rank, world)
        single = comparison.finished_rows()
        rows = averaged(single)
        if rank == 0:
            alike = {network: correlation_table(comparison.scores_of_all(network)) for network in graphs}
            words = QualityWords.of(task)
            pictures = [draw_effectiveness(rows, place.path, words), *write_correlations(alike, place.path)]
            place.finish(TITLE, written(rows, words), pictures, sentences(rows, single, words), columns=columns(words))
    return rows
