"""The loss that a run minimises: the task's, and the teacher's part if there is a teacher."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from secateur.errors import RunError
from secateur.measuring.outputs import squared_distance
from secateur.measuring.quality_sums import mean_loss
from secateur.measuring.tasks import Task, is_classification
from secateur.training.distillation import Distillation
from secateur.training.feature_maps import FeatureMaps
from secateur.training.mixup import Targets
from secateur.training.sparsity import Objective
from secateur.training.teacher import Teacher


def plain_objective(task: Task) -> Objective:
    """The loss of the task alone."""
    return lambda outputs, _images, labels: mean_loss(task, outputs, labels)


def distilled_objective(task: Task, teacher: Teacher, soft: Distillation, maps: FeatureMaps) -> Objective:
    """The loss with a teacher; `maps` are those of the network that is trained, the teacher's have the same names."""

    def distil(outputs: Any, images: Any, labels: Any) -> Tensor:
        answers, its_maps = teacher.answer(images)
        answers = answers if task.outputs is None else task.outputs(answers)  # logits [N, K]
        if isinstance(outputs, Tensor) and answers.shape != outputs.shape:
            raise RunError(
                f"the teacher's outputs are {list(answers.shape)}, the network's {list(outputs.shape)}; "
                "both must have the same classes"
            )
        if is_classification(task):
            loss = soft.loss(outputs, answers, labels)
        else:
            loss = soft.mixed(task, outputs, answers, labels)
        return loss + soft.features * squared_distance(maps.found(), its_maps) if soft.features else loss

    return distil


def summed(objective: Objective, outputs: Any, images: Any, targets: Targets) -> Tensor:
    """The sum of the objective over all labels of a batch, by their shares."""
    if len(targets) == 1:
        return objective(outputs, images, targets[0][1])
    parts = [share * objective(outputs, images, labels) for share, labels in targets]
    return sum(parts[1:], parts[0])
