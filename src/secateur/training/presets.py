"""Training schedules by name: those of the paper (section 4), and cosine with warm-up.

All use SGD with Nesterov momentum 0.9 and weight decay 1e-4, as the paper does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from secateur.base.registry import unknown
from secateur.errors import RunError

DEFAULT_PRESET = "cosine"  # of `fit` and `compress`: the shortest, and good for retraining


@dataclass(frozen=True)
class Preset:
    """Number of epochs and learning rate schedule.

    steps:  lr x factor^(number of `milestones` passed), milestones as fractions of all epochs;
    cosine: lr x (1 + cos(pi x fraction of the epochs done after the warm-up)) / 2.
    Both start with `warmup` epochs in which the rate rises linearly, at most `longest_warmup` of the run.
    """

    name: str
    epochs: int
    lr: float
    batch_size: int  # images per step, over all processes
    schedule: Literal["steps", "cosine"] = "steps"
    milestones: tuple[float, ...] = (0.4, 0.8)
    factor: float = 0.2
    warmup: float = 0.0  # epochs
    momentum: float = 0.9
    weight_decay: float = 1e-4
    longest_warmup: float = 0.1  # as a share of the run: one shorter than its warm-up would never reach the full rate

    def __post_init__(self) -> None:
        """Refuse values that would train nothing or diverge."""
        if self.epochs < 1 or self.batch_size < 1:
            raise RunError(f"preset {self.name}: epochs and batch_size must be at least 1, got {self}")
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise RunError(f"preset {self.name}: the learning rate must be above 0, got {self.lr}")
        if self.schedule not in ("steps", "cosine"):
            raise RunError(f"preset {self.name}: schedule must be steps or cosine, got {self.schedule!r}")
        if not self.warmup >= 0:
            raise RunError(f"preset {self.name}: warmup must be at least 0 epochs, got {self.warmup}")
        if not 0 <= self.longest_warmup < 1:
            raise RunError(f"preset {self.name}: longest_warmup must be at least 0 and below 1, got {self}")

    def warmed_up(self, share: float | None) -> Preset:
        """The preset with a warm-up of this share of the run, whatever its own is; None changes nothing."""
        if share is None:
            return self
        return dataclasses.replace(self, warmup=share * self.epochs, longest_warmup=share)

    def lr_at(self, epochs_done: float) -> float:
        """The learning rate after `epochs_done` epochs; 2.5 is the middle of the third."""
        warmup = min(self.warmup, self.epochs * self.longest_warmup)
        if epochs_done < warmup:
            return self.lr * epochs_done / warmup
        if self.schedule == "cosine":
            share = (epochs_done - warmup) / (self.epochs - warmup)
            return self.lr * (1 + math.cos(math.pi * min(share, 1.0))) / 2
        # Rounded: 0.28 x 25 is 7.000000000000001 in binary, and epoch 7 is meant.
        passed = sum(epochs_done >= round(milestone * self.epochs, 6) for milestone in self.milestones)
        return self.lr * self.factor**passed


def _by_name(*presets: Preset) -> Mapping[str, Preset]:
    return MappingProxyType({preset.name: preset for preset in presets})


PRESETS = _by_name(
    Preset("cifar", epochs=200, lr=0.01, batch_size=128, factor=0.2),
    Preset("imagenet-vgg16", epochs=30, lr=0.0003, batch_size=256, factor=0.4),
    Preset("imagenet-resnet50", epochs=120, lr=0.0003, batch_size=256, factor=0.4),
    # The paper gives only the epochs and the optimizer of the effectiveness study; rate and batch are those of CIFAR.
    Preset("effectiveness", epochs=150, lr=0.01, batch_size=128, factor=0.2),
    Preset("cosine", epochs=30, lr=0.05, batch_size=128, schedule="cosine", warmup=1.0),
)


def preset_of(name: str | Preset, *, epochs: int | None = None, lr: float | None = None) -> Preset:
    """The preset of this name (or the preset itself), with epochs and learning rate replaced if they are given."""
    if isinstance(name, str) and name not in PRESETS:
        raise RunError(unknown("training preset", name, PRESETS))
    if not isinstance(name, str | Preset):
        raise RunError(f"preset must be a name or a secateur.Preset, got {name!r}")
    preset = PRESETS[name] if isinstance(name, str) else name
    changes = {key: value for key, value in {"epochs": epochs, "lr": lr}.items() if value is not None}
    return dataclasses.replace(preset, **changes)  # type: ignore[arg-type]
