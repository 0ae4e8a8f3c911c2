"""Docstrings as Markdown. They are written for `help()`: lines of `name: what it is`, without blank lines between."""

from __future__ import annotations

import re
from typing import Any

import griffe

ARGUMENT = re.compile(r"^(?P<names>\w+(?:, \w+)*(?: \([^)]*\))?): (?P<text>\S.*)$")
PAGE = re.compile(r"\(docs/(\w+)\.md\)")


class ReadableDocstrings(griffe.Extension):
    """Lists of arguments become lists, and pages that are named become links."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """`device: where it runs` -> a list item; continued lines follow it; examples, which are indented, stay."""
    lines: list[str] = []
    in_list = False
    for line in PAGE.sub(r"([\1](../\1.md))", text).splitlines():
        argument = ARGUMENT.match(line)
        if argument:
            if not in_list and lines and lines[-1]:
                lines.append("")
            lines.append(f"- **{argument['names']}**: {argument['text']}")
            in_list = True
        elif in_list and line and not line.startswith(" "):
            lines += ["", line]
            in_list = False
        else:
            lines.append(line)
            in_list = in_list and bool(line)
    return "\n".join(lines)
