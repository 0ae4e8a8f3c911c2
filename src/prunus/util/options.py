"""Settings that are declared once: a dataclass field carries its help, its group and its bounds.

    @dataclass(frozen=True)
    class TrainSettings:
        epochs: int | None = option(None, "Epochs of each round", group="Retraining", least=0)

The command line makes its options from these fields (`prunus.cli.options`), `check` validates an instance, and
the report lists them. Nothing here imports torch, so that `--help` is quick.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from prunus.errors import PrunusError, RunError
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
    least: float | None = None
    most: float | None = None
    above: float | None = None  # values must be greater
    below: float | None = None
    choices: Sequence[str] | Registry[Any] | None = None
    with_options: bool = False  # options may follow the choice, as in gsd:ridge=0
    parse: Callable[[str], Any] | None = None  # makes the value of the text typed on the command line, as 63M
    user_code: bool = False  # a user-provided function or entry is a valid value
    hidden: bool = False  # only Python can give it
    valid: Callable[[Any], object] | None = None  # raises a PrunusError for a wrong value, or one of a tuple
    several: bool = False  # a tuple of strings; a single string is a tuple of one

    def choice_of(self, value: Any) -> Any:
        """The choice in a value: gsd of gsd:ridge=0, if options may follow it."""
        if not self.with_options or not isinstance(value, str):
            return value
        return self.choices.split_options(value)[0] if isinstance(self.choices, Registry) else value.partition(":")[0]


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


def normalise(settings: Any) -> None:
    """For `__post_init__`: values that Python users give, as the declared type.

    A string for a setting with several values is one value, not its characters; text such as "63M" is read as on the
    command line; numbers of numpy and torch are Python's.
    """
    for field, about in options_of(settings):
        value = given = getattr(settings, field.name)
        if isinstance(value, str) and (about.several or about.parse is not None):
            value = (value,) if about.parse is None else about.parse(value)
        elif getattr(value, "shape", None) == () and hasattr(value, "item"):
            value = value.item()
        if value is not given:
            object.__setattr__(settings, field.name, value)  # the dataclass is frozen, and still being made


def check(settings: Any, error: type[PrunusError]) -> None:
    """Raise `error` for the first setting that has a wrong type, is not one of its choices or is outside its bounds."""
    hints = get_type_hints(type(settings))
    for field, about in options_of(settings):
        name, value = field.name, getattr(settings, field.name)
        provided = about.user_code and (callable(value) or isinstance(value, Entry))
        if value is None or value == field.default or provided:
            continue
        if about.choices is not None:
            check_choice(name, about.choice_of(value), about.choices, error)
        if about.several and not (isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)):
            raise error(f"{name} must be a string or several strings, got {value!r}")
        _check_bounds(name, value, about, error)
        if wanted := _wanted_type(value, hints[name]):
            raise error(f"{name} must be {wanted}, got {value!r} ({about.help})")
        if about.valid is not None:
            for each in value if isinstance(value, tuple) else (value,):
                about.valid(each)


def check_choice(name: str, value: Any, choices: Sequence[str] | Registry[Any], error: type[PrunusError]) -> None:
    """Raise `error` with the nearest name unless a value is one of the choices."""
    if value in choices:
        return
    if not isinstance(choices, Registry):
        raise error(f"{name} must be one of {', '.join(choices)}; got {value!r}{guessed(value, choices)}")
    if not choices.names_function(value):
        raise error(unknown(choices.what, value, choices))
    choices.check(value)


def _check_bounds(name: str, value: Any, about: Option, error: type[PrunusError]) -> None:
    bounds = [
        ("at least", about.least, operator.ge),
        ("above", about.above, operator.gt),
        ("at most", about.most, operator.le),
        ("below", about.below, operator.lt),
    ]
    given = [(text, bound, keeps) for text, bound, keeps in bounds if bound is not None]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not given or (is_number and math.isfinite(value) and all(keeps(value, bound) for _, bound, keeps in given)):
        return
    allowed = " and ".join(f"{text} {bound:g}" for text, bound, _ in given)
    number = "" if isinstance(value, int | float) else f", which is no number but {type(value).__name__}"
    raise error(f"{name} must be {allowed}, got {value!r}{number} ({about.help})")


def _wanted_type(value: Any, hint: Any) -> str | None:
    """What a value should be, in words, if it is something else. Strings and numbers are checked by other rules."""
    kinds = {kind for kind in (get_args(hint) if isinstance(hint, UnionType) else (hint,)) if kind is not NoneType}
    origins = {get_origin(kind) for kind in kinds}
    if kinds == {bool} and not isinstance(value, bool):
        return "True or False"
    if kinds == {int} and (isinstance(value, bool) or not isinstance(value, int)):
        return "a whole number"
    if origins == {Callable} and not callable(value):
        return "a function"
    if origins == {dict} and not isinstance(value, Mapping):
        return "a dict"
    return None


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
    """The settings as plain values for JSON; user-provided functions and entries become their names."""
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    for name, value in values.items():
        if isinstance(value, Entry):
            values[name] = value.name or "own"
        elif callable(value):
            values[name] = getattr(value, "__name__", "own")
    return values


@dataclass(frozen=True)
class Seeded:
    """Settings of something random."""

    seed: int = option(0, "Seed of samples, order and augmentation", group="Output", least=0)


# Values in the text of a command line option.


def as_typed(name: str, value: Any, by_set: Collection[str] = ()) -> list[str]:
    """A setting as it is typed: --batch-size 128, --no-augment; several values repeat it; --set k=3 if in `by_set`."""
    option = f"--{name.replace('_', '-')}"
    if isinstance(value, list | tuple):
        return [word for each in value for word in as_typed(name, each, by_set)]
    if name in by_set:
        return ["--set", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    if isinstance(value, bool):
        return [option if value else f"--no-{option[2:]}"]
    whole = isinstance(value, float) and value.is_integer() and value >= 1000  # 63000000, not 63000000.0
    return [option, f"{value:.0f}" if whole else str(value)]


def parse_value(text: str) -> Any:
    """The value of a TOML literal such as '3', '0.5', 'true' or '["a"]'; any other text as it is."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


LEAST_MEMORY = 100 * 10**6  # bytes, for work on batches of images


def names(text: str) -> tuple[str, ...]:
    """'gsd, l1' -> ('gsd', 'l1')."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def numbers(text: str) -> tuple[float, ...]:
    """'0.1,0.2' -> (0.1, 0.2)."""
    try:
        return tuple(float(number) for number in text.replace(",", " ").split())
    except ValueError as error:
        raise PrunusError(f"expected numbers separated by commas, such as 0.1,0.2; got {text!r}") from error


def parse_memory(text: str | int, least: int = LEAST_MEMORY) -> int:
    """Bytes of a size such as 4G, 500M or 1.5 GiB, or of a number. Anything else, and less than `least`, is refused."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?\s*", str(text).upper())
    size = int(float(match[1]) * 1024 ** " KMGT".index(match[2] or " ")) if match else 0
    if size < least:
        bound = ", at least 100M" if least == LEAST_MEMORY else ""
        raise RunError(f"memory must be a size such as 4G or 500M{bound}; got {text!r}")
    return size


def maps_memory(text: str | int) -> int:
    """Bytes for feature maps, of which a few images may be enough."""
    return parse_memory(text, least=1)
