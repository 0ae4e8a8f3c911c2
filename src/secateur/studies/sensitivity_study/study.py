"""The sensitivity study: two ways of choosing the units to prune (the paper's Fig. 5).

Two arms start from one network that has already lost some of its MACs. In a few iterations of pruning and retraining,
one arm ranks units by the FLOP-normalised sensitivity analysis (Algorithm 1) and the other by that of Li et al. Both
use the same metric and epochs, and remove the same MACs in each iteration. Held-out images decide; the test images are
only read when an arm is finished.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from secateur.base.batches import Batches, device_of
from secateur.base.options import replaced
from secateur.base.progress import PhaseProgress, phases, shown
from secateur.channels.files import load
from secateur.channels.graph import trace
from secateur.errors import DecideError
from secateur.measuring.tasks import task_of
from secateur.running.example_input import first_image
from secateur.running.run_context import RunData
from secateur.studies.folder import CONFIG, Provenance, StudyFolder, StudyRow
from secateur.studies.sensitivity_study.arms import SensitivityArms
from secateur.studies.sensitivity_study.picture import draw_sensitivity
from secateur.studies.sensitivity_study.settings import SensitivityStudySettings
from secateur.studies.sensitivity_study.table import METHODS, columns, sentences
from secateur.studies.work_sharing import processes_apart, wait_until
from secateur.training.checkpoint import digest

TITLE = "FLOP-normalised sensitivity analysis compared with that of Li et al."


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

        secateur.studies.sensitivity(model, train, holdout, "runs/fig5", test=test, end=0.5, metric="gsd", epochs=3)

    model: the trained network, which is not changed. holdout: images for decisions. test: images for the report.
    settings: fields of `SensitivityStudySettings` by name: start=, end=, iterations=, and those of `secateur.compress`
        (metric=, epochs=, lr=, preset=, k=, repair=, num_images=, seed=, ...) except its goals and its split.
    folder: the same call continues a study that was stopped. Under torchrun the processes share the two arms.
    provenance: what the folder records in addition, such as the data set; a study that continues must have the same.
    """
    chosen: SensitivityStudySettings = replaced(SensitivityStudySettings(), settings, DecideError)
    chosen.check()
    asked = {**chosen.to_dict(), "network": digest(model)}
    # alpha: folders of older versions have one, though it is solved
    place = StudyFolder(folder, "sensitivity", asked, provenance, only_names_rows=("alpha",))
    images = RunData(train, score_on if score_on is not None else train, holdout, test)
    example = example if example is not None else first_image(train, device_of(model), task_of(chosen.task))
    graph = trace(model, example, chosen.streams)
    with processes_apart() as (rank, world), shown(progress, phases) as report:
        if rank == 0:
            place.start()
        wait_until((place.path / CONFIG).exists)
        study = SensitivityArms(place, graph, chosen, images, report)
        base = study.base(rank)
        first = study.start(chosen.start, rank) if isinstance(chosen.start, float | int) else load(chosen.start, model)
        for method in list(METHODS)[rank::world]:
            study.run_arm(method, first)
        wait_until(study.finished)
        rows = study.rows()
        if rank == 0:
            words = chosen.quality
            pictures = [draw_sensitivity(rows, base, place.path, words)]
            place.finish(TITLE, rows, pictures, sentences(rows, base, words), columns=columns(words))
    return rows
