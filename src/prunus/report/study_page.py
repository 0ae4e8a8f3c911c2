"""The page of a study: figures, table, settings, and the command that repeats it, in one file."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from prunus.errors import FileError
from prunus.plots.style import data_uri
from prunus.report.charts import inline
from prunus.report.page import Cell, Table, render_page, setting_text
from prunus.studies.folder import RESULT, TABLE, cell_text, read_study
from prunus.util import files
from prunus.util.files import held_by


def is_study(folder: str | Path) -> bool:
    """Whether a folder is that of a study, finished or not."""
    return held_by(Path(folder)) == files.STUDY


def render_study(folder: Path) -> str:
    """The page as HTML."""
    study = read_study(folder)
    try:
        versions = ", ".join(f"{name} {number}" for name, number in (study["versions"] or {}).items())
        given = {name: value for name, value in study["asked"].items() if value not in (None, [], "", {})}
        return render_page(
            "study.html",
            title=str(study["title"]),
            pictures=[(_embedded(folder / p["file"], p["alt"]), p["caption"]) for p in study["pictures"]],
            notes=study["notes"],
            table=_table(study["columns"], study["rows"]),
            table_file=TABLE,
            asked=[(name.replace("_", " "), [setting_text(value, sys.maxsize)]) for name, value in given.items()],
            command=study["command"],
            provenance=f"Study {study['study']}, run with {versions}. Folder: {folder}.",
        )
    except (KeyError, TypeError, AttributeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise FileError(f"{folder / RESULT} has unexpected content: {what}") from error


def _embedded(path: Path, alt: str) -> Markup:
    """A figure of the study as part of the page: the SVG, or the PNG if there is no SVG."""
    if path.suffix == ".svg" and path.is_file():
        return inline(path.read_text(encoding="utf-8"), alt)
    picture = path.with_suffix(".png")
    if not picture.is_file():
        raise FileError(f"{path} is missing, although {RESULT} lists it; run the study's command again to draw it")
    return Markup('<img src="{}" alt="{}">').format(data_uri(picture.read_bytes()), alt)


def _table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> Table:
    """All rows, without empty columns. Text sorts in alphabetical order, and missing values come first."""
    shown = [key for key in columns if any(cell_text(row[key]) != "–" for row in rows)]
    texts = {key: sorted({row[key] for row in rows if isinstance(row[key], str)}) for key in shown}

    def cell(key: str, value: Any) -> Cell:
        rank = texts[key].index(value) if isinstance(value, str) else -math.inf if cell_text(value) == "–" else value
        whole = repr(value) if isinstance(value, float) and cell_text(value) != repr(value) else ""
        return Cell(cell_text(value), float(rank), whole)

    cells = [[cell(key, row[key]) for key in shown] for row in rows]
    text_columns = [place for place, key in enumerate(shown) if texts[key]]
    return Table("All results", [columns[key] for key in shown], cells, sorted=False, texts=text_columns)
