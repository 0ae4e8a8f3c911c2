"""Values from text: lists separated by commas in an option of the command line, and JSON that secateur wrote."""

from __future__ import annotations

import json
from typing import Any

from secateur.errors import FileError, SecateurError


def names(text: str) -> tuple[str, ...]:
    """'gsd, l1' -> ('gsd', 'l1')."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def numbers(text: str) -> tuple[float, ...]:
    """'0.1,0.2' -> (0.1, 0.2)."""
    try:
        return tuple(float(word) for word in text.replace(",", " ").split())
    except ValueError as error:
        raise SecateurError(f"expected numbers separated by commas, such as 0.1,0.2; got {text!r}") from error


def versioned_object(text: str, what: str, form: str, version: int, oldest: int | None = None) -> dict[str, Any]:
    """The JSON object of a file with "format" and "version".

    what: what the file should be, as in "not a plan".
    oldest: the oldest version that is read; by default only `version` is.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise FileError(f"not a {what}: the JSON is broken or cut off ({error})") from error
    if not isinstance(data, dict) or data.get("format") != form:
        raise FileError(f'not a {what}: expected JSON with "format": "{form}"')
    oldest = oldest or version
    if data.get("version") not in range(oldest, version + 1):
        known = f"{version}" if oldest == version else f"{oldest} to {version}"
        raise FileError(f"the {what} has version {data.get('version')!r}; this secateur reads version {known}")
    return data
