"""MODEL, the argument of every verb: which network it names, and how that is opened, with a data set or without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prunus.cli.console import complain, say
from prunus.errors import FileError, ModelError
from prunus.util.files import PRUNING, TRAINING, held_by, read_object
from prunus.util.user_code import failure
from prunus.zoo.names import check_model, check_weight_file, is_user_data, num_classes

if TYPE_CHECKING:
    import torch
    from torch import nn

    from prunus.cli.images import AnyData
    from prunus.graph.channel_graph import ChannelGraph
    from prunus.graph.plan import Plan
    from prunus.zoo.data import ImageData
    from prunus.zoo.networks import ModelConfig

MODEL_HELP = "Built-in name, torchvision:NAME, timm:NAME, package.module:factory, NAME=WEIGHTS, or a run's folder"


@dataclass(frozen=True)
class NamedModel:
    """What the user named. Verbs resolve it once, and pass it on.

    Attributes:
        typed: The argument.
        name: The network that everything starts from, in the zoo or a user-provided factory.
        weights: Its weight file.
        folders: Pruned networks: the first was cut from `name`, each other from the one before.
        asked: The options of the run, by name.
    """

    typed: str
    name: str
    weights: Path | None = None
    folders: tuple[Path, ...] = ()
    asked: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_user_provided(self) -> bool:
        """Whether a user-provided factory, package.module:factory, builds the network."""
        return ":" in self.name and not self.name.startswith(("torchvision:", "timm:"))

    @property
    def has_weights(self) -> bool:
        """Whether the network comes with weights. A user-provided factory may load some, so it counts."""
        return self.weights is not None or bool(self.folders) or self.is_user_provided

    @property
    def label(self) -> str:
        """A short name for titles and new folders."""
        return Path(self.typed).resolve().name if Path(self.typed).is_dir() else self.name

    @cached_property
    def config(self) -> ModelConfig:
        """What the zoo knows of the network: the shape of its images, their normalisation."""
        from prunus.zoo.models import config

        return config(self.name)

    def declares(self, attribute: str) -> bool:
        """Whether a user-provided factory has an attribute (shape, mean, std). The zoo's networks have no such say."""
        return self.is_user_provided and attribute in self.config.declared

    def task(self, given: Any) -> Any:
        """The task that was given, or else that of the run, if this is one."""
        return self.asked.get("task") if given is None else given

    def note_untrained(self) -> None:
        """Tell the user if the network has its initial weights."""
        if not self.has_weights:
            complain("note", "no --weights were given, so the network is untrained")


def resolve(typed: str, weights: Path | None = None, *, model: str | None = None) -> NamedModel:
    """The network that `typed` names.

    Args:
        typed: MODEL.
        weights: --weights, for a network that has none of its own.
        model: The original network of a folder that does not record it.
    """
    if weights is not None:
        named = resolve(typed, model=model)
        if named.weights is not None or named.folders:
            raise ModelError(f"{typed} has its own weights: leave out --weights {weights}")
        return replace(named, weights=weights)
    folder = Path(typed)
    if folder.is_dir():
        return _from_folder(typed, folder, model)
    name, equals, file = typed.partition("=")
    if ":" not in name and ("/" in name or name.startswith(".")):
        raise ModelError(f"{typed}: there is no such folder; a network is a folder, a name or NAME=WEIGHTS")
    if equals and not (name and file):
        raise ModelError(f"{typed}: expected NAME=WEIGHTS, as in resnet56=resnet56.safetensors")
    return NamedModel(typed, name, Path(file) if equals else None)


def _from_folder(typed: str, folder: Path, model: str | None) -> NamedModel:
    content = held_by(folder)
    if content == TRAINING and (folder / "summary.json").exists():
        summary = read_object(folder / "summary.json")
        weights = folder / "model.safetensors"
        return NamedModel(typed, model or summary["model"], weights, asked=summary.get("command", {}))
    if not (folder / "plan.json").exists():
        if content == PRUNING:
            raise FileError(f"the run in {folder} is not finished; to continue it: prunus prune --resume {folder}")
        raise FileError(
            f"{folder} is a folder without plan.json"
            + (f" (it holds {content})" if content else "")
            + "; a pruned network has plan.json and model.safetensors"
        )
    config = folder / "config.json"
    asked = read_object(config).get("command") if config.exists() else None
    asked = asked if isinstance(asked, dict) else {}  # a run of `prunus.compress` has none
    name = model or asked.get("model")
    if not isinstance(name, str):
        raise ModelError(f"{folder} does not record its original network: pass --model NAME")
    try:
        start = resolve(name)
    except (FileError, ModelError) as error:
        raise ModelError(f"{folder} was pruned from {name}, which cannot be opened: {error}") from error
    if all(start.asked.get(key) == asked.get(key) for key in ("data", "holdout")):
        asked = {**asked, "seed": start.asked.get("seed", asked.get("seed", 0))}  # it divided the images for both
    return NamedModel(typed, start.name, folders=(*start.folders, folder), asked=asked)


