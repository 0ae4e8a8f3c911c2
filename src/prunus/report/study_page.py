"""The page of a study: figures, table, settings, and the command that repeats it, in one file."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from prunus.errors import FileError
from prunus.report.charts import inline
from prunus.report.page import REPORT, Cell, Table, render_page
from prunus.studies.folder import STUDY, TABLE, read_study
from prunus.util import files
from prunus.util.files import held_by, write_atomically


def is_study(folder: str | Path) -> bool:
    """Whether a folder is that of a study, finished or not."""
    return held_by(Path(folder)) == files.STUDY


def write_study_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of the finished study in `folder` to `out`, by default `report.html` in that folder.

    Returns:
        The path of the report.

    Raises:
        FileError: Names a file that is missing or damaged; an old report is then kept.
    """
    path = Path(folder) / REPORT if out is None else Path(out)
    write_atomically(path, render_study(Path(folder)).encode())
    return path


def render_study(folder: Path) -> str:
    """The page as HTML."""
    if not folder.is_dir():
        raise FileError(f"{folder} is not a folder; give the folder of a study, such as runs/study-timing-vgg16")
    study = read_study(folder)
    try:
        versions = ", ".join(f"{name} {number}" for name, number in (study["versions"] or {}).items())
        asked = [(name.replace("_", " "), [_listed(value)]) for name, value in study["asked"].items()
                 if value not in (None, [], "", {})]  # fmt: skip
        return render_page(
            "study.html",
            title=str(study["title"]),
            pictures=[(_embedded(folder / p["file"], p["alt"]), p["caption"]) for p in study["pictures"]],
            notes=study["notes"],
            table=_table(study["columns"], study["rows"]),
            table_file=TABLE,
            asked=asked,
            command=study["command"],
            provenance=f"Study {study['study']}, run with {versions}. Folder: {folder}.",
        )
    except (KeyError, TypeError, AttributeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise FileError(f"{folder / STUDY} has unexpected content: {what}") from error


def _embedded(path: Path, alt: str) -> Markup:
    """A figure of the study as part of the page: the SVG, or the PNG if there is no SVG."""
    if path.suffix == ".svg" and path.is_file():
        return inline(path.read_text(encoding="utf-8"), alt)
    picture = path.with_suffix(".png")
    if not picture.is_file():
        raise FileError(f"{path} is missing, although {STUDY} lists it; run the study's command again to draw it")
    encoded = base64.b64encode(picture.read_bytes()).decode()
    return Markup('<img src="data:image/png;base64,{}" alt="{}">').format(encoded, alt)


def _table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> Table:
    """All rows, without empty columns. Text sorts in alphabetical order, and missing values come first."""
    shown = [key for key in columns if any(_shown(row[key]) != "–" for row in rows)]
    texts = [i for i, key in enumerate(shown) if any(isinstance(row[key], str) for row in rows)]
    cells: list[list[Cell]] = [[] for _ in rows]
    for key in shown:
        texts_in_order = sorted({str(row[key]) for row in rows if row[key] is not None and not _is_number(row[key])})
        for row, line in zip(rows, cells, strict=True):
            value = row[key]
            missing = value is None or value != value
            rank = (
                -math.inf if missing else float(value) if _is_number(value) else float(texts_in_order.index(str(value)))
            )
            whole = repr(value) if isinstance(value, float) and _shown(value) != repr(value) else ""
            line.append(Cell(_shown(value), rank, whole))
    return Table("All results", [columns[key] for key in shown], cells, sorted=False, texts=texts)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    if value is None or value == "" or value != value:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return str(value)


def _listed(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_listed(each)}" for key, each in value.items())
    if isinstance(value, list):
        return ", ".join(_listed(each) for each in value)
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
