"""Dataclasses from and to JSON: one reader and one writer for plans, tables, summaries and all other files.

    write_record(path, plan, "prunus-plan", 1)
    plan = read_record(path, Plan, "prunus-plan", 1)

Types are read from the fields. A value that does not fit is a FileError that names its place, as in
`units.conv1.keep[3]: expected a whole number, got 'x'`.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from prunus.errors import FileError
from prunus.util.files import write_atomically

T = TypeVar("T")

_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}


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


def from_data(kind: type[T], data: Any, where: str = "") -> T:
    """The inverse of `to_data`: an object of type `kind`, checked against its type hints."""
    return typing.cast(T, _read(kind, data, where))


def write_record(path: Path, value: Any, form: str, version: int) -> None:
    """Write a dataclass or a dict as JSON with "format" and "version", whole or not at all."""
    data = {"format": form, "version": version, **to_data(value)}
    write_atomically(path, f"{json.dumps(data, indent=1)}\n".encode())


def read_record(path: Path, kind: type[T], form: str, version: int) -> T:
    """Read what `write_record` wrote. FileError says what is wrong with the file."""
    from prunus.util.files import read_object

    data = read_object(path)
    if data.pop("format", None) != form:
        raise FileError(f'{path}: expected JSON with "format": "{form}"')
    if (found := data.pop("version", None)) != version:
        raise FileError(f"{path} has version {found!r}; this prunus reads version {version}")
    try:
        return from_data(kind, data)
    except FileError as error:
        raise FileError(f"{path}: {error}") from error


def _read(kind: Any, data: Any, where: str) -> Any:
    if kind is Any:
        return data
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _read_any_of(inner, data, where)
    if origin is Literal:
        if data not in inner:
            raise FileError(f"{where}: expected one of {', '.join(map(repr, inner))}, got {data!r}")
        return data
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _read_dataclass(kind, data, where)
    container = origin or kind
    if isinstance(container, type) and issubclass(container, Mapping):
        keys, values = inner or (str, Any)
        found = _expect(dict, data, where, "an object")
        convert = int if keys is int else str
        return {convert(key): _read(values, each, f"{where}.{key}".lstrip(".")) for key, each in found.items()}
    if isinstance(container, type) and issubclass(container, Sequence) and not issubclass(container, str):
        found = _expect(list, data, where, "a list")
        if container is tuple and inner and inner[-1] is not Ellipsis:
            if len(found) != len(inner):
                raise FileError(f"{where}: expected {len(inner)} values, got {len(found)}")
            return tuple(
                _read(one, each, f"{where}[{i}]") for i, (one, each) in enumerate(zip(inner, found, strict=True))
            )
        items = [_read(inner[0] if inner else Any, each, f"{where}[{i}]") for i, each in enumerate(found)]
        return tuple(items) if container is tuple or container is not list else items
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if kind is type(None) or kind is None:
        return _expect(type(None), data, where, "null")
    if kind in _WORDS:
        if isinstance(data, bool) and kind is not bool:
            raise FileError(f"{where}: expected {_WORDS[kind]}, got {data!r}")
        return _expect(kind, data, where, _WORDS[kind])
    return kind(data)


def _read_any_of(kinds: tuple[Any, ...], data: Any, where: str) -> Any:
    if data is None and type(None) in kinds:
        return None
    errors = []
    for kind in kinds:
        if kind is type(None):
            continue
        try:
            return _read(kind, data, where)
        except FileError as error:
            errors.append(error)
    raise errors[0]


def _read_dataclass(kind: type[Any], data: Any, where: str) -> Any:
    found = _expect(dict, data, where, "an object")
    hints, values = get_type_hints(kind), {}
    for field in dataclasses.fields(kind):
        if not field.init:
            continue
        if field.name in found:
            values[field.name] = _read(hints[field.name], found[field.name], f"{where}.{field.name}".lstrip("."))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise FileError(f"{where or kind.__name__}: {field.name!r} is missing")
    unknown = found.keys() - {field.name for field in dataclasses.fields(kind)}
    if unknown:
        raise FileError(f"{where or kind.__name__}: unknown entry {min(unknown)!r}")
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise FileError(f"{where or kind.__name__}: {error}") from error


def _expect(kind: type[Any], data: Any, where: str, words: str) -> Any:
    if not isinstance(data, kind):
        raise FileError(f"{where or 'the file'}: expected {words}, got {data!r:.80}")
    return data
