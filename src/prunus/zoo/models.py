"""Networks by name: the built-in ones, those of torchvision, timm and ultralytics, and user-provided ones.

    model = create("resnet56", num_classes=10)
    load_weights(model, "resnet56.safetensors")      # prunus.zoo.weights
    config("resnet56").shape                         # (3, 32, 32)

Names: the built-in ones (`names()`), `torchvision:NAME`, `timm:NAME`, `yolo:CONFIG.yaml`, `package.module:factory`, and
the path of an .onnx file.
"""

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from prunus.errors import ModelError
from prunus.util.registry import nearest, unknown
from prunus.util.text import count
from prunus.util.user_code import call_user_function, cannot_take, failure, import_user_function
from prunus.zoo.names import KnownModel, check_model, is_onnx
from prunus.zoo.networks import IMAGENET, REGISTERED, Input, ModelConfig


def names() -> tuple[str, ...]:
    """The built-in names, sorted so that resnet20 comes before resnet110."""
    return tuple(sorted(REGISTERED, key=lambda name: (name.rstrip("0123456789"), len(name), name)))


def config(name: str) -> ModelConfig:
    """What is known about a name without building the network: input shape, classes, mean and standard deviation."""
    if is_onnx(name):
        return _onnx(name)
    home, colon, rest = name.partition(":")
    if not colon:
        check_model(name, names())
        return REGISTERED[name]
    if not home or not rest:
        raise ModelError(f"{name!r} should be library:NAME or package.module:factory; one side of the colon is empty")
    if home == "torchvision":
        return _torchvision(name, rest)
    if home == "yolo":
        return _ultralytics(name, rest)
    return _timm(name, rest) if home == "timm" else _user_provided(name, rest)


def create(name: str, num_classes: int | None = None, *, pretrained: bool = False, **arguments: Any) -> nn.Module:
    """A newly initialised network. `num_classes` is by default that of its config; `arguments` go to its factory.

    `pretrained`: torchvision or timm loads its own weights instead, which may need a connection.
    """
    known = config(name)
    classes = known.num_classes if num_classes is None else num_classes
    if classes < 1:
        raise ModelError(f"{name}: num_classes must be at least 1, got {classes}")
    library = name.partition(":")[0]
    try:
        if pretrained and library == "torchvision":
            arguments = {"weights": "DEFAULT", **arguments}
        elif pretrained:
            arguments = {"pretrained": True, **arguments}
        return known.factory(num_classes=classes, **{**known.arguments, **arguments})
    except Exception as error:
        if pretrained:  # a library that downloads may raise anything
            raise ModelError(
                f"{name}: {library} did not load its pretrained weights: {failure(error)}. Without a connection, "
                "download them elsewhere and give --weights FILE"
            ) from error
        if not isinstance(error, TypeError):
            raise
        raise ModelError(f"{name}: cannot be built with {arguments or 'no other arguments'}: {error}") from error


def example(name: str, batch: int = 1) -> Tensor:
    """Zeros of the shape of the network's input [batch, C, H, W]."""
    return torch.zeros(batch, *config(name).shape)


# The operations that convolutions, linear layers and products of attention call.
COUNTED = (torch.ops.aten.convolution, torch.ops.aten.addmm, torch.ops.aten.mm, torch.ops.aten.bmm)


def totals(name: str, num_classes: int | None = None) -> KnownModel:
    """What a named network is and costs, as the paper counts it, for one image of its default size.

    The network runs on the meta device, so nothing is computed and no memory is used.
    """
    known = config(name)
    with torch.device("meta"):
        model, image = create(name, num_classes).eval(), torch.zeros(1, *known.shape)
    counter = FlopCounterMode(display=False)
    try:
        with counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):  # which calls the operations that are counted
            model(image)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        raise ModelError(f"{name}: cannot be run on an image of shape {known.shape}: {error}") from error
    flops = counter.get_flop_counts()["Global"]
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    return KnownModel(
        shape=known.shape,
        classes=num_classes or known.num_classes,
        macs=sum(flops.get(operation, 0) for operation in COUNTED) // 2,
        weights=sum(layer.weight.numel() for layer in layers),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        about=known.about,
    )


