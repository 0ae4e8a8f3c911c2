"""Settings that are declared once: a dataclass field carries its help, its group and its bounds.

    @dataclass(frozen=True)
    class TrainSettings:
        epochs: int | None = option(None, "Epochs of each round", group="Retraining", least=0)

The command line makes its options from these fields (`prunus.cli.options`), `check` validates an instance, and
the report lists them. Nothing here imports torch, so that `--help` is quick.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from prunus.errors import FileError, PrunusError
from prunus.util.registry import Entry, Registry, guessed, unknown

KEY = "option"
# Their order in help and reports:
GROUPS = ("Goal", "Channels", "Layers", "Repair", "Retraining", "Fine-tuning", "Data", "Output")


@dataclass(frozen=True)
class Option:
    """What is known of a setting besides its type and default."""

    help: str
    group: str = ""  # the title under which `--help` lists it
    everyday: bool = False  # listed first
    least: float | None = None  # smallest value allowed
    most: float | None = None  # largest value allowed
    above: float | None = None  # values must be greater
    below: float | None = None  # values must be smaller
    choices: Sequence[str] | Registry[Any] | None = None
    with_options: bool = False  # options may follow the choice, as in gsd:ridge=0
    parse: Callable[[str], Any] | None = None  # makes the value of the text typed on the command line, as 63M
    own: bool = False  # a function of the user's own is a valid value
    hidden: bool = False  # a setting that only Python can give
    valid: Callable[[Any], object] | None = None  # raises a PrunusError for a wrong value; called for each of a tuple
    several: bool = False  # a tuple of strings; a single string is a tuple of one

    def choice_of(self, value: Any) -> Any:
        """The choice in a value: gsd of gsd:ridge=0, if options may follow it."""
        return value.partition(":")[0] if self.with_options and isinstance(value, str) else value


def option(default: Any, help: str, **details: Any) -> Any:
    """A dataclass field with a default and an `Option`; `details` are the fields of `Option`."""
    metadata = {KEY: Option(help, **details)}
    if isinstance(default, list | dict | set):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def options_of(settings: Any) -> Iterator[tuple[dataclasses.Field[Any], Option]]:
    """The fields of a settings class or instance that are options, in their order."""
    for field in dataclasses.fields(settings):
        if KEY in field.metadata:
            yield field, field.metadata[KEY]


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The default of a field, also if it is made by a factory."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def strings_as_tuples(settings: Any) -> None:
    """For `__post_init__`: a string given for a setting with several values is one value, not its characters."""
    for field, about in options_of(settings):
        value = getattr(settings, field.name)
        if about.several and isinstance(value, str):
            object.__setattr__(settings, field.name, (value,))  # the dataclass is frozen, and still being made


def check(settings: Any, error: type[PrunusError]) -> None:
    """Raise `error` for the first setting that has a wrong type, is not one of its choices or is outside its bounds."""
    kinds = _kinds(type(settings))
    for field, about in options_of(settings):
        value = getattr(settings, field.name)
        own = about.own and (callable(value) or isinstance(value, Entry))
        if value is None or value == field.default or own:
            continue
        if about.choices is not None:
            check_choice(field.name, about.choice_of(value), about.choices, error)
        if about.several and not _are_strings(value):
            raise error(f"{field.name} must be a string or several strings, got {value!r}")
        bounds = _bounds(about)
        if bounds and not _within(value, about):
            number = "" if isinstance(value, int | float) else f", which is no number but {type(value).__name__}"
            raise error(f"{field.name} must be {bounds}, got {value!r}{number} ({about.help})")
        wanted = _wanted_type(value, kinds[field.name])
        if wanted is not None:
            raise error(f"{field.name} must be {wanted}, got {value!r} ({about.help})")
        if about.valid is not None:
            for each in value if isinstance(value, tuple) else (value,):
                about.valid(each)


def replaced(settings: Any, changes: Mapping[str, Any], error: type[PrunusError]) -> Any:
    """`settings` with some fields changed; a name that is no field raises `error` with the nearest names."""
    if not dataclasses.is_dataclass(settings) or isinstance(settings, type):
        raise error(f"settings must be an object such as prunus.Settings(...), got {type(settings).__name__}")
    names = [field.name for field in dataclasses.fields(settings)]
    for name in changes:
        if name not in names:
            raise error(unknown("setting", name, names))
    return dataclasses.replace(settings, **changes)


def plain(settings: Any) -> dict[str, Any]:
    """The settings as plain values for JSON; functions and entries of the user's own become their names."""
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Entry):
        return value.name or "own"
    return getattr(value, "__name__", "own") if callable(value) else value


def check_choice(name: str, value: Any, choices: Sequence[str] | Registry[Any], error: type[PrunusError]) -> None:
    """Raise `error` with the nearest name unless a value is one of the choices."""
    if value in choices:
        return
    if isinstance(choices, Registry):
        raise error(unknown(choices.what, value, choices))
    raise error(f"{name} must be one of {', '.join(choices)}; got {value!r}{guessed(value, choices)}")


def _kinds(settings: type[Any]) -> dict[str, tuple[Any, ...]]:
    """Field -> the types that its annotation allows."""
    hints = get_type_hints(settings)
    return {name: get_args(h) if isinstance(h, UnionType) else (h,) for name, h in hints.items()}


def _wanted_type(value: Any, kinds: tuple[Any, ...]) -> str | None:
    """What a value should be, in words, if it is something else. Strings and numbers are checked by other rules."""
    plain = {kind for kind in kinds if kind is not NoneType}
    if plain == {bool} and not isinstance(value, bool):
        return "True or False"
    if plain == {int} and (isinstance(value, bool) or not isinstance(value, int)):
        return "a whole number"
    if plain and all(get_origin(kind) is Callable for kind in plain) and not callable(value):
        return "a function"
    if plain and all(get_origin(kind) is dict for kind in plain) and not isinstance(value, Mapping):
        return "a dict"
    return None


def _are_strings(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(value, str) for value in values)


def _bounds(about: Option) -> str:
    words = {"at least": about.least, "above": about.above, "at most": about.most, "below": about.below}
    return " and ".join(f"{word} {bound:g}" for word, bound in words.items() if bound is not None)


def _within(value: Any, about: Option) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return False
    return (
        (about.least is None or value >= about.least)
        and (about.most is None or value <= about.most)
        and (about.above is None or value > about.above)
        and (about.below is None or value < about.below)
    )


@dataclass(frozen=True)
class Seeded:
    """Settings of something random."""

    seed: int = option(0, "Seed of samples, order and augmentation", group="Output", least=0)


# Values from text: lists separated by commas in an option of the command line, and JSON that prunus wrote.


def names(text: str) -> tuple[str, ...]:
    """'gsd, l1' -> ('gsd', 'l1')."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def numbers(text: str) -> tuple[float, ...]:
    """'0.1,0.2' -> (0.1, 0.2)."""
    try:
        return tuple(float(word) for word in text.replace(",", " ").split())
    except ValueError as error:
        raise PrunusError(f"expected numbers separated by commas, such as 0.1,0.2; got {text!r}") from error


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
        raise FileError(f"the {what} has version {data.get('version')!r}; this prunus reads version {known}")
    return data
