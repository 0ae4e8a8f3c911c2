"""Finished runs as rows among the paper's published rows (Tables 1 and 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prunus.errors import RunError
from prunus.plots.style import COLOURS, INK, PAGE, figure, save, styled
from prunus.run.folder import CONFIG, SUMMARY, RunFolder
from prunus.studies.folder import StudyFolder, StudyRow
from prunus.studies.recipes import STATUS, PublishedGroup, group_of, published
from prunus.util.text import latex_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation


COLUMNS: Mapping[str, str] = {
    "network": "network",
    "data": "data",
    "method": "method",
    "by": "by",
    "base_top1": "top-1 before (%)",
    "top1": "top-1 (%)",
    "top1_drop": "drop (points)",
    "base_top5": "top-5 before (%)",
    "top5": "top-5 (%)",
    "top5_drop": "top-5 drop (points)",
    "macs": "MACs",
    "macs_removed": "MACs removed (%)",
    "params": "weights",
    "params_removed": "weights removed (%)",
    "source": "source",
}
OWN = "this run"


@dataclass(frozen=True)
class ResultsTable:
    """Rows with the keys of COLUMNS, and notes on them."""

    rows: tuple[StudyRow, ...]
    notes: tuple[str, ...]


def table(runs: Sequence[str | Path] = (), *, model: str | None = None, data: str | None = None) -> ResultsTable:
    """Finished runs as rows among the published rows of their network and data set, sorted by MACs removed.

    runs: folders of finished runs. Without runs: all published rows, in the paper's order.
    model, data: as in `prunus prune`, for folders that do not record them (those of `prunus.compress`).
    """
    if not runs:
        groups = [g for g in published().groups if model in (None, *g.models) and data in (None, g.data)]
        if not groups:
            known = ", ".join(f"{g.models[0]} on {g.data}" for g in published().groups)
            raise RunError(
                f"the paper has no rows for {model or 'any network'} on {data or 'any data'}; it has {known}"
            )
        return ResultsTable(tuple(row for group in groups for row in _published_rows(group)), _notes(groups))
    own: dict[tuple[str, str], list[StudyRow]] = {}
    notes: list[str] = []
    for folder in map(Path, runs):
        run = RunFolder(folder)
        if not run.has(SUMMARY):
            again = f"Continue it with `prunus prune --resume {folder}`"
            raise RunError(f"{folder} holds no finished run: {SUMMARY} is missing. {again}")
        config = run.read(CONFIG)
        asked, start = config.get("command") or {}, config.get("start") or {}  # the command may name a file or folder
        # What was cut from a pruned network is not comparable with the paper's rows of the whole one.
        named = None if start.get("earlier") else start.get("network")
        name, on = model or named or asked.get("model"), data or asked.get("data")
        if name is None or on is None:
            raise RunError(f"{folder} does not record its network and data set: pass --model and --data")
        on = str(on).partition(":")[0]
        row, note = run.parse(SUMMARY, partial(_own_row, folder.name, name, on))
        own.setdefault((name, on), []).append(row)
        notes.append(note)
    rows, known_groups = [], []
    for (name, on), mine in own.items():
        group = group_of(name, on)
        if group is None:
            notes.append(f"The paper has no rows for {name} on {on}.")
        else:
            known_groups.append(group)
            mine = [*_published_rows(group), *mine]
        rows += sorted(mine, key=lambda row: row["macs_removed"])
    return ResultsTable(tuple(rows), (*notes, *_notes(known_groups)))


def _published_rows(group: PublishedGroup) -> list[StudyRow]:
    rows = [{"network": group.network, "data": group.data, **asdict(row), "source": STATUS} for row in group.rows]
    return [{key: row[key] for key in COLUMNS} for row in rows]


def _own_row(method: str, name: str, data: str, summary: dict[str, Any]) -> tuple[StudyRow, str]:
    """The row of a run, and a note on the images that measured its accuracy."""
    before, after, group = summary["before"], summary["after"], group_of(name, data)
    part = "test" if after["test"] is not None else "holdout"
    row: StudyRow = {
        "network": name if group is None else group.network,
        "data": data,
        "method": method,
        "by": f"prunus, {summary['settings']['metric']}",
        "source": OWN,
    }
    for key in ("top1", "top5"):
        old, new = (
            side[part]["quality"] if key == "top1" else side[part]["details"].get(key) for side in (before, after)
        )
        known = old is not None and new is not None
        for column, value in ((f"base_{key}", old), (key, new), (f"{key}_drop", old - new if known else None)):
            row[column] = round(100 * value, 2) if known and value is not None else None
    for key in ("macs", "params"):
        row |= {key: after[key], f"{key}_removed": round(100 * (1 - after[key] / before[key]), 1)}
    images = f"{after[part]['num_images']:,}"
    kind = f"the {images} held-out images that decisions used; there are no test images"
    note = f"{images} test images, which no decision used" if part == "test" else kind
    return {key: row[key] for key in COLUMNS}, f"{method}: accuracy on {note}."


def _notes(groups: Sequence[PublishedGroup]) -> tuple[str, ...]:
    """The published notes on these groups: the first one always, the others by table and network."""
    everywhere, *others = published().notes
    starts = tuple(f"Table {group.table[0]}, {group.network}," for group in groups)
    if not groups:
        return ()
    return (f"{everywhere} Source: {published().source}.", *(note for note in others if note.startswith(starts)))


def as_cells(rows: Sequence[StudyRow], titles: Mapping[str, str] = COLUMNS) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of the columns in `titles`, as text. Columns without any value are left out."""
    shown = [key for key in titles if any(row[key] is not None for row in rows)]

    def cell(key: str, value: Any) -> str:
        if value is None:
            return "-"
        if key in ("macs", "params"):
            return short(value)
        if isinstance(value, float):
            return f"{value:.1f}" if key.endswith("_removed") else f"{value:.2f}"
        return str(value)

    return [titles[key] for key in shown], [[cell(key, row[key]) for key in shown] for row in rows]


