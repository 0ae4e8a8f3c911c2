"""The sections about settings: what was asked, and a table of all settings.

Both read the settings' own declarations (`secateur.base.options`) and the registries, so a new setting needs no change
here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from html import escape
from typing import Any

from secateur.base.options import GROUPS, Option, default_of, options_of
from secateur.base.registry import Registry
from secateur.deciding.goal import Goal
from secateur.report.finished_run import FinishedRun
from secateur.report.html import folded, section
from secateur.report.sentences import goal

LISTED = 4  # largest number of values of one setting in a sentence


def what_was_asked(run: FinishedRun) -> str:
    """The network, the data, the goal, and the settings that were chosen or changed."""
    typed = run.command or {}
    rows = [("Network", f"{typed.get('model', run.model)}, {len(run.layers)} layers with weights")]
    if "data" in typed:
        rows.append(("Data", str(typed["data"])))
    rows.append(("Goal", goal(run)))
    rows += [(group, "; ".join(texts)) for group, texts in chosen_settings(run.settings).items()]
    listed = "".join(f"<dt>{escape(title)}</dt><dd>{escape(text)}</dd>" for title, text in rows)
    return section("What was asked", f"<dl>{listed}</dl>")


def chosen_settings(settings: Any) -> dict[str, list[str]]:
    """Group -> "name: value" of the settings that differ from their defaults, and of all choices from a registry.

    Goals are left out, because the report has a sentence about them.
    """
    goals = {field.name for field in dataclasses.fields(Goal)}
    groups: dict[str, list[str]] = {}
    for field, about in _by_group(settings):
        value = getattr(settings, field.name)
        chosen = isinstance(about.choices, Registry) and value is not None
        if field.name not in goals and (chosen or value != default_of(field)):
            groups.setdefault(about.group, []).append(f"{_label(field)}: {_explained(value, about)}")
    return groups


def all_settings(settings: Any) -> str:
    """A folded table of all settings: group, name, value, whether it was changed, and help."""
    rows = []
    for field, about in _by_group(settings):
        value = getattr(settings, field.name)
        changed = "" if value == default_of(field) else "changed"
        cells = (about.group, field.name, _text(value), changed, about.help)
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    table = f'<div class="scroll"><table class="plain"><tbody>{"".join(rows)}</tbody></table></div>'
    return folded("All settings", table, False)


def _by_group(settings: Any) -> Iterator[tuple[dataclasses.Field[Any], Option]]:
    """The options in the order of their groups."""
    places = {group: place for place, group in enumerate(GROUPS)}
    yield from sorted(options_of(settings), key=lambda pair: places.get(pair[1].group, len(places)))


def _label(field: dataclasses.Field[Any]) -> str:
    return field.name.replace("_", " ")


def _explained(value: Any, about: Option) -> str:
    """A value, with the registry's line about it."""
    known = isinstance(about.choices, Registry) and isinstance(value, str) and value in about.choices
    return f"{value} ({about.choices.help(value)})" if known else _text(value)  # type: ignore[union-attr]


def _text(value: Any) -> str:
    if value is None or value in ((), [], {}):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        more = f" and {len(value) - LISTED} more" if len(value) > LISTED else ""
        return ", ".join(_text(each) for each in value[:LISTED]) + more
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(each)}" for key, each in value.items())
    return f"{value:g}" if isinstance(value, float) else str(getattr(value, "__name__", value))
