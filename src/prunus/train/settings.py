"""Settings of a training run. Importing this module does not import torch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal

from prunus.errors import RunError
from prunus.tasks import Task
from prunus.tasks.quality import task_option
from prunus.train.trackers import TrackerSettings
from prunus.util.options import option
from prunus.util.registry import unknown

DEFAULT_PRESET = "cosine"  # of `fit` and `compress`: the shortest, and good for retraining
LONGEST_WARMUP = 0.1  # of the run: one shorter than its warm-up would never reach the full rate


@dataclass(frozen=True)
class Preset:
    """Number of epochs and learning rate schedule.

    Attributes:
        name: Of the preset.
        epochs: Number of epochs.
        lr: The learning rate.
        batch_size: Images per step, over all processes.
        schedule: "steps": lr x factor^(number of milestones passed); "cosine": lr x (1 + cos(pi x fraction of the
            epochs done after the warm-up)) / 2.
        milestones: As fractions of all epochs.
        factor: Of the rate, at each milestone.
        warmup: Epochs in which the rate rises linearly, at most a tenth of the run.
        momentum: Of SGD, with Nesterov's step.
        weight_decay: Of SGD.
    """

    name: str
    epochs: int
    lr: float
    batch_size: int
    schedule: Literal["steps", "cosine"] = "steps"
    milestones: tuple[float, ...] = (0.4, 0.8)
    factor: float = 0.2
    warmup: float = 0.0
    momentum: float = 0.9
    weight_decay: float = 1e-4

    def __post_init__(self) -> None:
        """Refuse values that would train nothing or diverge."""
        wanted = {
            "epochs and batch_size must be at least 1": self.epochs >= 1 and self.batch_size >= 1,
            "the learning rate must be above 0": self.lr > 0 and math.isfinite(self.lr),
            "schedule must be steps or cosine": self.schedule in ("steps", "cosine"),
            "warmup must be at least 0 epochs": self.warmup >= 0,
        }
        if wrong := next((rule for rule, kept in wanted.items() if not kept), None):
            raise RunError(f"preset {self.name}: {wrong}, got {self}")

    def lr_at(self, epochs_done: float) -> float:
        """The learning rate after `epochs_done` epochs; 2.5 is the middle of the third."""
        warmup = min(self.warmup, self.epochs * LONGEST_WARMUP)
        if epochs_done < warmup:
            return self.lr * epochs_done / warmup
        if self.schedule == "cosine":
            share = (epochs_done - warmup) / (self.epochs - warmup)
            return self.lr * (1 + math.cos(math.pi * min(share, 1.0))) / 2
        # Rounded: 0.28 x 25 is 7.000000000000001 in binary, and epoch 7 is meant.
        passed = sum(epochs_done >= round(milestone * self.epochs, 6) for milestone in self.milestones)
        return self.lr * self.factor**passed


# Those of the paper (section 4), and cosine with warm-up.
_ALL = (
    Preset("cifar", epochs=200, lr=0.01, batch_size=128, factor=0.2),
    Preset("imagenet-vgg16", epochs=30, lr=0.0003, batch_size=256, factor=0.4),
    Preset("imagenet-resnet50", epochs=120, lr=0.0003, batch_size=256, factor=0.4),
    # The paper gives only the epochs and the optimizer of the effectiveness study; rate and batch are those of CIFAR.
    Preset("effectiveness", epochs=150, lr=0.01, batch_size=128, factor=0.2),
    Preset("cosine", epochs=30, lr=0.05, batch_size=128, schedule="cosine", warmup=1.0),
)
PRESETS: Mapping[str, Preset] = MappingProxyType({preset.name: preset for preset in _ALL})


def preset_of(name: str | Preset, *, epochs: int | None = None, lr: float | None = None) -> Preset:
    """The preset of this name (or the preset itself), with epochs and learning rate replaced if they are given."""
    if isinstance(name, str) and name not in PRESETS:
        raise RunError(unknown("training preset", name, PRESETS))
    preset = PRESETS[name] if isinstance(name, str) else name
    if not isinstance(preset, Preset):
        raise RunError(f"preset must be a name or a prunus.Preset, got {name!r}")
    changes = {key: value for key, value in {"epochs": epochs, "lr": lr}.items() if value is not None}
    return dataclasses.replace(preset, **changes)  # type: ignore[arg-type]


GROUP = "Fine-tuning"


@dataclass(frozen=True)
class FineTuning:
    """How training treats a network that is good already. `prunus train` and `prunus prune` have these alike.

    Attributes:
        batch_norm: "frozen" keeps the statistics; scales and shifts train.
        views: Epoch n draws what epoch n - views drew: order of images, augmentation, dropout. The teacher then answers
            each batch once.
    """

    batch_norm: Literal["live", "frozen"] = option(
        "live", "Batch-norm statistics: live or frozen", group=GROUP, choices=("live", "frozen"), hidden=True
    )
    ema: float = option(
        0.0, "Return averaged weights; decay per step such as 0.999, 0 for none", group=GROUP, least=0, below=1
    )
    temperature: float = option(4.0, "Temperature of the distillation", group=GROUP, above=0)
    distill_weight: float = option(0.5, "Weight of the teacher in the loss", group=GROUP, least=0, most=1)
    distill_features: float = option(
        0.0, "Weight of the distance to the teacher's feature maps", group=GROUP, least=0, hidden=True
    )
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

    Attributes:
        keep_best: The network before the first epoch counts as epoch 0; of equal epochs the last is taken.
        first_epoch: Epochs that were trained before; this training draws other random numbers than they did.
        task: What the network is for: a `Task` or the name of one; classification by default.
        device: None takes the best available.
        about: What else identifies the run (data set, augmentation), as JSON values.
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
        """The preset, with epochs and learning rate replaced if they are given."""
        return preset_of(self.preset, epochs=self.epochs, lr=self.lr)

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
