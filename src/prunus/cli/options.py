"""Options that several verbs share.

Options that belong together are a dataclass (`DataOptions`, `DeviceOptions`), which `options_from_settings` turns into
command line options; a single option is a type alias. Importing this module does not import torch.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

import typer

from prunus.cli import console as early_checks
from prunus.cli.console import MODEL_HELP, Early, ModelArgument, choice, complain, resolve
from prunus.cli.inputs import numbers
from prunus.errors import DataError, ModelError, PrunusError
from prunus.tasks import DEFAULT_TASK, TASKS, is_classification, task_of
from prunus.util.options import GROUPS, Option, check, default_of, option, options_of
from prunus.zoo.names import NAMES, check_data_set, is_user_data, parse_holdout

if TYPE_CHECKING:
    import torch
    from torch import nn

    from prunus.cli.inputs import OwnData
    from prunus.graph.plan import Plan
    from prunus.zoo.data import ImageData, LabelKind

    AnyData = ImageData | OwnData


# Command line options made from dataclasses of settings.

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
            check(values[name], PrunusError)  # before anything slow is imported
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
    elif about.user_code or any(get_origin(part) is Literal for part in (annotation, *get_args(annotation))):
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
    words = ["prunus", verb, argument]
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


DEFAULT_DATA = "digits"
DATA_HELP = f"Data set: {', '.join(NAMES)} or your_module:make_data; a run's own, else {DEFAULT_DATA}, by default"
FOLDERS: dict[str, LabelKind] = {DEFAULT_TASK: "classes", "segmentation": "masks", "multilabel": "several"}
HOLDOUT_HELP = "Held-out images: train:SHARE, test:SHARE or none"


def _mean(text: str) -> None:
    numbers(text, "--mean")


def _std(text: str) -> None:
    numbers(text, "--std")


@dataclass(frozen=True)
class DataOptions:
    """The data set: its name, where it is, and how its images are prepared and divided."""

    data: str | None = option(None, DATA_HELP, group="Data", valid=check_data_set)
    holdout: str = option("train:0.1", HOLDOUT_HELP, group="Data", valid=parse_holdout)
    data_root: Path | None = option(None, "Folder that holds the data set", group="Data")
    mean: str | None = option(None, "Mean to subtract, as in 0.485,0.456,0.406", group="Data", valid=_mean)
    std: str | None = option(None, "Standard deviation to divide by", group="Data", valid=_std)
    size: int | None = option(None, "Height and width of the images in pixels", group="Data", least=1)
    workers: int = option(0, "Number of processes that decode image files", group="Data", least=0)

    @property
    def name(self) -> str:
        """The data set as it is typed."""
        return self.data or DEFAULT_DATA

    def known_for(self, model: str) -> Self:
        """These options, where those that were not given are those of the run that `model` names, if it is one."""
        asked = resolve(model).asked
        if "data" not in asked or self.data not in (None, asked["data"]):
            if self.data is not None:
                return self
            if os.environ.get("RANK", "0") == "0":
                complain("note", f"no --data was given, so the data set is {DEFAULT_DATA}")
            return replace(self, data=DEFAULT_DATA)
        before = settings_from(DataOptions, asked)
        names = [each.name for each in fields(DataOptions)]
        taken = [n for n in names if getattr(self, n) == getattr(type(self)(), n)]
        return replace(self, **{n: getattr(before, n) for n in taken})

    def open(self, model: str, seed: int = 0, task: Any = None) -> AnyData:
        """The data set, with the size, mean and standard deviation that the model names unless others are given.

        A run's own data set is divided as it was for the run: what it was trained on is not held out.
        task: what the network is for, which says what the labels are.
        """
        from prunus.cli.inputs import input_size, normalisation, open_own_data

        known, asked = self.known_for(model), resolve(model).asked
        if is_user_data(known.name):
            known._check_nothing_else()
            return open_own_data(known.name, task_of(task))
        same = (asked.get("data"), asked.get("holdout")) == (known.data, known.holdout)
        size = input_size(model) if known.size is None else known.size
        mean, std = normalisation(model, known.mean, known.std)
        return replace(known, mean=mean, std=std).load(size, int(asked.get("seed", seed)) if same else seed, task)

    def _check_nothing_else(self) -> None:
        """DataError for options that loaders of the user's own cannot follow."""
        usual = type(self)()
        given = [
            each.name
            for each in fields(self)
            if each.name != "data" and getattr(self, each.name) != getattr(usual, each.name)
        ]
        if given:
            option = given[0].replace("_", "-")
            raise DataError(f"--{option} does not apply to {self.name}, which prepares and divides its images itself")

    def open_classes(self, model: str, seed: int = 0) -> ImageData:
        """A data set with one class per image; DataError for any other."""
        from prunus.cli.inputs import OwnData

        task = task_of(task_for(model, None))
        found = self.open(model, seed, task)
        if isinstance(found, OwnData) or not is_classification(task):
            raise DataError(f"{found.name}: this needs one class per image, of a data set by name: {', '.join(NAMES)}")
        return found

    def load(self, size: int | None = None, seed: int = 0, task: Any = None) -> ImageData:
        """The data set with images of this size (None: their own). `seed` chooses the held-out images."""
        from prunus.zoo.data import load

        check(self, DataError)
        return load(
            self.name,
            self.data_root,
            mean=numbers(self.mean, "--mean"),
            std=numbers(self.std, "--std"),
            size=size,
            holdout=self.holdout,
            workers=self.workers,
            seed=seed,
            labels=label_kind(task, self.name),
        )