def _torchvision(name: str, rest: str) -> ModelConfig:
    models = _library("torchvision.models", "torchvision")
    known = models.list_models(module=models)
    if rest not in known:
        raise ModelError(unknown("torchvision classifier", rest, known))
    side = 299 if rest == "inception_v3" else 224
    takes = Input((3, side, side), IMAGENET.num_classes, IMAGENET.mean, IMAGENET.std)

    def build(num_classes: int, **arguments: Any) -> nn.Module:
        if rest in ("inception_v3", "googlenet"):  # otherwise both warn that their initialisation will change
            arguments = {"init_weights": False, **arguments}
        return models.get_model(rest, num_classes=num_classes, **arguments)  # type: ignore[no-any-return]

    return ModelConfig(**vars(takes), name=name, factory=build, about="from torchvision")


def _timm(name: str, rest: str) -> ModelConfig:
    timm = _library("timm", "timm")
    if not timm.is_model(rest):
        known = timm.list_models()  # more than a thousand: only similar ones are listed
        raise ModelError(unknown("timm model", rest, nearest(rest, known, most=10) or known[:10]))
    given = timm.get_pretrained_cfg(rest)
    takes = IMAGENET
    if given is not None:
        channels, height, width = given.input_size
        takes = Input((channels, height, width), given.num_classes or 1000, tuple(given.mean), tuple(given.std))

    def build(num_classes: int, **arguments: Any) -> nn.Module:
        return timm.create_model(rest, num_classes=num_classes, **arguments)  # type: ignore[no-any-return]

    return ModelConfig(**vars(takes), name=name, factory=build, about="from timm")


def _onnx(name: str) -> ModelConfig:
    """An .onnx file. If it takes images of any size, its factory takes the size."""
    from prunus.zoo.onnx.file import from_onnx, read_onnx, shown_sizes

    file = read_onnx(name)
    channels, height, width = file.image.sizes[1:]
    if channels is None:
        raise ModelError(f"{name}: takes any number of channels, {shown_sizes(file.image.sizes)}; export it for one")
    shape = (channels, height or IMAGENET.shape[1], width or IMAGENET.shape[2])
    takes = Input(shape, file.num_classes or IMAGENET.num_classes, IMAGENET.mean, IMAGENET.std)

    def build(num_classes: int, size: Any = None) -> nn.Module:
        return from_onnx(name, size)

    declared = ("shape",) if height and width else ()
    return ModelConfig(**vars(takes), name=name, factory=build, about="from a file", declared=declared)


def _ultralytics(name: str, rest: str) -> ModelConfig:
    """A detector by its configuration file, as in yolo:yolov8n.yaml. Its images have pixels in [0, 1]."""
    if Path(rest).suffix not in (".yaml", ".yml"):
        raise ModelError(
            f"{name}: expected the configuration of a detector, as in yolo:yolov8n.yaml; weights are given apart, with "
            "--weights best.pt"
        )
    takes = Input((3, 640, 640), 80, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))

    def build(num_classes: int, in_channels: int = 3, **arguments: Any) -> nn.Module:
        tasks = _library("ultralytics.nn.tasks", "ultralytics")
        try:
            model = tasks.DetectionModel(rest, ch=in_channels, nc=num_classes, verbose=False, **arguments)
        except FileNotFoundError as error:
            raise ModelError(f"{name}: ultralytics has no such configuration: {error}") from error
        if (kind := type(model.model[-1]).__name__) not in ("Detect", "v10Detect"):
            raise ModelError(f"{name}: ends in {kind}; only detectors are opened by this name")
        # Otherwise the head compares the batch with the one before, and cannot be exported for any number of images.
        model.model[-1].dynamic = True
        return model.eval()  # type: ignore[no-any-return]

    return ModelConfig(**vars(takes), name=name, factory=build, about="from ultralytics", declared=("mean", "std"))


