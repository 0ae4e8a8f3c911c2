"""Settings of the sensitivity study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from secateur.base.options import check, option
from secateur.base.registry import unknown
from secateur.errors import DecideError
from secateur.running.settings import Settings, check_settings

GOALS = ("target", "macs", "params", "ratio", "max_drop", "rounds")  # settings of a run that the study decides


def share_or_folder(text: str) -> float | str:
    """'0.31' -> 0.31; anything else is the path of a run."""
    try:
        return float(text)
    except ValueError:
        return text


@dataclass(frozen=True)
class SensitivityStudySettings:
    """Where both arms start and end.

    start: the fraction of MACs that both arms start without, removed uniformly from the inner units and retrained; or
        the folder of a finished run on the same network.
    """

    start: float | str | Path = option(
        0.31,
        "Fraction of MACs that both arms start without, or the folder of a finished run; 0.31 by default",
        group="Goal",
        everyday=True,
        parse=share_or_folder,
    )
    end: float = option(
        0.56, "Fraction of MACs that both arms end without", group="Goal", everyday=True, above=0, below=1
    )
    iterations: int = option(5, "Number of iterations of pruning and retraining", group="Goal", everyday=True, least=1)

    def check(self) -> None:
        """Raise DecideError unless 0 < start < end < 1 and there is at least one iteration."""
        check(self, DecideError)
        if isinstance(self.start, float | int) and not 0 < self.start < self.end:
            raise DecideError(
                f"start and end are fractions of MACs removed, 0 < start < end < 1; got {self.start} and {self.end}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "start": self.start if isinstance(self.start, float | int) else str(self.start)}


def split_settings(given: Mapping[str, Any]) -> tuple[SensitivityStudySettings, Settings]:
    """The settings of the study, and those of the runs in it, both checked."""
    own = {field.name for field in fields(SensitivityStudySettings)}
    of_run = {field.name for field in fields(Settings)} - set(GOALS)
    for name in given:
        if name in GOALS:
            raise DecideError(f"the goal of both arms is `end`, in equal iterations; leave {name} out")
        if name not in own | of_run:
            raise DecideError(unknown("setting", name, sorted(own | of_run)))
    study = SensitivityStudySettings(**{name: value for name, value in given.items() if name in own})
    run = Settings(**{"metric": "gsd", **{name: value for name, value in given.items() if name in of_run}})
    study.check()
    check_settings(run)
    return study, run
