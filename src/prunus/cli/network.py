"""MODEL, the argument of every verb: which network it names, and how that is opened, with a data set or without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prunus.cli.console import complain, say
from prunus.errors import FileError, ModelError
from prunus.util.files import PRUNING, TRAINING, held_by, read_object, write_atomically
from prunus.util.user_code import failure, import_user_function
from prunus.zoo.names import check_model, check_weight_file, is_onnx, is_user_data, num_classes

if TYPE_CHECKING:
    import torch
    from torch import nn

    from prunus.cli.images import AnyData
    from prunus.graph.channel_graph import ChannelGraph
    from prunus.graph.plan import Plan
    from prunus.zoo.data import ImageData
    from prunus.zoo.networks import ModelConfig

MODEL_HELP = (
    "Built-in name, torchvision:NAME, timm:NAME, yolo:CONFIG.yaml, package.module:factory, NAME=WEIGHTS (or "
    "timm:NAME=pretrained), an .onnx file, or a run's folder"
)
PRETRAINED = "pretrained"  # in the place of WEIGHTS: those that torchvision or timm loads itself
LIBRARIES = ("torchvision:", "timm:")
YOLO = "yolo:"  # of ultralytics, which loads no weights here
ORIGINAL_FILE = "original.onnx"  # in the folder of a run: the file that was pruned


@dataclass(frozen=True)
class NamedModel:
    """What the user named. Verbs resolve it once, and pass it on."""

    typed: str  # the argument
    name: str  # the network that everything starts from, in the zoo or a user-provided factory
    weights: Path | None = None
    folder: Path | None = None  # of a pruned network, whose plan leads from `name`
    run_options: Mapping[str, Any] = field(default_factory=dict)  # of the run, by name
    pretrained: bool = False  # torchvision or timm loads its own weights
    arguments: Mapping[str, Any] = field(default_factory=dict)  # that the run gave to the network's factory

    @property
    def is_user_provided(self) -> bool:
        """Whether a user-provided factory, package.module:factory, builds the network."""
        return ":" in self.name and not self.name.startswith((*LIBRARIES, YOLO)) and not self.is_file

    @property
    def is_file(self) -> bool:
        """Whether the network is in an .onnx file, which has its weights."""
        return is_onnx(self.name)

    @property
    def has_weights(self) -> bool:
        """Whether the network comes with weights. A user-provided factory may load some, so it counts."""
        loaded = self.pretrained or self.is_user_provided or self.is_file
        return loaded or self.weights is not None or self.folder is not None

    @property
    def label(self) -> str:
        """A short name for titles and new folders."""
        if Path(self.typed).is_dir():
            return Path(self.typed).resolve().name
        return Path(self.name).stem if self.is_file else self.name

    @cached_property
    def config(self) -> ModelConfig:
        """What the zoo knows of the network: the shape of its images, their normalisation."""
        from prunus.zoo.models import config

        return config(self.name)

    def declares(self, attribute: str) -> bool:
        """Whether the network names a part of its input (shape, mean, std): a user-provided factory, a file, YOLO."""
        return attribute in self.config.declared

    @property
    def any_size(self) -> bool:
        """Whether the network is in a file that takes images of any size."""
        return self.is_file and not self.declares("shape")

    def task(self, given: Any) -> Any:
        """The task that was given, or else that of the run, if this is one; of a YOLO, detection."""
        if given is not None:
            return given
        return self.run_options.get("task") or ("detection" if self.name.startswith(YOLO) else None)

    def note_untrained(self) -> None:
        if not self.has_weights:
            complain("note", "no --weights were given, so the network is untrained")

    def original(self) -> NamedModel:
        """The network that a run was given to prune; ModelError if its folder does not say."""
        if not isinstance(self.run_options.get("model"), str):
            raise ModelError(f"{self.typed} does not record the network that it was pruned from")
        weights = self.run_options.get("weights")
        if weights is not None:
            check_weight_file(weights)
        return resolve(self.run_options["model"], None if weights is None else Path(weights))


def resolve(typed: str, weights: Path | None = None) -> NamedModel:
    """The network that `typed`, MODEL, names. weights: --weights, for a network that has none of its own."""
    if weights is not None:
        named = resolve(typed)
        if named.weights is not None or named.folder is not None or named.pretrained or named.is_file:
            raise ModelError(f"{typed} has its own weights: leave out --weights {weights}")
        return replace(named, weights=weights)
    folder = Path(typed)
    if folder.is_dir():
        return _from_folder(typed, folder)
    if is_onnx(typed) and ("=" not in typed or folder.is_file()):
        return NamedModel(typed, typed)
    if folder.suffix and folder.is_file():
        raise ModelError(
            f"{typed} is no .onnx file, the only files that networks are read from. Give the folder of a run, or "
            f"NAME={typed} if the file has the weights of the network NAME"
        )
    name, equals, file = typed.partition("=")
    if not is_onnx(name) and ":" not in name and ("/" in name or name.startswith(".")):
        raise ModelError(
            f"{typed}: there is no such folder; a network is a folder, an .onnx file, a name or NAME=WEIGHTS"
        )
    if equals and not (name and file):
        raise ModelError(f"{typed}: expected NAME=WEIGHTS, as in resnet56=resnet56.safetensors")
    if file == PRETRAINED:
        if not name.startswith(LIBRARIES):
            raise ModelError(
                f"{name}: pretrained weights are those of torchvision:NAME and timm:NAME, which load them themselves; "
                "for another network give --weights FILE"
            )
        return NamedModel(typed, name, pretrained=True)
    if equals and Path(file).is_dir():
        return _from_folder(typed, Path(file), name)
    return NamedModel(typed, name, Path(file) if equals else None)


def _from_folder(typed: str, folder: Path, model: str | None = None) -> NamedModel:
    content = held_by(folder)
    if content == TRAINING and (folder / "summary.json").exists():
        summary = read_object(folder / "summary.json")
        weights = folder / "model.safetensors"
        options, built = (summary.get(key) or {} for key in ("command", "built"))
        return NamedModel(typed, model or summary["model"], weights, run_options=options, arguments=built)
    if not (folder / "plan.json").exists():
        if content == PRUNING:
            raise FileError(f"the run in {folder} is not finished; to continue it: prunus prune --resume {folder}")
        raise FileError(
            f"{folder} is a folder without plan.json"
            + (f" (it holds {content})" if content else "")
            + "; a pruned network has plan.json and model.safetensors"
        )
    config = read_object(folder / "config.json") if (folder / "config.json").exists() else {}
    # A run of `prunus.compress` has no command. With "start", a folder that the run went on from is not needed.
    command, begun, built = (
        value if isinstance(value := config.get(key), dict) else {} for key in ("command", "start", "built")
    )
    kept = folder / ORIGINAL_FILE
    name = model or (str(kept) if kept.is_file() else None) or begun.get("network") or command.get("model")
    if not isinstance(name, str):
        raise ModelError(f"{folder} does not record its original network: give that too, as in NAME={folder}")
    try:
        start = resolve(name)
    except (FileError, ModelError) as error:
        raise ModelError(f"{folder} was pruned from {name}, which cannot be opened: {error}") from error
    if "seed" in begun:  # it divided the images of the run that this one went on from
        command = {**command, "seed": begun["seed"]}
    return NamedModel(typed, start.name, folder=folder, run_options=command, arguments=built)


def check_model_name(text: str) -> None:
    """Early check of MODEL: a known name, a weight file that exists, or a folder."""
    if not text:
        raise ModelError("the name of the network is empty")
    if Path(text).is_dir():  # which may need the name of its original
        return
    named = resolve(text)
    check_model(named.name)
    if named.weights is not None:
        check_weight_file(named.weights)


# -- with a data set


def open_model(named: NamedModel, data: AnyData, *, seed: int = 0, new_classes: bool = False) -> nn.Module:
    """The network, for the data's classes and channels as far as they are known; without weights, drawn with `seed`.

    new_classes: whether a pretrained network may get an untrained last layer for the classes of the data.
    """
    from prunus.graph.files import load

    arguments = factory_arguments(named, data)
    if named.pretrained and not new_classes:
        own, classes = named.config.num_classes, arguments.get("num_classes")
        if classes not in (None, own):
            raise ModelError(
                f"the pretrained {named.name} is for {own} classes, and {data.name} has {classes}. Train it on them "
                f"first: prunus train {named.name}={PRETRAINED} --data {data.name}"
            )
    if named.is_file and data.classes:
        from prunus.zoo.onnx.file import read_onnx

        outputs = read_onnx(named.name).num_classes
        if outputs not in (None, len(data.classes)) and "classes" not in arguments:
            raise ModelError(
                f"{named.name} is for {outputs} classes, and {data.name} has {len(data.classes)}: give images of its "
                "own classes, in folders whose sorted names are in the order of its outputs"
            )
    model = _built(named, arguments, seed)
    if named.folder is not None:
        model = load(named.folder, model)
    check_runs(model, named, data.example())
    return model


def factory_arguments(named: NamedModel, data: AnyData) -> dict[str, Any]:
    """What the factory of the network is given for some data. A run's network is built as it was for the run."""
    if named.arguments:
        return dict(named.arguments)
    if named.is_file:
        if not named.any_size:
            return {}
        sides = tuple(getattr(data.example(), "shape", ()))[2:]  # of an image [1, C, H, W]
        if len(sides) != 2:
            raise ModelError("an .onnx file takes one input of images [N, C, H, W], and the data gives something else")
        return {"size": [int(side) for side in sides]}
    if data.shape is None:  # user-provided loaders do not say
        return _with_classes(named, {})
    channels = _channels(named, data.shape[0])
    if data.classes:
        return {"num_classes": len(data.classes), **channels}
    count = num_classes(str(named.run_options.get("data", "")))  # of images without labels, if the network is a run's
    return _with_classes(named, channels if count is None else {"num_classes": count, **channels})


