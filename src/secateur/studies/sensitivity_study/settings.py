"""Settings of the sensitivity study, from which the options of `secateur study sensitivity` are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from secateur.base.options import check, option, plain
from secateur.errors import DecideError
from secateur.measuring.quality_words import QualityWords
from secateur.measuring.tasks import task_of
from secateur.repairing.methods import REPAIRS
from secateur.running.settings import Settings, check_settings
from secateur.scoring.metrics import METRICS, metric_option

# Settings of a run that the study sets:
DECIDED = ("target", "speedup", "max_drop", "macs", "params", "ratio", "rounds", "split")


def share_or_folder(text: str) -> float | str:
    """'0.31' -> 0.31; any other text is the path of a run."""
    try:
        return float(text)
    except ValueError:
        return text


def _decided() -> Any:
    return option(None, "Set by the study", hidden=True)


@dataclass(frozen=True)
class SensitivityStudySettings(Settings):
    """Where both arms start and end, and how they prune (see `Settings`). The study sets the goal and the split.

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
    metric: str | Callable[..., Any] | None = metric_option(
        "gsd",
        f"Metric that scores channels: {', '.join(METRICS)}. Options may follow: gsd:ridge=0",
        everyday=True,
        own=True,
    )
    repair: str | None = option(
        "none", f"Repair after each cut: {', '.join(REPAIRS)}", group="Repair", everyday=True, choices=REPAIRS
    )
    alpha: float = option(3.0, "Solved so that the iterations reach the end", hidden=True)
    target: float | None = _decided()
    speedup: float | None = _decided()
    max_drop: float | None = _decided()
    macs: float | None = _decided()
    params: float | None = _decided()
    ratio: float | None = _decided()
    rounds: int | None = _decided()
    split: str | None = _decided()

    def check(self) -> None:
        """Raise DecideError at once for what would otherwise fail after hours."""
        given = [name for name in DECIDED if getattr(self, name) is not None]
        if given:
            raise DecideError(f"both arms go to `end` in equal iterations, each with its split; leave {given[0]} out")
        check(self, DecideError)
        check_settings(replace(self.run_settings(), target=self.end))  # the arms have goals in MACs
        if isinstance(self.start, float | int) and not 0 < self.start < self.end:
            raise DecideError(
                f"start and end are fractions of MACs removed, 0 < start < end < 1; got {self.start} and {self.end}"
            )

    @property
    def quality(self) -> QualityWords:
        """How what is measured is written: the task's quality, or what a function of the user's own returns."""
        return QualityWords("quality") if self.evaluate is not None else QualityWords.of(task_of(self.task))

    def run_settings(self) -> Settings:
        """The settings of the runs, without a goal."""
        return Settings(**{field.name: getattr(self, field.name) for field in fields(Settings)})

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON. alpha is left out: it is solved, and each row has its own."""
        found = {**plain(self), "start": self.start if isinstance(self.start, float | int) else str(self.start)}
        return {name: value for name, value in found.items() if name != "alpha"}
