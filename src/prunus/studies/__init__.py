"""The paper's experiments: functions that take networks and loaders, and write a table and pictures to a folder."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from prunus.util.registry import import_homes

if TYPE_CHECKING:
    from prunus.plots.channels import channels_shown, separation
    from prunus.studies.effectiveness_study import effectiveness
    from prunus.studies.folder import Provenance, StudyFolder, read_study
    from prunus.studies.recipes import published
    from prunus.studies.sensitivity_study import sensitivity
    from prunus.studies.settings import EffectivenessSettings, SensitivityStudySettings, TimingSettings
    from prunus.studies.structure_study import structure
    from prunus.studies.table_study import table
    from prunus.studies.timing_study import timing

_HOMES = import_homes(__file__)  # imported on first use, as in prunus itself

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
    if name not in _HOMES:
        raise AttributeError(f"module 'prunus.studies' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