def check_network(text: str) -> None:
    """Early check of MODEL: a known name, a weight file that exists, or a folder."""
    if not text:
        raise ModelError("the name of the network is empty")
    if Path(text).is_dir():  # which may need --model
        return
    named = resolve(text)
    check_model(named.name)
    if named.weights is not None:
        check_weight_file(named.weights)


# -- with a data set


def open_model(named: NamedModel, data: AnyData, *, seed: int = 0) -> nn.Module:
    """The network, for the data's classes and channels as far as they are known; without weights, drawn with `seed`."""
    from prunus.graph.files import load
    from prunus.util.state import generators_kept
    from prunus.zoo.models import create
    from prunus.zoo.weights import load_weights

    arguments = {}
    if data.shape is not None:  # user-provided loaders do not say
        arguments = {"num_classes": len(data.classes), **_channels(named, data.shape[0])}
    with generators_kept(seed):
        model = create(named.name, **arguments)
    if named.weights is not None:
        load_weights(model, named.weights)
    for folder in named.folders:
        model = load(folder, model)
    check_runs(model, named, data.example())
    return model


def open_graph(
    named: NamedModel, data: AnyData, *, seed: int = 0, device: torch.device | str = "cpu", streams: str = "select"
) -> ChannelGraph:
    """The network as `open_model` opens it, on a device and traced."""
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


# The network of the demo, which verbs use when the user names none: trained once on scikit-learn's digits.
DEMO_MODEL, DEMO_DATA, DEMO_EPOCHS = "resnet8", "digits", 30


def demo_network(images: ImageData, seed: int = 0, rank: int = 0) -> nn.Module:
    """The network of the demo: loaded if it was trained before, otherwise trained and saved."""
    from safetensors.torch import save

    from prunus.train.fit import fit
    from prunus.util.files import write_atomically

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
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in fitted.model.state_dict().items()}
    if rank == 0:
        write_atomically(saved, save(tensors))
        say(f"trained {DEMO_MODEL} on {DEMO_DATA}, saved in {saved}")
    return fitted.model


# -- without a data set


@dataclass(frozen=True)
class Network:
    """A network and what is known about it.

    Attributes:
        shape: Channels, height, width of an image; of several inputs, the shape of each.
        original: The unpruned network with initial weights.
        inputs: Of a network that takes no single image: what it takes, as zeros.
        arguments: What the factory of the original network was given.
    """

    name: str
    model: nn.Module
    shape: tuple[Any, ...]
    plan: Plan | None = None
    original: nn.Module | None = None
    inputs: Any = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

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


def open_network(named: NamedModel, classes: int | None = None) -> Network:
    """The network without a data set.

    Args:
        classes: Number of classes of the original network, if the folder does not record the data set.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    from prunus.graph.files import example_of, load
    from prunus.graph.plan import Plan
    from prunus.zoo.models import create, example
    from prunus.zoo.weights import load_weights

    data = str(named.asked.get("data", ""))
    count = classes or num_classes(data)
    arguments = {} if count is None else {"num_classes": count}
    if not named.folders:
        network = create(named.name, **arguments)
        if named.weights is not None:
            load_weights(network, named.weights)
        check_runs(network, named, example(named.name))
        return Network(named.label, network, named.config.shape, arguments=arguments)

    folder = named.folders[-1]
    plan = Plan.load(folder / "plan.json")
    one = isinstance(plan.example, dict) and set(plan.example) == {"shape", "dtype"}
    shape: tuple[Any, ...] = tuple(plan.example["shape"][1:]) if one else ()
    if len(shape) == 3 and not is_user_data(data):
        arguments |= _channels(named, shape[0])
    original = create(named.name, **arguments)
    for earlier in named.folders[:-1]:
        original = load(earlier, original)
    network, inputs = load(folder, original), None
    if not one:
        inputs = example_of(plan, original, folder / "plan.json")
        shape = tuple(tuple(x.shape[1:]) for x in tree_leaves(inputs) if isinstance(x, torch.Tensor))
    return Network(named.label, network, shape, plan, original, inputs, arguments)
