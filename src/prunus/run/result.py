"""What `compress` returns: the smaller network, and the run in numbers and words."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from prunus.errors import RunError
from prunus.graph.files import example_of, save
from prunus.graph.plan import Plan
from prunus.run.round import Outcome
from prunus.run.summary import first_line, headline, read_summary
from prunus.util.text import html_table, short_table

if TYPE_CHECKING:
    from prunus.ship.export import Exported


@dataclass(frozen=True, repr=False)
class Compressed:
    """The smaller network, the plan that leads to it from the original, and the run in numbers.

    Attributes:
        model: The smaller network.
        plan: The channels of the original network that it keeps.
        rounds: The result of each round.
        summary: What summary.json holds; see `prunus.run.summary.Summary`.
        folder: The run's folder; None if it was a temporary one.
    """

    model: nn.Module
    plan: Plan
    rounds: tuple[Outcome, ...]
    summary: dict[str, Any]
    folder: Path | None
    files: Path | None = field(default=None, compare=False)  # the folder, also if it is a temporary one

    @property
    def reached(self) -> bool:
        """Whether the goal was reached; `summary["goal"]["text"]` says it in words."""
        return bool(self.summary["goal"]["reached"])

    @property
    def speedup(self) -> float | None:
        """How many times as fast the network is in the asked engine, as measured; None if it was not timed."""
        speeds = self.summary["speeds"]
        return float(speeds[0]["ratio"]) if speeds else None

    def save(self, path: str | Path) -> None:
        """Write the network and its plan to a folder, for `prunus.load`."""
        save(self.model, self.plan, path)

    def export(self, path: str | Path, **options: Any) -> Exported:
        """Write the network as .onnx, .pt2, .safetensors or .py; see `prunus.export`, which takes the options."""
        from prunus.ship.export import export

        return export(self.model, example_of(self.plan, self.model, Path(path)), path, **options)

    def report(self, path: str | Path | None = None) -> Path:
        """Write the report of the run, one HTML page; by default report.html in the run's folder. Returns its path."""
        from prunus.report.run_page import write_report

        if self.files is None or (path is None and self.folder is None):
            raise RunError("the run has no folder: give report(path), or compress(..., folder=) for one that stays")
        return write_report(self.files, path)

    def __repr__(self) -> str:
        """The result in a line, the goal, and a table of before and after."""
        summary = read_summary(self.summary)
        title = f"{first_line(summary)}\n{summary.goal.text}"
        return short_table(title, ("", "before", "after", ""), headline(summary), most=20)

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        summary = read_summary(self.summary)
        lead = f"<b>{escape(first_line(summary))}</b><br>{escape(summary.goal.text)}"
        return html_table(lead, [("", "before", "after", ""), *headline(summary)])
