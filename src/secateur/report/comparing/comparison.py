"""Several runs side by side: their figures, what they differ in, and which of them no other one beats.

compared = secateur.compare(["runs/a", "runs/b"], out="runs/comparison")
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from secateur.base.atomic_files import write_atomically
from secateur.base.folder_contents import held_by
from secateur.base.tables import big_number, short_table
from secateur.errors import RunError
from secateur.report.comparing.entrants import Entrant, Side, finished, read_entrants, sides
from secateur.report.finished_run import FinishedRun
from secateur.report.sentences import reported_accuracy
from secateur.studies.recipes.published_rows import PublishedGroup, group_of

PAGE, DATA = "compare.html", "compare.json"
FORMAT, VERSION = "secateur-comparison", 1
IDENTITY = ("fingerprint", "weights")


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs beside each other."""

    entrants: tuple[Entrant, ...]
    published: tuple[PublishedGroup, ...]  # rows of the paper about the same networks and data
    differing: Mapping[str, tuple[Any, ...]]  # setting -> its value in each run, where not all are equal
    notes: tuple[str, ...]  # about what makes the comparison less than fair

    def front(self, cost: str, quality: Any) -> frozenset[str]:
        """Letters of the finished runs that no other one beats: none costs less and is at least as good, or the same
        and better. Originals count."""
        found = [(e.letter, sides(run)[1]) for e, run in finished(self.entrants) if run.quality == quality]
        rivals = [side for _, run in finished(self.entrants) if run.quality == quality for side in sides(run)]
        known = [(letter, side) for letter, side in found if cost in side.costs]
        return frozenset(letter for letter, side in known if not any(beats(r, side, cost) for r in rivals))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "runs": [_words(entrant, self) for entrant in self.entrants],
            "differing_settings": {name: list(values) for name, values in self.differing.items()},
            "published": [asdict(group) for group in self.published],
            "notes": list(self.notes),
        }

    def write(self, folder: str | Path) -> Path:
        """Write the page and its data into a folder, and return the path of the page."""
        from secateur.report.comparing.page import render

        path = Path(folder)
        held = held_by(path)
        if held is not None:
            raise RunError(f"{path} holds {held}; write the comparison to another folder")
        page = render(self)
        write_atomically(path / DATA, f"{json.dumps(self.to_dict(), indent=2)}\n".encode())
        write_atomically(path / PAGE, page.encode())
        return path / PAGE

    def __repr__(self) -> str:
        """A short table."""
        rows = [
            [f"{e.letter}  {e.name}", run.quality.shown(sides(run)[1].quality), big_number(run.after.macs)]
            for e, run in finished(self.entrants)
        ]
        rows += [[f"{e.letter}  {e.name}", "not finished", ""] for e in self.entrants if not _is_finished(e)]
        return short_table(f"Comparison of {len(self.entrants)} runs", ("", "quality", "MACs"), rows)


def beats(one: Side, other: Side, cost: str) -> bool:
    """Whether one is at least as good and as cheap as the other, and better in one of the two."""
    if cost not in one.costs or cost not in other.costs:
        return False
    ahead, cheaper = one.quality - other.quality, other.costs[cost] - one.costs[cost]
    return ahead >= 0 and cheaper >= 0 and (ahead > 0 or cheaper > 0)


def compare(runs: Sequence[str | Path], out: str | Path | None = None) -> Comparison:
    """Compare runs: what each one costs and how good it is, and what they were asked.

    runs: folders of `secateur prune` or `secateur.compress`; one that has not finished is listed as such.
    out: a folder for the page (compare.html) and its figures (compare.json); without it nothing is written.
    """
    if isinstance(runs, str | Path) or not runs:
        raise RunError(f"compare takes a list of folders, as in compare(['runs/a', 'runs/b']); got {runs!r}")
    entrants = read_entrants(runs)
    found = Comparison(entrants, _published(entrants), _differing(entrants), tuple(_notes(entrants)))
    if out is not None:
        found.write(out)
    return found


def _is_finished(entrant: Entrant) -> bool:
    return isinstance(entrant.run, FinishedRun)


def _published(entrants: Sequence[Entrant]) -> tuple[PublishedGroup, ...]:
    groups = [group_of(entrant.network, entrant.data) for entrant in entrants if entrant.data is not None]
    return tuple({(group.network, group.data): group for group in groups if group is not None}.values())


def _differing(entrants: Sequence[Entrant]) -> dict[str, tuple[Any, ...]]:
    """Settings that are not the same in all runs. What the run decided itself counts, not only what was typed."""
    asked = [{**(e.config.get("command") or {}), **e.config.get("settings", {})} for e in entrants]
    names = dict.fromkeys(name for words in asked for name in words)
    values = {name: tuple(words.get(name) for words in asked) for name in names}
    return {name: each for name, each in values.items() if any(value != each[0] for value in each)}


def _notes(entrants: Sequence[Entrant]) -> list[str]:
    found = []
    first, *others = entrants
    networks = {e.config.get("fingerprint") for e in entrants}
    if len(networks) > 1:
        listed = ", ".join(f"{e.letter} {e.network}" for e in entrants)
        found.append(f"The runs are of different networks ({listed}): differences may be those of the networks.")
    elif any(e.config.get("weights") != first.config.get("weights") for e in others):
        found.append("The runs started from different weights of the same network.")
    if len({e.data for e in entrants}) > 1:
        listed = ", ".join(f"{e.letter} {e.data or 'unnamed'}" for e in entrants)
        found.append(f"The runs are on different data ({listed}): their qualities are not those of the same images.")
    elif any(_images(e) != _images(first) for e in others):
        found.append("The runs were not evaluated on the same images: their qualities may differ for that reason.")
    done = [run for _, run in finished(entrants)]
    if len({run.quality for run in done}) > 1:
        found.append("The runs are judged by different qualities, which are shown apart.")
    if len({reported_accuracy(run)[0] for run in done}) > 1:
        found.append("Some runs have test images and others only held-out images, which decisions used.")
    return found


def _images(entrant: Entrant) -> Any:
    """What is known of the images that the reported quality is of."""
    data = entrant.config.get("data") or {}
    return data.get("test") or data.get("holdout")


def _words(entrant: Entrant, whole: Comparison) -> dict[str, Any]:
    head: dict[str, Any] = {"letter": entrant.letter, "name": entrant.name, "folder": str(entrant.run.folder)}
    head |= {"network": entrant.network, "data": entrant.data}
    run = entrant.run
    if not isinstance(run, FinishedRun):
        rounds = [{"round": r.number, "macs": r.macs, "quality": r.after.top1} for r in run.rounds]
        return {**head, "finished": False, "rounds": rounds}
    before, after = sides(run)
    return {
        **head,
        "finished": True,
        "quality": asdict(run.quality),
        "measured_on": reported_accuracy(run)[0],
        "before": asdict(before),
        "after": asdict(after),
        "speedup": {size: asdict(found) for size, found in run.speedup.items()},
        "front": [cost for cost in after.costs if entrant.letter in whole.front(cost, run.quality)],
        "widths": {name: [unit.width, unit.kept] for name, unit in run.units.items()},
        "classes": None if run.classes is None else asdict(run.classes),
    }