def _library(module_name: str, package: str) -> ModuleType:
    """Import a library that may be missing or broken (a torchvision built for another torch raises RuntimeError)."""
    try:
        return importlib.import_module(module_name)
    except (ImportError, RuntimeError, AttributeError, OSError) as error:
        # timm imports torchvision and may fail because of it, with a message that does not say so.
        frames = traceback.walk_tb(error.__traceback__)
        running = {str(frame.f_globals.get("__name__", "")).partition(".")[0] for frame, _ in frames}
        cure = f"install a version of {package} that fits torch {torch.__version__}, or choose another model"
        if isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] == package:
            cure = f"install it: pip install {package}"
        elif "torchvision" in str(error) or "torchvision" in running:
            cure = (
                f"the installed torchvision does not fit torch {torch.__version__}: its compiled operators are "
                "missing. Install torch and torchvision together, both for the CPU or both for the same CUDA version"
            )
        raise ModelError(f"{package} cannot be imported ({type(error).__name__}: {error}); {cure}") from error


def _user_provided(name: str, attribute: str) -> ModelConfig:
    """A user's factory. It may have attributes `shape`, `mean`, `std`, `num_classes`; the default is ImageNet's."""
    factory: Any = import_user_function(name, ModelError)
    takes = _declared_input(name, factory)

    def build(num_classes: int, **arguments: Any) -> nn.Module:
        if accepts(factory, "num_classes"):
            arguments = {"num_classes": num_classes, **arguments}
        if "in_channels" in arguments and not accepts(factory, "in_channels"):
            grey = takes.shape[0] == 1
            raise ModelError(
                f"{name!r} is for images of {count(takes.shape[0], 'channel')}, and these have "
                f"{arguments['in_channels']}: set {attribute}.shape = (channels, height, width), or give {attribute} a "
                "parameter in_channels"
                + ("; folders are read in colour: for grey images, --data your_module:make_data" if grey else "")
            )
        if trouble := cannot_take(factory, **arguments):
            raise ModelError(
                f"{name!r} is called without arguments, except num_classes and in_channels if it has them, but: "
                f"{trouble}. Give its parameters defaults"
            )
        model = call_user_function(name, ModelError, **arguments)
        if not isinstance(model, nn.Module):
            raise ModelError(f"{name!r} must return a torch.nn.Module, but returned {type(model).__name__}")
        return model

    declared = tuple(part for part in ("shape", "mean", "std") if hasattr(factory, part))
    return ModelConfig(**vars(takes), name=name, factory=build, about="user-provided", declared=declared)


def _declared_input(name: str, factory: Any) -> Input:
    def numbers(part: str) -> tuple[float, ...]:
        value = getattr(factory, part, getattr(IMAGENET, part))
        return (float(value),) if isinstance(value, int | float) else tuple(float(number) for number in value)

    default = inspect.signature(factory).parameters.get("num_classes") if accepts(factory, "num_classes") else None
    known = default.default if default is not None and type(default.default) is int else IMAGENET.num_classes
    classes: Any = getattr(factory, "num_classes", known)
    try:
        channels, height, width = getattr(factory, "shape", IMAGENET.shape)
        return Input((int(channels), int(height), int(width)), int(classes), numbers("mean"), numbers("std"))
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"{name!r}: the attributes of a factory are shape = (channels, height, width), num_classes = a number, "
            f"mean and std = one number per channel; {error}"
        ) from error


def accepts(factory: Callable[..., Any], argument: str) -> bool:
    """Whether a factory takes a keyword argument of this name."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # builtins without a signature
        return False
    return any(p.name == argument or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
