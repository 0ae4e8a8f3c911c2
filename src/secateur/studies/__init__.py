"""The paper's experiments: functions that take networks and loaders, and write a table and pictures to a folder."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from secateur.pictures.channels_figure import channels_shown
    from secateur.pictures.separation_figure import separation
    from secateur.studies.effectiveness_study.settings import EffectivenessSettings
    from secateur.studies.effectiveness_study.study import effectiveness
    from secateur.studies.folder import Provenance, StudyFolder, read_study
    from secateur.studies.recipes.published_rows import published
    from secateur.studies.sensitivity_study.settings import SensitivityStudySettings
    from secateur.studies.sensitivity_study.study import sensitivity
    from secateur.studies.structure_study.structure import structure
    from secateur.studies.table_study.table import table
    from secateur.studies.timing_study.settings import TimingSettings
    from secateur.studies.timing_study.timing import timing

# Modules of the public names, imported on first use as in secateur itself.
_HOMES = {
    "EffectivenessSettings": "secateur.studies.effectiveness_study.settings",
    "Provenance": "secateur.studies.folder",
    "SensitivityStudySettings": "secateur.studies.sensitivity_study.settings",
    "StudyFolder": "secateur.studies.folder",
    "TimingSettings": "secateur.studies.timing_study.settings",
    "channels_shown": "secateur.pictures.channels_figure",
    "effectiveness": "secateur.studies.effectiveness_study.study",
    "published": "secateur.studies.recipes.published_rows",
    "read_study": "secateur.studies.folder",
    "sensitivity": "secateur.studies.sensitivity_study.study",
    "separation": "secateur.pictures.separation_figure",
    "structure": "secateur.studies.structure_study.structure",
    "table": "secateur.studies.table_study.table",
    "timing": "secateur.studies.timing_study.timing",
}

__all__ = [
    "EffectivenessSettings",
    "Provenance",
    "SensitivityStudySettings",
    "StudyFolder",
    "TimingSettings",
    "channels_shown",
    "effectiveness",
    "published",
    "read_study",
    "sensitivity",
    "separation",
    "structure",
    "table",
    "timing",
]


def __getattr__(name: str) -> Any:
    """A public name, from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module 'secateur.studies' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names."""
    return __all__
