"""Dataclasses from and to JSON: one reader and one writer for plans, tables, summaries and all other files.

    write_record(path, table, "prunus-table", 1)
    table = read_record(path, Table, "prunus-table", 1)

Types are read from the fields. A value that does not fit is a FileError that names its place, as in
`units.conv1.keep[3]: expected a whole number, got 'x'`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from prunus.errors import FileError
from prunus.util.files import read_object, write_atomically

T = TypeVar("T")

_NAMES: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    dict: "an object",
    list: "a list",
    type(None): "null",
}


def to_data(value: Any) -> Any:
    """Plain values for JSON: dataclasses become objects, tuples lists; arrays and tensors give `tolist()`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_data(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_data(each) for key, each in value.items()}
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, Sequence | set | frozenset):
        return [to_data(each) for each in value]
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)


def finite(value: Any) -> Any:
    """Plain values in which NaN and infinity, which JSON does not have, are None."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def from_data(kind: type[T], data: Any) -> T:
    """The inverse of `to_data`: an object of type `kind`, checked against its type hints."""
    return typing.cast(T, _read(kind, data, ""))


def write_record(path: Path, value: Any, form: str, version: int) -> None:
    """Write a dataclass or a dict as JSON with "format" and "version", whole or not at all."""
    data = {"format": form, "version": version, **to_data(value)}
    write_atomically(path, f"{json.dumps(data, indent=1)}\n".encode())


def read_record(path: Path, kind: type[T], form: str, version: int) -> T:
    """Read what `write_record` wrote. FileError says what is wrong with the file."""
    data = read_object(path)
    try:
        return from_data(kind, _unversioned(data, f"{form} file", form, version))
    except FileError as error:
        raise FileError(f"{path}: {error}") from error


def versioned_object(text: str, what: str, form: str, version: int) -> dict[str, Any]:
    """The JSON object of a text with "format" and "version", without these two. `what`: as in "not a plan"."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise FileError(f"not a {what}: the JSON is broken or cut off ({error})") from error
    return _unversioned(data, what, form, version)


def _unversioned(data: Any, what: str, form: str, version: int) -> dict[str, Any]:
    if not isinstance(data, dict) or data.get("format") != form:
        raise FileError(f'not a {what}: expected JSON with "format": "{form}"')
    if data.get("version") != version:
        raise FileError(f"the {what} has version {data.get('version')!r}; this prunus reads version {version}")
    return {name: value for name, value in data.items() if name not in ("format", "version")}


def _read(kind: Any, data: Any, where: str) -> Any:
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin is Any:
        return data
    if origin in (Union, types.UnionType):
        errors = []
        for one in inner:
            try:
                return _read(one, data, where)
            except FileError as error:
                errors.append(error)
        raise errors[0]
    if origin is Literal:
        if data not in inner:
            raise FileError(f"{where}: expected one of {', '.join(map(repr, inner))}, got {data!r}")
        return data
    if isinstance(origin, type) and dataclasses.is_dataclass(origin):
        return _read_dataclass(origin, data, where)
    if origin is float and type(data) is int:
        return float(data)
    if origin in _NAMES and not inner:
        return _expect(origin, data, where)
    if issubclass(origin, Mapping):
        keys, values = inner or (str, Any)
        items = _expect(dict, data, where).items()
        return {(int(key) if keys is int else key): _read(values, each, _inside(where, key)) for key, each in items}
    if issubclass(origin, Sequence):
        items = _expect(list, data, where)
        one = inner[0] if inner else Any
        kinds = inner if origin is tuple and inner and inner[-1] is not Ellipsis else (one,) * len(items)
        if len(items) != len(kinds):
            raise FileError(f"{where}: expected {len(kinds)} values, got {len(items)}")
        values = [_read(kinds[i], each, f"{where}[{i}]") for i, each in enumerate(items)]
        return values if origin is list else tuple(values)
    return origin(data)  # a path, a set


def _read_dataclass(kind: type[Any], data: Any, where: str) -> Any:
    entries = _expect(dict, data, where)
    hints, values, here = get_type_hints(kind), {}, where or kind.__name__
    for field in (field for field in dataclasses.fields(kind) if field.init):
        if field.name in entries:
            values[field.name] = _read(hints[field.name], entries[field.name], _inside(where, field.name))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise FileError(f"{here}: {field.name!r} is missing")
    if unknown := entries.keys() - {field.name for field in dataclasses.fields(kind)}:
        raise FileError(f"{here}: unknown entry {min(unknown)!r}")
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise FileError(f"{here}: {error}") from error


def _inside(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _expect(kind: type[Any], data: Any, where: str) -> Any:
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise FileError(f"{where or 'the file'}: expected {_NAMES[kind]}, got {data!r:.80}")
    return data