def _with_classes(named: NamedModel, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments, with the number of classes that a weight file is for, if it is not the network's own number."""
    from prunus.zoo.models import create
    from prunus.zoo.weights import classes_of

    if named.weights is None or "num_classes" in arguments:
        return arguments
    own = named.config.num_classes
    found = classes_of(create(named.name, **arguments), named.weights, own)
    return arguments if found == own else {"num_classes": found, **arguments}


def _built(named: NamedModel, arguments: Mapping[str, Any], seed: int = 0) -> nn.Module:
    from prunus.util.state import generators_kept
    from prunus.zoo.models import create
    from prunus.zoo.weights import classes_of, load_weights

    plain = {name: value for name, value in arguments.items() if name != "classes"}
    with generators_kept(seed):
        model = create(named.name, pretrained=named.pretrained, **plain)
    if named.weights is not None:
        try:
            load_weights(model, named.weights)
        except ModelError as error:
            classes = arguments.get("num_classes")
            if classes is None or (found := classes_of(model, named.weights, classes)) == classes:
                raise
            raise ModelError(f"{named.weights} is for {found} classes, and the data have {classes}") from error
    if "classes" in arguments:  # of a file, which has all of them
        import torch

        from prunus.graph.outputs import keep_classes

        shape = (named.config.shape[0], *arguments.get("size", named.config.shape[1:]))
        model = keep_classes(model, torch.zeros(1, *shape), arguments["classes"])
    return model


def open_graph(
    named: NamedModel, data: AnyData, *, seed: int = 0, device: torch.device | str = "cpu", streams: str = "select"
) -> ChannelGraph:
    import torch

    from prunus.graph.channel_graph import trace
    from prunus.util.batches import to_device

    home = torch.device(device)
    network = open_model(named, data, seed=seed).to(home)
    return trace(network, to_device(data.example(), home), streams)  # type: ignore[arg-type]


def _channels(named: NamedModel, channels: int) -> dict[str, int]:
    """The keyword by which a factory takes the number of image channels, if it is not the network's own."""
    if channels == named.config.shape[0]:
        return {}
    return {"in_chans" if named.name.startswith("timm:") else "in_channels": channels}


def check_runs(model: nn.Module, named: NamedModel, example: Any) -> None:
    """ModelError if a network does not run on an input: an image [1, C, H, W], or several inputs."""
    import torch

    from prunus.util.batches import call
    from prunus.util.state import evaluating, generators_kept

    with evaluating(model), generators_kept(), torch.no_grad():
        try:
            call(model, example)
        except Exception as error:  # the network's own code may raise anything
            one = isinstance(example, torch.Tensor)
            size = " x ".join(map(str, example.shape[1:])) if one else ""
            what = f"an image of {size}" if one else f"the {len(example)} inputs of the data"
            unsaid = named.is_user_provided and not named.declares("shape")
            advice = ". What it takes can be said: factory.shape = (channels, height, width)" if unsaid else ""
            raise ModelError(f"{named.typed} does not run on {what}: {failure(error)}{advice}") from error


def save_weights(model: nn.Module, path: Path) -> None:
    """Write the weights of a network as safetensors, from which `load_weights` reads them."""
    from safetensors.torch import save

    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    write_atomically(path, save(tensors))


# The network of the demo, which verbs use when the user names none: trained once on scikit-learn's digits.
DEMO_MODEL, DEMO_DATA, DEMO_EPOCHS = "resnet8", "digits", 30


def demo_network(images: ImageData, seed: int = 0, rank: int = 0) -> nn.Module:
    """The network of the demo: loaded if it was trained before, otherwise trained and saved."""
    from prunus.train.fit import fit

    named = resolve(DEMO_MODEL)
    saved = Path("runs") / f"base-{DEMO_MODEL}-{DEMO_DATA}" / "model.safetensors"
    if saved.exists():
        return open_model(replace(named, weights=saved), images, seed=seed)
    fitted = fit(
        open_model(named, images, seed=seed),
        images.loader("train", 64, shuffle=True, seed=seed),
        images.loader("holdout", 256),
        preset="cosine",
        epochs=DEMO_EPOCHS,
        seed=seed,
        checkpoint_dir=saved.parent,
    )
    if rank == 0:
        save_weights(fitted.model, saved)
        say(f"trained {DEMO_MODEL} on {DEMO_DATA}, saved in {saved}")
    return fitted.model


# -- without a data set


@dataclass(frozen=True)
class Network:
    """A network and what is known about it."""

    name: str
    model: nn.Module
    shape: tuple[Any, ...]  # channels, height, width of an image; of several inputs, the shape of each
    plan: Plan | None = None
    original: nn.Module | None = None  # the unpruned network with initial weights
    inputs: Any = None  # of a network that takes no single image: what it takes, as zeros
    arguments: Mapping[str, Any] = field(default_factory=dict)  # that the factory of the original network was given

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

        return tree_map(noise, self.zeros())


def open_network(named: NamedModel, classes: int | None = None, size: int | None = None) -> Network:
    """The network without a data set.

    classes: of the original network, if the folder does not record the data set. size: height and width of the images,
    for an .onnx file that takes any.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    from prunus.graph.files import example_of, load
    from prunus.graph.plan import Plan
    from prunus.zoo.models import accepts

    data = str(named.run_options.get("data", ""))
    count = classes or num_classes(data)
    arguments: dict[str, Any] = {} if count is None else {"num_classes": count}
    plan = None if named.folder is None else Plan.load(named.folder / "plan.json")
    shape: tuple[Any, ...] = ()  # of an image, if the plan knows it
    if plan is not None and isinstance(plan.example, dict) and set(plan.example) == {"shape", "dtype"}:
        shape = tuple(plan.example["shape"][1:])
    is_one = plan is None or bool(shape)
    if named.is_file:
        sides = list(shape[1:]) if shape else None if size is None else [size, size]
        arguments = {"size": sides} if named.any_size else {}
        arguments |= {"classes": named.arguments["classes"]} if "classes" in named.arguments else {}
        shape = shape or (named.config.shape[0], *(sides if named.any_size and sides else named.config.shape[1:]))
    elif named.arguments and classes is None:
        arguments = dict(named.arguments)
    elif len(shape) == 3 and not is_user_data(data):
        factory = import_user_function(named.name, ModelError) if named.is_user_provided else None
        if factory is None or accepts(factory, "in_channels"):  # one that does not is for these images already
            arguments |= _channels(named, shape[0])
    if named.folder is None or plan is None:
        arguments = _with_classes(named, arguments)
        shape = shape or tuple(named.run_options.get("shape") or named.config.shape)
        network = _built(named, arguments)
        check_runs(network, named, torch.zeros(1, *shape))
        return Network(named.label, network, shape, arguments=arguments)
    original = _built(named, arguments)
    network, inputs = load(named.folder, original), None
    if not is_one:
        inputs = example_of(plan, original, named.folder / "plan.json")
        shape = tuple(tuple(x.shape[1:]) for x in tree_leaves(inputs) if isinstance(x, torch.Tensor))
    return Network(named.label, network, shape, plan, original, inputs, arguments)
