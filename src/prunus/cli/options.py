"""Options that several verbs share, and options made from dataclasses of settings.

Options that belong together are a dataclass, which `options_from_settings` turns into command line options; a single
option is a type alias. Importing this module does not import torch.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer

from prunus.cli.console import Early, choice
from prunus.cli.network import MODEL_HELP, check_model_name
from prunus.errors import PrunusError
from prunus.util.options import GROUPS, Option, as_typed, check, default_of, option, options_of, parse_value
from prunus.util.registry import unknown
from prunus.zoo.names import PARTS, check_weight_file

if TYPE_CHECKING:
    import torch

S = TypeVar("S")

EVERYDAY = "Everyday options"


class Without:
    """A mark of a verb's settings class, as in Annotated[Settings, Without("timing")]: these have no option."""

    def __init__(self, *names: str) -> None:
        self.names = names


class BySet(Without):
    """These settings have no option of their own: --set NAME=VALUE gives them."""


class OnlyWith(Without):
    """Only these modes of the verb use the settings: `refuse_other_modes` refuses them elsewhere.

    Settings classes may share an option: it belongs to the modes of both.
    """


def options_from_settings(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Spread the settings classes among a verb's parameters into single options.

    Everyday options come first, then the groups in their order, then groups of a verb's own.
    """
    hints = get_type_hints(verb, include_extras=True)
    classes: dict[str, type[Any]] = {}
    arguments: list[inspect.Parameter] = []
    others: list[inspect.Parameter] = []
    spread: dict[str, tuple[int, inspect.Parameter]] = {}
    declared: dict[str, tuple[str, Any]] = {}  # option -> its help and default, the same in all classes
    modes: dict[str, list[str]] = {}  # option -> the modes that use it
    by_set: dict[str, tuple[Any, str]] = {}  # setting without an option -> its type and help
    for parameter in inspect.signature(verb).parameters.values():
        hint, marks = hints[parameter.name], getattr(hints[parameter.name], "__metadata__", ())
        kind = get_args(hint)[0] if marks else hint
        if not (dataclasses.is_dataclass(kind) and isinstance(kind, type)):
            is_argument = any(isinstance(mark, typer.models.ArgumentInfo) for mark in marks)
            plain = parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY)
            (arguments if is_argument else others).append(plain)
            continue
        classes[parameter.name] = kind
        without, rare, used_by = (
            [name for mark in marks if type(mark) is each for name in mark.names] for each in (Without, BySet, OnlyWith)
        )
        for field, about in _offered(kind):
            if field.name in without:
                continue
            if field.name in rare:
                by_set[field.name] = get_type_hints(kind)[field.name], about.help
                continue
            meaning = about.help, default_of(field)
            if declared.setdefault(field.name, meaning) != meaning:  # one option would silently hide the other
                raise TypeError(f"{kind.__name__}.{field.name}: {meaning}, but also {declared[field.name]}")
            group = EVERYDAY if about.everyday else about.group
            if used_by:
                known = modes.setdefault(field.name, [])
                known += [mode for mode in used_by if mode not in known]
                group = f"With {' or '.join(f'--{mode}' for mode in known)}"
            place = (EVERYDAY, *GROUPS, group).index(group)
            spread[field.name] = place, _parameter(kind, field, about, group or None)

    @functools.wraps(verb)
    def run(**values: Any) -> Any:
        typed = {name: values.pop(name) for name in spread}
        typed |= _changes(values.pop("changes", None) or (), by_set, spread)
        for name, kind in classes.items():
            values[name] = settings_from(kind, typed)
            check(values[name], PrunusError)  # before anything slow is imported
            if hasattr(values[name], "check"):
                values[name].check()
        return verb(**values)

    # Stable: options of a group stay in the order of their fields.
    ordered = [parameter for _, parameter in sorted(spread.values(), key=lambda pair: pair[0])]
    if by_set:

        def checked(texts: list[str] | None) -> list[str] | None:
            _changes(texts or (), by_set, spread)
            return texts

        names = f"NAME without a value says what it is: {', '.join(by_set)}"
        info = typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help=f"Another setting, as in ema=0.99; can be repeated. {names}",
            rich_help_panel="Other settings",
            callback=checked,
        )
        annotation = Annotated[list[str] | None, info]
        others.append(inspect.Parameter("changes", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    offered = [*arguments, *ordered, *others]
    run.__signature__ = inspect.Signature(offered)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in offered}
    return run


def _changes(texts: Iterable[str], by_set: Mapping[str, tuple[Any, str]], options: Collection[str]) -> dict[str, Any]:
    changes = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if name in options:
            raise typer.BadParameter(f"{text}: this setting has an option, --{name.replace('_', '-')}")
        if name not in by_set:
            raise typer.BadParameter(unknown("setting", name, list(by_set)))
        kind, meaning = by_set[name]
        if not equals:
            raise typer.BadParameter(f"{text} is not NAME=VALUE. {name}: {meaning}")
        parsed = parse_value(value.lower() if value in ("True", "False") else value)
        is_float = float in (kind, *get_args(kind)) and type(parsed) is int
        changes[name] = float(parsed) if is_float else parsed
    return changes


def _offered(kind: type[Any]) -> Iterator[tuple[dataclasses.Field[Any], Option]]:
    return ((field, about) for field, about in options_of(kind) if not about.hidden)


def _parameter(kind: type[Any], field: dataclasses.Field[Any], about: Option, panel: str | None) -> inspect.Parameter:
    annotation = get_type_hints(kind)[field.name]
    default = field.default
    required = default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    if default is dataclasses.MISSING:
        default = inspect.Parameter.empty if required else None
    if about.parse is not None:
        annotation, default = (str, default) if required else (str | None, None)
    elif get_origin(annotation) is tuple:
        annotation, default = list[get_args(annotation)[0]] | None, None  # type: ignore[misc]
    elif about.user_code or any(get_origin(part) is Literal for part in (annotation, *get_args(annotation))):
        # A name on the command line; `check` lists the choices.
        annotation = str | None if type(None) in get_args(annotation) else str
    info = typer.Option(help=about.help, rich_help_panel=panel)
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[annotation, info]
    )


def settings_from(kind: type[S], values: Mapping[str, Any]) -> S:
    """Settings of a class from values by name, as they were typed or as they come back from JSON.

    What is missing or None has its default, as have settings that the command line does not offer.
    """
    hints = get_type_hints(kind)
    chosen = {}
    for field, about in _offered(kind):
        value = values.get(field.name)
        if value is None:
            value = default_of(field)
        elif about.parse is not None and isinstance(value, str):
            value = about.parse(value)
        elif Path in (hints[field.name], *get_args(hints[field.name])):
            value = Path(value)
        chosen[field.name] = tuple(value) if isinstance(value, list) else value
    return kind(**chosen)


def values_of(*settings: Any) -> dict[str, Any]:
    """The command line options of some settings as plain values for JSON: name -> value."""
    values = {field.name: getattr(each, field.name) for each in settings for field, _ in _offered(type(each))}
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


def command_line(verb: str, argument: str, *settings: Any, by_set: Collection[str] = ()) -> str:
    """The command that gives these settings again, without options at their default."""
    words = ["prunus", verb, argument]
    for each in settings:
        for field, _ in _offered(type(each)):
            value = getattr(each, field.name)
            if value != default_of(field):
                words += as_typed(field.name, value, by_set)
    return shlex.join(words)


def typed_options(context: typer.Context) -> dict[str, Any]:
    """The options and arguments that were typed: name -> click's parameter."""
    typed = {}
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and not source.name.startswith("DEFAULT"):
            typed[parameter.name or ""] = parameter
    changes = typed.pop("changes", None)
    return typed | {text.partition("=")[0]: changes for text in context.params.get("changes") or ()}


def refuse_other_modes(context: typer.Context, mode: str | None) -> None:
    """PrunusError for an option that was typed, and that the mode at work does not use (see `OnlyWith`)."""
    for name, parameter in typed_options(context).items():
        panel = str(getattr(parameter, "rich_help_panel", None) or "")
        if panel.startswith("With ") and (mode is None or f"--{mode}" not in panel.split()):
            what, modes = f"--{name.replace('_', '-')}", panel.removeprefix("With ")
            verb = context.info_name
            raise PrunusError(f"{what} belongs to {modes}: give that too, or leave {what} out (prunus {verb} --help)")


# -- options that several verbs share


@dataclass(frozen=True)
class LayerTimeOptions:
    batch: int = option(1, "Number of images in a batch", least=1)
    threads: int = option(1, "Number of CPU threads", least=1, most=os.cpu_count())


@dataclass(frozen=True)
class DeviceOptions:
    device: str | None = option(None, "cpu, cuda, cuda:1, ...; the best available by default", group="Data")

    def pick(self) -> torch.device:
        """The device asked for, or the best available. Each process that torchrun started gets its own."""
        from prunus.util.processes import best_device, usable

        chosen = usable(self.device) if self.device else best_device()
        if chosen.type != "cpu" and ":" not in str(self.device) and "LOCAL_RANK" in os.environ:
            return usable(f"{chosen.type}:{os.environ['LOCAL_RANK']}")
        return chosen


@dataclass(frozen=True)
class TrainingImages:
    augment: bool = option(True, "Random crops and flips in retraining", group="Retraining")
    batch_size: int = option(128, "Images per training step", group="Retraining", least=1)


Classes = Annotated[int | None, typer.Option(help="Number of classes, if it is not the model's default", min=1)]
Model = Annotated[str, typer.Argument(help=MODEL_HELP), Early(check_model_name)]
NumImages = Annotated[
    int | None, typer.Option(help="Number of images, a sample with the same share of each class; all by default", min=1)
]
Part = Annotated[str, typer.Option(help="Images to read: train, holdout or test"), choice("part", *PARTS)]
Weights = Annotated[
    Path | None, typer.Option(help="Weight file (.safetensors, .pt, .pth, .th, .ckpt)"), Early(check_weight_file)
]
