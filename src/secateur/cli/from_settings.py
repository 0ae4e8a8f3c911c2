"""Command line options made from dataclasses of settings.

    @friendly
    @options_from_settings
    def command(model: Model, data: DataOptions, settings: Settings) -> None: ...

Every parameter whose type is a dataclass of `secateur.base.options` becomes one command line option for each of its
fields, in the groups that the fields name; the verb gets the filled-in dataclass.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import shlex
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer

from secateur.base.options import GROUPS, Option, check, default_of, options_of
from secateur.errors import SecateurError

S = TypeVar("S")

EVERYDAY = "Everyday options"


def options_from_settings(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Spread the settings classes among a verb's parameters into single options."""
    hints = get_type_hints(verb, include_extras=True)
    classes: dict[str, type[Any]] = {}
    plain: list[inspect.Parameter] = []
    spread: list[tuple[Option, inspect.Parameter]] = []
    for parameter in inspect.signature(verb).parameters.values():
        kind = hints[parameter.name]
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            classes[parameter.name] = kind
            spread += [(about, _parameter(kind, field, about)) for field, about in _shown(kind)]
        else:
            plain.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))
    spread.sort(key=lambda pair: _place(pair[0]))  # stable: options of a group stay in the order of their fields

    @functools.wraps(verb)
    def run(**values: Any) -> Any:
        for name, kind in classes.items():
            names = [field.name for field, _ in _shown(kind)]
            values[name] = settings_typed(kind, {name: values.pop(name) for name in names})
            check(values[name], SecateurError)  # before anything slow is imported
            if hasattr(values[name], "check"):
                values[name].check()
        return verb(**values)

    arguments = [p for p in plain if _is_argument(p)]
    others = [p for p in plain if not _is_argument(p)]
    run.__signature__ = inspect.Signature([*arguments, *(p for _, p in spread), *others])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in run.__signature__.parameters.values()}  # type: ignore[attr-defined]
    return run


def _shown(kind: type[Any]) -> list[tuple[dataclasses.Field[Any], Option]]:
    return [(field, about) for field, about in options_of(kind) if not about.hidden]


def _place(about: Option) -> tuple[bool, int]:
    """Everyday options come first, then the groups in their order, then groups of a verb's own."""
    return not about.everyday, GROUPS.index(about.group) if about.group in GROUPS else len(GROUPS)


def _parameter(kind: type[Any], field: dataclasses.Field[Any], about: Option) -> inspect.Parameter:
    annotation = get_type_hints(kind)[field.name]
    default = field.default
    if default is dataclasses.MISSING:
        default = inspect.Parameter.empty if _required(field) else None
    if about.parse is not None:
        annotation, default = (str, default) if _required(field) else (str | None, None)
    elif get_origin(annotation) is tuple:
        annotation, default = list[get_args(annotation)[0]] | None, None  # type: ignore[misc]
    elif about.own or any(get_origin(part) is Literal for part in (annotation, *get_args(annotation))):
        # A name on the command line; `check` lists the choices.
        annotation = str | None if type(None) in get_args(annotation) else str
    panel = EVERYDAY if about.everyday else about.group or None
    info = typer.Option(help=about.help, rich_help_panel=panel)
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[annotation, info]
    )


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _value(field: dataclasses.Field[Any], about: Option, typed: Any) -> Any:
    if typed is None:
        return default_of(field)
    if about.parse is not None:
        return about.parse(typed)
    return tuple(typed) if isinstance(typed, list) else typed


def _is_argument(parameter: inspect.Parameter) -> bool:
    marks = getattr(parameter.annotation, "__metadata__", ())
    return any(isinstance(mark, typer.models.ArgumentInfo) for mark in marks)


def settings_typed(kind: type[S], typed: Mapping[str, Any]) -> S:
    """Settings of a class from what was typed for its options."""
    return kind(**{field.name: _value(field, about, typed[field.name]) for field, about in _shown(kind)})


def values_of(*settings: Any) -> dict[str, Any]:
    """The command line options of some settings as plain values: name -> value."""
    values = {field.name: getattr(each, field.name) for each in settings for field, _ in _shown(type(each))}
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


def settings_from(kind: type[S], values: Mapping[str, Any]) -> S:
    """The inverse of `values_of`: settings of a class from plain values, also after a round trip through JSON."""
    hints = get_type_hints(kind)
    found = {}
    for field, _ in _shown(kind):
        if field.name in values:
            value = values[field.name]
            path = value is not None and Path in (hints[field.name], *get_args(hints[field.name]))
            found[field.name] = Path(value) if path else tuple(value) if isinstance(value, list) else value
    return kind(**found)


def command_line(verb: str, argument: str, *settings: Any, always: Collection[str] = ()) -> str:
    """The command that gives these settings again. Options at their default are left out, except those in `always`."""
    words = ["secateur", verb, argument]
    for each in settings:
        for field, _ in _shown(type(each)):
            value = getattr(each, field.name)
            if value != default_of(field) or field.name in always:
                words += _words(f"--{field.name.replace('_', '-')}", value)
    return shlex.join(words)


def _words(name: str, value: Any) -> list[str]:
    """An option as it is typed; one with several values is repeated."""
    if isinstance(value, bool):
        return [name if value else f"--no-{name[2:]}"]
    if isinstance(value, tuple):
        return [word for each in value for word in _words(name, each)]
    whole = isinstance(value, float) and value.is_integer() and value >= 1000  # 63000000, not 63000000.0
    return [name, f"{value:.0f}" if whole else str(value)]
