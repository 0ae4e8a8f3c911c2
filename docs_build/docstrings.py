"""Docstrings as Markdown. They are written for `help()`: lines of `name: what it is`, without blank lines between.

Public dataclasses also get a table of their fields: the help of a setting, or the comment beside a field.
"""

from __future__ import annotations

import dataclasses
import re
from importlib import import_module
from typing import Any

import generated
import griffe

import prunus
from prunus.util.options import Option, default_of, options_of

ARGUMENT = re.compile(r"^(?P<names>[a-z]\w*(?:, \w+)*(?: \([^)]*\))?): (?P<text>\S.*)$")
PAGE = re.compile(r"\bdocs/(\w+)\.md")
COMMENT = re.compile(r"^    (\w+): .*?  # (.*)$", re.MULTILINE)


class ReadableDocstrings(griffe.Extension):
    """Lists of arguments become lists, pages that are named become links, fields become a table."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        if func.docstring is not None:
            func.docstring.value = as_markdown(func.docstring.value, {one.name for one in func.parameters})

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        if cls.docstring is not None:
            fields = _fields(cls)
            text = as_markdown(cls.docstring.value, set(fields))
            cls.docstring.value = "\n\n".join([text, _table(fields)] if fields else [text])


def as_markdown(text: str, known: set[str]) -> str:
    """`device: where it runs` -> an item of a list, which goes on until the next one or an empty line.

    known: names of arguments or fields; several of them may be described in one line.
    """
    several = re.compile(rf"(?<=[.;)]) (?=(?:{'|'.join(sorted(known)) or 'no_name'})(?:, \w+)*: )")
    lines: list[str] = []
    in_list = False
    for line in PAGE.sub(r"[\1](../\1.md)", text).splitlines():
        is_example = line.startswith("    ") and not in_list
        if is_example and lines and not lines[-1]:
            lines += ["<!-- -->", ""]  # otherwise it would belong to the list before it
        for piece in [line] if is_example else several.split(line):
            argument = ARGUMENT.match(piece)
            if argument:
                lines += [""] if lines and lines[-1] and not in_list else []
                lines.append(f"- **{argument['names']}**: {argument['text']}")
            else:
                lines.append(f"    {piece.strip()}" if in_list and piece else piece)
            in_list = (in_list or argument is not None) and bool(piece)
    return "\n".join(lines)


def _fields(cls: griffe.Class) -> dict[str, tuple[str, str]]:
    """Field -> (default or type, what it is) of a public dataclass."""
    if prunus._HOMES.get(cls.name) != cls.module.path:
        return {}
    kind = getattr(import_module(cls.module.path), cls.name)
    if not dataclasses.is_dataclass(kind):
        return {}
    settings: dict[str, Option] = {field.name: about for field, about in options_of(kind)}
    comments = dict(COMMENT.findall(cls.source))
    found = {}
    for field in dataclasses.fields(kind):
        if field.name in settings:
            found[field.name] = (repr(default_of(field)), settings[field.name].help)
        elif not field.name.startswith("_"):
            found[field.name] = (str(field.type), comments.get(field.name, ""))
    return found


def _table(fields: dict[str, tuple[str, str]]) -> str:
    rows = [f"| `{name}` | `{kind}` | {generated.cell(what)} |" for name, (kind, what) in fields.items()]
    return "\n".join(["| field | | |", "|---|---|---|", *rows])
