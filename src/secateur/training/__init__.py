"""Training: the visible loop, schedules by name, distillation, checkpoints; and repair without training."""

from secateur.repairing.repair import repair
from secateur.training.distillation import Distillation
from secateur.training.fit import Fitted, fit
from secateur.training.history import Epoch
from secateur.training.meter import Progress
from secateur.training.presets import PRESETS, Preset, preset_of

__all__ = ["PRESETS", "Distillation", "Epoch", "Fitted", "Preset", "Progress", "fit", "preset_of", "repair"]
