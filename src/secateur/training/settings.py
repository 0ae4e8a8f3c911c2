"""Settings of a training run. Importing this module does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from secateur.base.options import option
from secateur.training.distillation import Distillation
from secateur.training.presets import DEFAULT_PRESET, PRESETS, Preset, preset_of


@dataclass(frozen=True)
class TrainingSettings:
    """How to train. `epochs` and `lr` replace those of the preset.

    keep_best: the network before the first epoch counts as epoch 0; of equal epochs the last is taken.
    sparsity, sparsity_by: see `secateur.training.sparsity`. soft_prune: see `secateur.training.soft_filters`.
    distillation: temperature and weight of the teacher's part of the loss, if there is a teacher.
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
    mixed_precision: Literal["no", "bf16", "fp16"] = option(
        "no", "no, bf16 or fp16", group="Training", choices=("no", "bf16", "fp16")
    )
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
    distillation: Distillation = field(default_factory=Distillation)
    task: Any = None  # a Task or the name of one
    device: Any = None  # a torch.device or its name
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def schedule(self) -> Preset:
        """The preset, with epochs and learning rate replaced if they are given."""
        return preset_of(self.preset, epochs=self.epochs, lr=self.lr)