def task_for(model: str, task: Any) -> Any:
    """The task that was given, or else that of the run that `model` names, if it is one."""
    return resolve(model).asked.get("task") if task is None else task


def label_kind(task: Any, data: str) -> LabelKind | None:
    """Which labels a task reads from folders; None for a task of the user's own: what is there."""
    name = task_of(task).name
    if name in FOLDERS:
        return FOLDERS[name]
    if name in TASKS:
        raise DataError(f"{data} holds no labels for {name}: give loaders of your own, --data your_module:make_data")
    return None


@dataclass(frozen=True)
class EverydayData(DataOptions):
    """A data set whose name is listed among the everyday options, for verbs with many options."""

    data: str | None = option(None, DATA_HELP, group="Data", everyday=True, valid=check_data_set)


@dataclass(frozen=True)
class UndividedData(DataOptions):
    """A data set without held-out images, unless the user asks for them."""

    holdout: str = option("none", HOLDOUT_HELP, group="Data", valid=parse_holdout)


@dataclass(frozen=True)
class LayerTimeOptions:
    """How the layers of a network are timed."""

    batch: int = option(64, "Number of images in a batch", least=1)
    threads: int | None = option(
        None, "Number of CPU threads; PyTorch's choice by default", least=1, most=os.cpu_count()
    )


@dataclass(frozen=True)
class DeviceOptions:
    """The device that computes."""

    device: str | None = option(None, "cpu, cuda, cuda:1, ...; the best available by default", group="Data")

    def pick(self) -> torch.device:
        """The device asked for, or the best available. Each process that torchrun started gets its own."""
        from prunus.util.processes import best_device, usable

        found = usable(self.device) if self.device else best_device()
        if found.type != "cpu" and ":" not in str(self.device) and "LOCAL_RANK" in os.environ:
            return usable(f"{found.type}:{os.environ['LOCAL_RANK']}")
        return found