def as_latex(rows: Sequence[StudyRow]) -> str:
    """A LaTeX table. The column of sources says which rows are published ones."""
    titles, cells = as_cells(rows)
    texts = {COLUMNS[key] for key in ("network", "data", "method", "by", "source")}
    numbers = [place for place, title in enumerate(titles) if title not in texts]
    return latex_table(titles, cells, numbers, caption="Runs among published results.", label="tab:published")


def short(number: float) -> str:
    """46400000 -> 46.4 M: three digits, as in the paper."""
    for unit, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " K")):
        if number >= unit:
            return f"{number / unit:.{max(0, 2 - len(str(int(number / unit))) + 1)}f}{suffix}"
    return str(int(number))


PUBLISHED, PAPER, OWN_RUN = COLOURS[7], COLOURS[0], COLOURS[3]  # other methods, the paper's own, runs
SIDES = ((6, 4, "left"), (6, -10, "left"), (-6, 4, "right"), (-6, -10, "right"), (6, 12, "left"))  # points; alignment
MARKER = 4  # pixels from the centre of a point to its edge, at the figure's own resolution


def write_table(results: ResultsTable, folder: StudyFolder) -> Path:
    """Write study.json, table.csv and a picture of the change of accuracy against MACs removed."""
    folder.start()
    pictures = draw_table(results, folder.path)
    return folder.finish(
        "Runs compared with the paper's tables",
        results.rows,
        pictures,
        results.notes,
        columns=COLUMNS,
        latex=as_latex(results.rows),
    )


def draw_table(results: ResultsTable, folder: Path) -> list[dict[str, str]]:
    """One picture for each network and data set in the table, for `StudyFolder.finish`."""
    pictures = []
    for network, data in dict.fromkeys((row["network"], row["data"]) for row in results.rows):
        rows = [row for row in results.rows if (row["network"], row["data"]) == (network, data)]
        key, name = ("top1", "top-1") if all(row["top1"] is not None for row in rows) else ("top5", "top-5")
        points = [(row, (row["macs_removed"], -row[f"{key}_drop"])) for row in rows if row[f"{key}_drop"] is not None]
        if not points:
            continue
        title = f"{network} on {data}"
        fig, axes = figure(PAGE, 3.4)
        with styled():
            axes.axhline(0, color=INK, linewidth=0.8)
            for row, point in points:
                marker, colour = ("o", PUBLISHED) if row["source"] == STATUS else ("D", OWN_RUN)
                if row["source"] == STATUS and row["method"].startswith("G-SD"):
                    marker, colour = "s", PAPER
                axes.plot(*point, marker, color=colour, markersize=6)
            axes.set(xlabel="MACs removed (%)", ylabel=f"change of {name} accuracy (points)")
            axes.set_title(f"{title}: published results (squares: G-SD, circles: others) and runs (diamonds)")
            axes.margins(x=0.12, y=0.15)
            label(fig, axes, [(row["method"], point) for row, point in points])
        plain = "".join(c if c.isalnum() else "-" for c in f"{network}-{data}".lower())
        picture = {
            "file": save(fig, folder, f"table-{plain}"),
            "alt": f"Change of {name} accuracy against MACs removed, {title}: {len(points)} methods and runs",
            "caption": f"{title}. Above 0: better than before pruning.",
        }
        pictures.append(picture)
    return pictures


def label(fig: Figure, axes: Axes, names: Sequence[tuple[str, tuple[float, float]]]) -> list[Annotation]:
    """Write each name next to its point, on a side where it covers no other name or point and stays inside the axes."""
    from matplotlib.transforms import Bbox

    fig.draw_without_rendering()  # sets limits and layout
    spots = [axes.transData.transform(point) for _, point in names]
    taken = [Bbox.from_extents(x - MARKER, y - MARKER, x + MARKER, y + MARKER) for x, y in spots]
    labels = []
    for name, point in names:
        for number, (x, y, side) in enumerate(SIDES):
            text = axes.annotate(
                name, point, xytext=(x, y), textcoords="offset points", fontsize=7.5, color=INK, ha=side
            )
            box = text.get_window_extent()
            free = not any(box.overlaps(other) for other in taken)
            inside = axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1
            if (free and inside) or number == len(SIDES) - 1:
                taken.append(box)
                labels.append(text)
                break
            text.remove()
    return labels
