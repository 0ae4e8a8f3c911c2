"""The page of a study: figures, table, settings, and the command that repeats it, in one file."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from prunus.errors import FileError
from prunus.report.html import REPORT, document, inline, paragraph, section, sorting_row, sorting_table
from prunus.studies.folder import CONFIG, STUDY, TABLE, read_study
from prunus.util.files import write_atomically


def is_study(folder: str | Path) -> bool:
    """Whether a folder is that of a study, finished or not."""
    path = Path(folder)
    if (path / STUDY).exists():
        return True
    try:
        found = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and "study" in found


def write_study_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of the finished study in `folder` to `out`, by default `report.html` in that folder.

    Returns the path of the report. A FileError names a file that is missing or damaged; an old report is then kept.
    """
    path = Path(folder) / REPORT if out is None else Path(out)
    write_atomically(path, render_study(Path(folder)).encode())
    return path


def render_study(folder: Path) -> str:
    """The page as HTML."""
    if not folder.is_dir():
        raise FileError(f"{folder} is not a folder; give the folder of a study, such as runs/study-timing-vgg16")
    found = read_study(folder)
    try:
        parts = [
            _pictures(folder, found["pictures"]),
            _notes(found["notes"]),
            _table(found["columns"], found["rows"]),
            _asked(found["asked"]),
            _again(folder, found),
        ]
        title = str(found["title"])
    except (KeyError, TypeError, AttributeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise FileError(f"{folder / STUDY} has unexpected content: {what}") from error
    return document(title, "\n".join(part for part in parts if part))


def _pictures(folder: Path, pictures: Sequence[Mapping[str, str]]) -> str:
    # They have a white background in dark mode too, because their colours are chosen for white.
    return "\n".join(
        f'<figure><div class="plot">{_embedded(folder / picture["file"], picture["alt"])}</div>'
        f"<figcaption>{escape(picture['caption'])}</figcaption></figure>"
        for picture in pictures
    )


def _embedded(path: Path, alt: str) -> str:
    """A figure of the study as part of the page: the SVG, or the PNG if there is no SVG."""
    if path.suffix == ".svg" and path.is_file():
        return inline(path.read_text(encoding="utf-8"), alt)
    picture = path.with_suffix(".png")
    if not picture.is_file():
        raise FileError(f"{path} is missing, although {STUDY} lists it; run the study's command again to draw it")
    return f'<img src="data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}" alt="{escape(alt)}">'


def _notes(notes: Sequence[str]) -> str:
    listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return section("Notes", f"<ul>{listed}</ul>") if listed else ""


# -- the table


def _table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> str:
    shown = [key for key in columns if any(_shown(row[key]) != "–" for row in rows)]  # leave out empty columns
    words = [i for i, key in enumerate(shown) if any(isinstance(row[key], str) for row in rows)]
    ranks = {key: _ranks([row[key] for row in rows]) for key in shown}
    lines = [
        sorting_row(i, [(_shown(row[key]), ranks[key][i], _whole(row[key])) for key in shown], words)
        for i, row in enumerate(rows)
    ]
    table = sorting_table([columns[key] for key in shown], lines, "All results", first=False, words=words)
    hint = f"Click a heading to sort. Hover over a number to see all its digits. The same rows are in {TABLE}."
    return section("All results", paragraph(hint, "soft"), table)


def _ranks(values: Sequence[Any]) -> list[float]:
    """Values to sort a column by: its numbers, text in alphabetical order, missing values first."""
    words = sorted({str(value) for value in values if not _is_number(value) and value is not None})
    place = {word: float(i) for i, word in enumerate(words)}
    return [-math.inf if v is None or v != v else float(v) if _is_number(v) else place[str(v)] for v in values]


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


def _whole(value: Any) -> str:
    """A number with all its digits, if some are not shown."""
    return repr(value) if isinstance(value, float) and _shown(value) != repr(value) else ""


# -- settings


def _asked(asked: Mapping[str, Any]) -> str:
    rows = [(key.replace("_", " "), _listed(value)) for key, value in asked.items() if value not in (None, [], "", {})]
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(words)}</dd>" for name, words in rows)
    return section("Settings", f"<dl>{listed}</dl>") if listed else ""


def _listed(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_listed(each)}" for key, each in value.items())
    if isinstance(value, list):
        return ", ".join(_listed(each) for each in value)
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _again(folder: Path, found: Mapping[str, Any]) -> str:
    command = found["command"]
    code = f'<pre class="wraps"><code>{escape(command)}</code></pre>' if command else ""
    how = "The same command, data, versions and machine give the same table, except for times." if command else ""
    versions = ", ".join(f"{name} {number}" for name, number in (found["versions"] or {}).items())
    where = f"Study {found['study']}, run with {versions}. Folder: {folder}."
    return section("Repeat this study", paragraph(how) if how else "", code, paragraph(where, "soft"))