Classes = Annotated[int | None, typer.Option(help="Number of classes, if it is not the model's default", min=1)]
DataRoot = Annotated[Path | None, typer.Option(help="Folder that holds the data set")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; the best available by default")]
Model = Annotated[str, typer.Argument(help=MODEL_HELP), Early(early_checks.network)]
Size = Annotated[int | None, typer.Option(help="Height and width of the images in pixels", min=1)]
Streams = Annotated[
    str,
    typer.Option(help="Residual channels: each reader selects its own (select), or all drop them together (coupled)"),
    choice("streams", "select", "coupled"),
]
Part = Annotated[
    str, typer.Option(help="Images to read: train, holdout or test"), choice("part", "train", "holdout", "test")
]
Weights = Annotated[
    Path | None,
    typer.Option(help="Weight file (.safetensors, .pt, .pth, .th)"),
    Early(early_checks.weights),
]


# Networks from the command line without a data set, and those of the studies.


@dataclass(frozen=True)
class Network:
    """A network and what is known about it."""

    name: str
    model: nn.Module
    shape: tuple[Any, ...]  # channels, height, width of an image; of several inputs, the shape of each
    plan: Plan | None = None
    original: nn.Module | None = None  # the unpruned network with initial weights
    inputs: Any = None  # of a network that takes no single image: what it takes, as zeros

    def zeros(self, size: int | None = None) -> Any:
        """One image of zeros, of this height and width if they are given; or several inputs of zeros."""
        import torch

        channels, *sides = self.shape
        if self.inputs is None:
            return torch.zeros(1, channels, *(sides if size is None else (size, size)))
        if size is not None:
            raise ModelError(f"{self.name} takes several inputs, so --size has no meaning: leave it out")
        return self.inputs

    def example(self) -> Any:
        """One image of noise, or several inputs of noise."""
        import torch
        from torch.utils._pytree import tree_map

        draw = torch.Generator().manual_seed(0)

        def noise(x: Any) -> Any:
            known = isinstance(x, torch.Tensor) and x.is_floating_point()
            return torch.randn(x.shape, generator=draw, dtype=x.dtype) if known else x

        return torch.randn(1, *self.shape, generator=draw) if self.inputs is None else tree_map(noise, self.inputs)


def open_network(typed: str, *, model: str | None = None, classes: int | None = None) -> Network:
    """The network that `typed` names (see `resolve`), without a data set.

    model, classes: name and number of classes of the original network, if the folder does not record them.
    """
    found = resolve(typed, model)
    return _pruned(found, classes) if found.folders else _by_name(found, classes)


def open_onnx(typed: str) -> Network:
    """The network in an ONNX file."""
    from prunus.timing.onnx_export import OnnxFile

    file = OnnxFile(typed)
    return Network(Path(typed).stem, file, file.shape)


def check_trained(models: list[str], weights: Path | None) -> None:
    """ModelError for a network without weights, unless its own factory may load some."""
    for text in models:
        if (weights is None or len(models) > 1) and not resolve(text).has_weights:
            raise ModelError(f"a study needs trained networks: give the weight file of {text} as {text}=FILE")


def trained_networks(
    models: list[str], weights: Path | None, found: AnyData, device: DeviceOptions, seed: int
) -> dict[str, nn.Module]:
    """The trained networks by name, on the device. `models` are typed as in every verb (see `resolve`)."""
    from prunus.cli.inputs import open_model

    check_trained(models, weights)
    home = device.pick()
    networks: dict[str, nn.Module] = {}
    for text in models:
        named = resolve(text)
        label = named.label
        if label in networks:
            label = f"{label} ({named.weights.stem if named.weights else len(networks) + 1})"
        networks[label] = open_model(text, found, weights if len(models) == 1 else None, seed=seed).to(home)
    return networks


def _by_name(found: ModelArgument, classes: int | None) -> Network:
    from prunus.cli.inputs import check_runs
    from prunus.zoo.models import config, create, example
    from prunus.zoo.weights import load_weights

    count = classes or _classes(found)
    network = create(found.name, **({} if count is None else {"num_classes": count}))
    if found.weights is not None:
        load_weights(network, found.weights)
    check_runs(network, found.label, example(found.name))
    return Network(found.label, network, config(found.name).shape)


def _pruned(found: ModelArgument, classes: int | None) -> Network:
    import torch
    from torch.utils._pytree import tree_leaves

    from prunus.cli.inputs import channels_argument
    from prunus.graph.files import example_of, load
    from prunus.graph.plan import Plan
    from prunus.zoo.models import config, create

    folder = found.folders[-1]
    plan = Plan.load(folder / "plan.json")
    one = isinstance(plan.example, dict) and set(plan.example) == {"shape", "dtype"}
    shape: tuple[Any, ...] = tuple(plan.example["shape"][1:]) if one else ()
    arguments: dict[str, Any] = {}
    count = classes or _classes(found)
    if count is not None:
        arguments["num_classes"] = count
    if len(shape) == 3 and shape[0] != config(found.name).shape[0] and not is_user_data(str(found.asked.get("data"))):
        arguments[channels_argument(found.name)] = shape[0]
    original = create(found.name, **arguments)
    for earlier in found.folders[:-1]:
        original = load(earlier, original)
    network, inputs = load(folder, original), None
    if not one:
        inputs = example_of(plan, original, folder / "plan.json")
        shape = tuple(tuple(x.shape[1:]) for x in tree_leaves(inputs) if isinstance(x, torch.Tensor))
    return Network(found.label, network, shape, plan, original, inputs)


def _classes(found: ModelArgument) -> int | None:
    from prunus.zoo.names import num_classes

    return num_classes(str(found.asked.get("data", "")))
