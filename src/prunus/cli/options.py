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
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer

from prunus.cli.console import Early, choice
from prunus.cli.network import MODEL_HELP, check_network
from prunus.errors import PrunusError
from prunus.util.options import GROUPS, Option, check, default_of, option, options_of
from prunus.zoo.names import check_weight_file

if TYPE_CHECKING:
    import torch

S = TypeVar("S")

EVERYDAY = "Everyday options"


@dataclass(frozen=True)
class OnlyWith:
    """Marks settings of a verb that only some of its modes use, as in Annotated[ScoreSettings, OnlyWith("scores")].

    `--help` lists them under the modes, and `refuse_other_modes` refuses them elsewhere. Settings classes may share an
    option: it belongs to the modes of both.
    """

    modes: tuple[str, ...]

    def __init__(self, *modes: str) -> None:
        object.__setattr__(self, "modes", modes)


@dataclass(frozen=True)
class Without:
    """Marks settings of a verb of which some are not offered on the command line; Python has them."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)


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
    for parameter in inspect.signature(verb).parameters.values():
        hint, marks = hints[parameter.name], getattr(hints[parameter.name], "__metadata__", ())
        kind = get_args(hint)[0] if marks else hint
        if not (dataclasses.is_dataclass(kind) and isinstance(kind, type)):
            is_argument = any(isinstance(mark, typer.models.ArgumentInfo) for mark in marks)
            plain = parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY)
            (arguments if is_argument else others).append(plain)
            continue
        classes[parameter.name] = kind
        without = [name for mark in marks if isinstance(mark, Without) for name in mark.names]
        used_by = [mode for mark in marks if isinstance(mark, OnlyWith) for mode in mark.modes]
        for field, about in _offered(kind):
            if field.name in without:
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
        for name, kind in classes.items():
            values[name] = settings_from(kind, typed)
            check(values[name], PrunusError)  # before anything slow is imported
            if hasattr(values[name], "check"):
                values[name].check()
        return verb(**values)

    # Stable: options of a group stay in the order of their fields.
    ordered = [parameter for _, parameter in sorted(spread.values(), key=lambda pair: pair[0])]
    run.__signature__ = inspect.Signature([*arguments, *ordered, *others])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in run.__signature__.parameters.values()}  # type: ignore[attr-defined]
    return run


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


def command_line(verb: str, argument: str, *settings: Any, never: Collection[str] = ()) -> str:
    """The command that gives these settings again, without options at their default and those in `never`."""
    words = ["prunus", verb, argument]
    for each in settings:
        for field, _ in _offered(type(each)):
            value = getattr(each, field.name)
            if field.name not in never and value != default_of(field):
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


def typed_options(context: typer.Context) -> dict[str, Any]:
    """The options and arguments that were typed: name -> click's parameter."""
    typed = {}
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and not source.name.startswith("DEFAULT"):
            typed[parameter.name or ""] = parameter
    return typed


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
    """How the layers of a network are timed."""

    batch: int = option(1, "Number of images in a batch", least=1)
    threads: int = option(1, "Number of CPU threads", least=1, most=os.cpu_count())


@dataclass(frozen=True)
class DeviceOptions:
    """The device that computes."""

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
    """How images are read for retraining."""

    augment: bool = option(True, "Random crops and flips in retraining", group="Retraining")
    batch_size: int = option(128, "Images per training step", group="Retraining", least=1)


PARTS = ("train", "holdout", "test")

Classes = Annotated[int | None, typer.Option(help="Number of classes, if it is not the model's default", min=1)]
Model = Annotated[str, typer.Argument(help=MODEL_HELP), Early(check_network)]
NumImages = Annotated[
    int | None, typer.Option(help="Number of images, a sample with the same share of each class; all by default", min=1)
]
Original = Annotated[str | None, typer.Option(help="Original network of a folder, if the folder does not name it")]
Part = Annotated[str, typer.Option(help="Images to read: train, holdout or test"), choice("part", *PARTS)]
Pretrained = Annotated[bool, typer.Option("--pretrained", help="The weights that timm or torchvision loads itself")]
Weights = Annotated[
    Path | None, typer.Option(help="Weight file (.safetensors, .pt, .pth, .th, .ckpt)"), Early(check_weight_file)
]
