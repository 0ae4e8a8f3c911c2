"""Knowledge distillation (Hinton et al. 2015): the network also learns from the outputs of a teacher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from secateur.errors import RunError

if TYPE_CHECKING:
    from typing import Any

    from torch import Tensor

    from secateur.measuring.tasks import Task


@dataclass(frozen=True)
class Distillation:
    """Temperature T that softens both networks' outputs, and the weight w of the teacher's part of the loss.

    features: weight of the distance between feature maps, which is added to the loss.
    """

    temperature: float = 4.0
    weight: float = 0.5
    features: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values for which the formula has no meaning."""
        if not self.temperature > 0 or not 0 <= self.weight <= 1 or not self.features >= 0:
            raise RunError(f"distillation needs temperature > 0, 0 <= weight <= 1 and features >= 0, got {self}")

    def loss(self, student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
        """(1 - w) CE(student, labels) + w T^2 KL(softmax(teacher / T) || softmax(student / T)), mean over images.

        T^2 keeps the gradient of the second term about as large as that of the first for any T.
        """
        from torch.nn import functional as F  # here, because settings must not import torch

        from secateur.measuring.outputs import at_least_float32

        student, teacher = at_least_float32(student), at_least_float32(teacher)  # [N, K]
        soft_student = F.log_softmax(student / self.temperature, dim=1)  # [N, K]
        soft_teacher = F.log_softmax(teacher / self.temperature, dim=1)  # [N, K]
        divergence = F.kl_div(soft_student, soft_teacher, reduction="batchmean", log_target=True)
        hard = F.cross_entropy(student, labels)
        return (1 - self.weight) * hard + self.weight * self.temperature**2 * divergence

    def mixed(self, task: Task, student: Any, teacher: Any, labels: Any) -> Tensor:
        """(1 - w) task.loss(student, labels) + w task.distil(student, teacher, T), for any task."""
        from secateur.measuring.outputs import squared_distance
        from secateur.measuring.quality_sums import mean_loss

        soft = (task.distil or squared_distance)(student, teacher, self.temperature)
        return (1 - self.weight) * mean_loss(task, student, labels) + self.weight * soft
