"""The sections about settings: what was asked, and a table of all settings.

Both read the settings' own declarations (`secateur.base.options`) and the registries, so a new setting needs no change
here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from html import escape
from typing import Any

from secateur.base.options import GROUPS, Option, default_of, options_of
from secateur.base.registry import Registry
from secateur.deciding.goal import Goal
from secateur.deciding.settings import TimeSettings
from secateur.measuring.quality_words import ACCURACY, QualityWords
from secateur.report.finished_run import FinishedRun
from secateur.report.html import folded, section
from secateur.report.sentences import goal

LISTED = 4  # largest number of values of one setting in a sentence


def what_was_asked(run: FinishedRun) -> str:
    """The network, the data, the goal, and the settings that were chosen or changed."""
    typed = run.command or {}
    rows = {"Network": [f"{typed.get('model', run.model)}, {len(run.layers)} layers with weights"]}
    if "data" in typed:
        rows["Data set"] = [str(typed["data"])]
    rows["Goal"] = [goal(run)]
    unused = () if run.settings.needs_times else [field.name for field in dataclasses.fields(TimeSettings)]
    for group, lines in chosen_settings(run.settings, unused).items():
        rows[group] = rows.get(group, []) + lines
    listed = [f"<dt>{escape(title)}</dt><dd>{'<br>'.join(map(escape, lines))}</dd>" for title, lines in rows.items()]
    return section("What was asked", f"<dl>{''.join(listed)}</dl>")


def chosen_settings(settings: Any, without: Collection[str] = ()) -> dict[str, list[str]]:
    """Group -> lines of text about the settings that were chosen from a registry or differ from their defaults.

    A choice from a registry has a line of its own, with the registry's help; the others share a line. Goals are left
    out, because the report has a sentence about them. without: others that decided nothing.
    """
    goals = {field.name for field in dataclasses.fields(Goal)}
    groups: dict[str, tuple[list[str], list[str]]] = {}  # group -> lines, settings that share a line
    for field, about in _by_group(settings):
        if field.name in without:
            continue
        value, name = getattr(settings, field.name), field.name.replace("_", " ")
        lines, shared = groups.setdefault(about.group, ([], []))
        if isinstance(about.choices, Registry) and about.choice_of(value) in about.choices:
            lines.append(f"{name} {value}: {about.choices.help(about.choice_of(value))}")
        elif field.name not in goals and value != default_of(field):
            shared.append(f"{name} {setting_text(value)}")
    joined = {group: [*lines, ", ".join(shared)] if shared else lines for group, (lines, shared) in groups.items()}
    return {group: lines for group, lines in joined.items() if lines}


def all_settings(settings: Any, quality: QualityWords = ACCURACY) -> str:
    """A folded table of all settings: group, name, value, whether it was changed, and help.

    quality: what the setting `measure` means by "accuracy".
    """
    rows = []
    for field, about in _by_group(settings):
        value = getattr(settings, field.name)
        changed = "" if value == default_of(field) else "changed"
        text = quality.name if (field.name, value) == ("measure", "accuracy") else setting_text(value)
        cells = (about.group, field.name, text, changed, about.help)
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    table = f'<div class="scroll"><table class="plain"><tbody>{"".join(rows)}</tbody></table></div>'
    return folded("All settings", table, False)


def _by_group(settings: Any) -> Iterator[tuple[dataclasses.Field[Any], Option]]:
    """The options in the order of their groups."""
    places = {group: place for place, group in enumerate(GROUPS)}
    yield from sorted(options_of(settings), key=lambda pair: places.get(pair[1].group, len(places)))


def setting_text(value: Any) -> str:
    """A setting's value for people."""
    if value is None or value in ((), [], {}):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        more = f" and {len(value) - LISTED} more" if len(value) > LISTED else ""
        return ", ".join(setting_text(each) for each in value[:LISTED]) + more
    if isinstance(value, dict):
        return ", ".join(f"{key} {setting_text(each)}" for key, each in value.items())
    return f"{value:g}" if isinstance(value, float) else str(getattr(value, "__name__", value))
