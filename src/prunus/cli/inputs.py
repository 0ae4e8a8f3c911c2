"""Models and data sets from the options of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prunus.cli.console import ModelArgument, complain, console, resolve
from prunus.errors import DataError, ModelError
from prunus.util.user_code import call_user_function, failure

if TYPE_CHECKING:
    import torch
    from torch import nn

    from prunus.cli.options import AnyData
    from prunus.graph.channel_graph import ChannelGraph
    from prunus.tasks import Task
    from prunus.util.batches import Batches
    from prunus.zoo.data import ImageData, Part


def numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    """'0.485,0.456,0.406' as numbers; None stays None."""
    if text is None:
        return None
    try:
        return tuple(float(word) for word in text.replace(",", " ").split())
    except ValueError as error:
        raise DataError(f"{option} must be numbers separated by commas, got {text!r}") from error


def checked_part(part: str) -> Part:
    """`part` as train, holdout or test; anything else is a DataError."""
    if part not in ("train", "holdout", "test"):
        raise DataError(f"--part must be train, holdout or test; got {part!r}")
    return part  # type: ignore[return-value]


def open_model(typed: str, data: AnyData, weights: Path | None = None, *, seed: int = 0) -> nn.Module:
    """The network that `typed` names (see `resolve`), for the data's classes and channels as far as they are known.

    Its weights are its own, or from a file, or drawn with `seed`.
    """
    from prunus.graph.files import load
    from prunus.util.state import generators_kept
    from prunus.zoo.models import create
    from prunus.zoo.weights import load_weights

    found = resolve(typed)
    refuse_other_weights(found, weights)
    name, weights = found.name, weights or found.weights
    with generators_kept(seed):
        model = create(name, **_factory_arguments(name, data))
    if weights is not None:
        load_weights(model, weights)
    for folder in found.folders:
        model = load(folder, model)
    check_runs(model, typed, data.example())
    return model


def open_graph(
    typed: str, data: AnyData, weights: Path | None = None, *, seed: int, device: torch.device, streams: str
) -> ChannelGraph:
    """The network as `open_model` opens it, on a device and traced."""
    from prunus.graph.channel_graph import trace
    from prunus.util.batches import labels_to

    network = open_model(typed, data, weights, seed=seed).to(device)
    return trace(network, labels_to(data.example(), device), streams)  # type: ignore[arg-type]


def _factory_arguments(name: str, data: AnyData) -> dict[str, int]:
    """The number of classes, and of channels if it is not the network's own; nothing if the data do not say."""
    from prunus.zoo.models import config

    if isinstance(data, OwnData):
        return {}
    channels = {} if config(name).shape[0] == data.shape[0] else {channels_argument(name): data.shape[0]}
    return {"num_classes": len(data.classes), **channels}


def refuse_other_weights(found: ModelArgument, weights: Path | None) -> None:
    """ModelError for --weights with a network that has its own."""
    if weights is not None and (found.weights is not None or found.folders):
        raise ModelError(f"{found.typed} has its own weights: leave out --weights {weights}")


def check_runs(model: nn.Module, name: str, example: Any) -> None:
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
            unsaid = resolve(name).is_own and "shape" not in _declared(resolve(name))
            advice = ". What it takes can be said: factory.shape = (channels, height, width)" if unsaid else ""
            raise ModelError(f"{name} does not run on {what}: {failure(error)}{advice}") from error


def note_untrained(typed: str, weights: Path | None) -> None:
    """Tell the user if the network has its initial weights."""
    if weights is None and not resolve(typed).has_weights:
        complain("note", "no --weights were given, so the network is untrained")


def input_size(model: str) -> int | None:
    """Height and width of the images that the model takes; None if the user's own factory does not say."""
    from prunus.zoo.models import config

    found = resolve(model)
    return config(found.name).shape[-1] if not found.is_own or "shape" in _declared(found) else None


def normalisation(model: str, mean: str | None, std: str | None) -> tuple[str | None, str | None]:
    """Mean and standard deviation as typed, or else those that the user's own factory declares as its attributes."""
    from prunus.zoo.models import config

    found = resolve(model)
    said = _declared(found)
    if mean is None and "mean" in said:
        mean = ",".join(map(str, config(found.name).mean))
    if std is None and "std" in said:
        std = ",".join(map(str, config(found.name).std))
    return mean, std


