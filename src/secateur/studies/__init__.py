"""The paper's experiments, each a function on a network and loaders that writes a table and pictures to a folder."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from secateur.studies.channels_figure import channels_shown
    from secateur.studies.effectiveness_study import effectiveness
    from secateur.studies.folder import StudyFolder, read_study
    from secateur.studies.layer_timing import timing
    from secateur.studies.published_rows import published
    from secateur.studies.sensitivity_study import sensitivity
    from secateur.studies.separation_figure import separation
    from secateur.studies.structures import structure
    from secateur.studies.tables import table

# Where the names live. They are imported when first asked for, as in secateur itself.
_HOMES = {
    "StudyFolder": "secateur.studies.folder",
    "channels_shown": "secateur.studies.channels_figure",
    "effectiveness": "secateur.studies.effectiveness_study",
    "published": "secateur.studies.published_rows",
    "read_study": "secateur.studies.folder",
    "sensitivity": "secateur.studies.sensitivity_study",
    "separation": "secateur.studies.separation_figure",
    "structure": "secateur.studies.structures",
    "table": "secateur.studies.tables",
    "timing": "secateur.studies.layer_timing",
}

__all__ = [
    "StudyFolder",
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
    """A public name, from the module it lives in."""
    if name not in _HOMES:
        raise AttributeError(f"module 'secateur.studies' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names."""
    return __all__
