"""Settings of a training run. Importing this module does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from secateur.base.options import option
from secateur.errors import RunError
from secateur.measuring.task_setting import task_option
from secateur.measuring.tasks import Task
from secateur.training.distillation import Distillation
from secateur.training.presets import DEFAULT_PRESET, PRESETS, Preset, preset_of
from secateur.training.trackers import TrackerSettings

GROUP = "Fine-tuning"


@dataclass(frozen=True)
class FineTuning:
    """How training treats a network that is good already. `secateur train` and `secateur prune` have these alike.

    views: epoch n draws what epoch n - views drew: order of images, augmentation, dropout. The teacher answers each
        batch once (`secateur.training.teacher`).
    batch_norm: frozen keeps the statistics; scales and shifts train.
    mixup: see `secateur.training.mixup`. ema: see `secateur.training.averaging`.
    distill_features: see `secateur.training.feature_maps`.
    """

    warmup: float | None = option(
        None, "Share of the run in which the rate rises; the preset's by default", group=GROUP, least=0, below=1
    )
    batch_norm: Literal["live", "frozen"] = option(
        "live", "Batch-norm statistics: live or frozen", group=GROUP, choices=("live", "frozen")
    )
    mixup: float = option(0.0, "Mix pairs of images; 0.2 is common, 0 for none", group=GROUP, least=0)
    ema: float = option(
        0.0, "Return averaged weights; decay per step such as 0.999, 0 for none", group=GROUP, least=0, below=1
    )
    temperature: float = option(4.0, "Temperature of the distillation", group=GROUP, above=0)
    distill_weight: float = option(0.5, "Weight of the teacher in the loss", group=GROUP, least=0, most=1)
    distill_features: float = option(0.0, "Weight of the distance to the teacher's feature maps", group=GROUP, least=0)
    views: int | None = option(
        None,
        "Repeat order and augmentation after this number of epochs, so that a teacher answers once",
        group=GROUP,
        least=1,
    )
    mixed_precision: Literal["no", "bf16", "fp16"] = option(
        "no", "no, bf16 (faster on CPUs with AVX512-BF16) or fp16 (GPUs)", group=GROUP, choices=("no", "bf16", "fp16")
    )

    @property
    def distillation(self) -> Distillation:
        """The teacher's part of the loss, if there is a teacher."""
        return Distillation(self.temperature, self.distill_weight, self.distill_features)

    @property
    def idle_without_teacher(self) -> str | None:
        """The first setting that was changed and does nothing without a teacher."""
        plain = FineTuning()
        names = ("temperature", "distill_weight", "distill_features")
        return next((name for name in names if getattr(self, name) != getattr(plain, name)), None)

    @property
    def fine_tuning(self) -> dict[str, Any]:
        """These settings by name, without those that a class adds."""
        return {field.name: getattr(self, field.name) for field in fields(FineTuning)}


@dataclass(frozen=True)
class TrainingSettings(TrackerSettings, FineTuning):
    """How to train. `epochs` and `lr` replace those of the preset; `FineTuning` has the rest.

    keep_best: the network before the first epoch counts as epoch 0; of equal epochs the last is taken.
    first_epoch: number of epochs that were trained before; this training draws other random numbers than they did.
    sparsity, sparsity_by: see `secateur.training.sparsity`. soft_prune: see `secateur.training.soft_filters`.
    task: what the network is for: a `Task` or the name of one; classification by default.
    device: None takes the best available.
    about: what else identifies the run (data set, augmentation), as JSON values. A checkpoint of a run with other
        settings is refused.
    """

    preset: str | Preset = option(
        DEFAULT_PRESET,
        f"Schedule: {', '.join(PRESETS)}; {DEFAULT_PRESET} by default",
        group="Training",
        parse=str,
        valid=preset_of,
    )
    epochs: int | None = option(None, "Number of epochs, instead of the preset's", group="Training", least=1)
    lr: float | None = option(None, "Learning rate, instead of the preset's", group="Training", above=0)
    channels_last: bool = option(True, "Memory layout that is faster for most convolutions", group="Training")
    seed: int = option(0, "Seed of initial weights, held-out images, order and augmentation", group="Training", least=0)
    sparsity: float = option(
        0.0, "Penalty on batch-norm scales, as in network slimming (1e-4) and SSS", group="Sparsity", least=0
    )
    sparsity_by: Literal["l1", "proximal"] = option(
        "l1", "How the penalty acts: l1 (slimming) or proximal (SSS)", group="Sparsity", choices=("l1", "proximal")
    )
    soft_prune: float = option(
        0.0, "Fraction of filters set to zero after each epoch, as in SFP", group="Sparsity", least=0, below=1
    )
    keep_best: bool = option(
        False, "Return the epoch with the best held-out quality, not the last one", group="Training", hidden=True
    )
    first_epoch: int = option(0, "Number of epochs that were trained before", group="Training", least=0, hidden=True)
    task: str | Task | None = task_option()
    device: Any = None  # a torch.device or its name
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def schedule(self) -> Preset:
        """The preset, with epochs, learning rate and warm-up replaced if they are given."""
        return preset_of(self.preset, epochs=self.epochs, lr=self.lr).warmed_up(self.warmup)

    def drawn_epoch(self, epoch: int) -> int:
        """The epoch whose random numbers this one uses: order of images, augmentation, dropout."""
        return self.first_epoch + (epoch if self.views is None else epoch % self.views)


def check_together(settings: TrainingSettings) -> None:
    """Refuse settings that do nothing, or cannot work, beside each other."""
    if settings.sparsity_by != "l1" and not settings.sparsity:
        raise RunError(
            f"sparsity_by={settings.sparsity_by} does nothing without sparsity: give sparsity as well (--sparsity 1e-4)"
        )
    if settings.ema and settings.soft_prune:
        raise RunError("ema and soft_prune cannot be combined: filters that are zero now and then have no zero average")