def _declared(found: ModelArgument) -> set[str]:
    from prunus.zoo.models import config

    return set(config(found.name).declared) if found.is_own else set()


def channels_argument(model: str) -> str:
    """The keyword by which a factory takes the number of image channels."""
    return "in_chans" if model.startswith("timm:") else "in_channels"


# Data of the user's own, `--data your.module:make_data`, in the form in which verbs read a data set by name.

LOADERS = ("train", "holdout", "test", "score_on")
NAMES = (*LOADERS, "example")


@dataclass(frozen=True, eq=False)
class OwnData:
    """The loaders that a function of the user's own made. Of classes, channels and normalisation nothing is known."""

    name: str
    loaders: Mapping[str, Any]  # part -> batches
    task: Task
    given: Any = None  # an input of the network; the first training image by default
    classes: tuple[str, ...] = ()

    def count(self, part: str) -> int:
        """Number of images in a part; 0 if the part does not exist. Loaders that do not reveal it are read."""
        from prunus.run.identity import images_in
        from prunus.tasks.evaluate import unpack_for
        from prunus.util.batches import count_images

        if part not in self.loaders:
            return 0
        known = images_in(self.loaders[part])
        if known is not None:
            return known
        batches = enumerate(self.loaders[part])
        return sum(count_images(unpack_for(self.task, batch, n, labelled=False)[0]) for n, batch in batches)

    def has(self, part: str) -> bool:
        """Whether there are images of a part."""
        return part in self.loaders

    def example(self) -> Any:
        """An input of the network: one image."""
        import torch

        from prunus.run.identity import first_image
        from prunus.util.state import generators_kept

        if self.given is not None:
            return self.given
        with generators_kept():  # a loader that shuffles draws random numbers
            return first_image(self.loaders["train"], torch.device("cpu"), self.task)

    def loader(
        self, part: str, _batch_size: int = 0, *, limit: int | None = None, seed: int = 0, **_how: Any
    ) -> Batches:
        """The user's own batches of a part, in their own size and order; a sample of `limit` images if it is given."""
        from prunus.score.passes import sampled

        if part not in self.loaders:
            raise DataError(f"{self.name} has no {part} images; it returned {', '.join(self.loaders)}")
        return sampled(self.loaders[part], limit, seed, self.task)

    def as_arguments(self) -> dict[str, Any]:
        """The parts as arguments of `compress`."""
        return {**self.loaders, "example": self.given}


def open_own_data(spec: str, task: Task) -> OwnData:
    """What make_data returned: two or three loaders, or a dict with some of NAMES."""
    made = call_user_function(spec, DataError)
    if isinstance(made, tuple | list) and 2 <= len(made) <= 3:
        made = dict(zip(LOADERS, made, strict=False))
    known = isinstance(made, Mapping) and set(made) <= set(NAMES) and {"train", "holdout"} <= set(made)
    if not known:
        got = f"the keys {sorted(map(str, made))}" if isinstance(made, Mapping) else f"a {type(made).__name__}"
        raise DataError(
            f"{spec!r} must return loaders (train, holdout) or (train, holdout, test), or a dict of "
            f"{', '.join(NAMES)}; it returned {got}"
        )
    loaders = {name: made[name] for name in LOADERS if made.get(name) is not None}
    return OwnData(spec, loaders, task, made.get("example"))


# The network of the demo, which verbs use when the user names none: trained once on scikit-learn's digits.

DEMO_MODEL, DEMO_DATA, DEMO_EPOCHS = "resnet8", "digits", 30


def demo_network(images: ImageData, seed: int = 0, rank: int = 0) -> nn.Module:
    """The network of the demo: loaded if it was trained before, otherwise trained and saved."""
    from safetensors.torch import save

    from prunus.train.fit import fit
    from prunus.util.files import write_atomically

    saved = Path("runs") / f"base-{DEMO_MODEL}-{DEMO_DATA}" / "model.safetensors"
    if saved.exists():
        return open_model(DEMO_MODEL, images, saved, seed=seed)
    network = open_model(DEMO_MODEL, images, seed=seed)
    fitted = fit(
        network,
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
        console.print(f"trained {DEMO_MODEL} on {DEMO_DATA}, saved in {saved}")
    return fitted.model
