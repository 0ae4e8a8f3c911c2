"""Networks of other packages: `torchvision:NAME`, `timm:NAME`, and the user's own `package.module:factory`."""

from __future__ import annotations

import difflib
import importlib
import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from prunus.errors import ModelError
from prunus.util.registry import unknown
from prunus.util.user_code import current_folder_importable, failure
from prunus.zoo.model_registry import IMAGENET, Input, ModelConfig


def external_config(name: str) -> ModelConfig:
    """The config of a name with a colon. Imports the library or module, but does not build the network."""
    home, _, rest = name.partition(":")
    if not home or not rest:
        raise ModelError(f"{name!r} should be library:NAME or package.module:factory; one side of the colon is empty")
    if home == "torchvision":
        return _torchvision(name, rest)
    if home == "timm":
        return _timm(name, rest)
    return _own(name, home, rest)


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

    return ModelConfig(name, build, takes, "from torchvision")


def _similar(name: str, known: list[str]) -> list[str]:
    """Up to ten of more than a thousand names."""
    return difflib.get_close_matches(name, known, n=10, cutoff=0.5) or known[:10]


def _timm(name: str, rest: str) -> ModelConfig:
    timm = _library("timm", "timm")
    if not timm.is_model(rest):
        raise ModelError(unknown("timm model", rest, _similar(rest, timm.list_models())))
    given = timm.get_pretrained_cfg(rest)
    takes = IMAGENET
    if given is not None:
        channels, height, width = given.input_size
        takes = Input((channels, height, width), given.num_classes or 1000, tuple(given.mean), tuple(given.std))

    def build(num_classes: int, **arguments: Any) -> nn.Module:
        return timm.create_model(rest, num_classes=num_classes, **arguments)  # type: ignore[no-any-return]

    return ModelConfig(name, build, takes, "from timm")


def _own(name: str, module_name: str, attribute: str) -> ModelConfig:
    """A user's factory. It may have attributes `shape`, `mean`, `std`, `num_classes`; the default is ImageNet's."""
    with current_folder_importable():
        module = _import_own(name, module_name)
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise ModelError(f"{name!r}: the module {module_name} has no callable {attribute!r}")
    takes = _declared_input(name, factory)

    def build(num_classes: int, **arguments: Any) -> nn.Module:
        if _accepts(factory, "num_classes"):
            arguments = {"num_classes": num_classes, **arguments}
        if "in_channels" in arguments and not _accepts(factory, "in_channels"):
            raise ModelError(
                f"{name!r} is for images of {takes.shape[0]} channels, and these have {arguments['in_channels']}: set "
                f"{attribute}.shape = (channels, height, width), or give {attribute} a parameter in_channels"
            )
        with current_folder_importable():
            model = _built(name, factory, arguments)
        if not isinstance(model, nn.Module):
            raise ModelError(f"{name!r} must return a torch.nn.Module, but returned {type(model).__name__}")
        return model

    declared = tuple(part for part in ("shape", "mean", "std") if hasattr(factory, part))
    return ModelConfig(name, build, takes, "your own", declared=declared)


def _built(name: str, factory: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        inspect.signature(factory).bind(**arguments)
    except TypeError as error:
        raise ModelError(
            f"{name!r} is called without arguments, except num_classes and in_channels if it has them, but: {error}. "
            "Give its parameters defaults"
        ) from error
    except ValueError:  # written in C: it has no signature
        pass
    try:
        return factory(**arguments)
    except Exception as error:  # a user's factory may raise anything
        raise ModelError(f"{name!r} failed with {failure(error)}") from error


def _declared_input(name: str, factory: Any) -> Input:
    def numbers(part: str, default: tuple[float, ...]) -> tuple[float, ...]:
        found = getattr(factory, part, default)
        return (float(found),) if isinstance(found, int | float) else tuple(float(number) for number in found)

    try:
        channels, height, width = getattr(factory, "shape", IMAGENET.shape)
        return Input(
            shape=(int(channels), int(height), int(width)),
            num_classes=int(getattr(factory, "num_classes", _default(factory, "num_classes", IMAGENET.num_classes))),
            mean=numbers("mean", IMAGENET.mean),
            std=numbers("std", IMAGENET.std),
        )
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"{name!r}: the attributes of a factory are shape = (channels, height, width), num_classes = a number, "
            f"mean and std = one number per channel; {error}"
        ) from error


def _library(module_name: str, package: str) -> ModuleType:
    """Import a library that may be missing or broken (a torchvision built for another torch raises RuntimeError)."""
    try:
        return importlib.import_module(module_name)
    except (ImportError, RuntimeError, AttributeError, OSError) as error:
        raise ModelError(
            f"{package} cannot be imported ({type(error).__name__}: {error}); {_cure(package, error)}"
        ) from (error)


def _cure(package: str, error: Exception) -> str:
    """What to install. timm imports torchvision, and may fail because of it."""
    missing = getattr(error, "name", None)
    if isinstance(error, ModuleNotFoundError) and str(missing).partition(".")[0] == package:
        return f"install it: pip install {package}"
    if "torchvision" in str(error) or "torchvision" in _imported(error):
        return (
            f"the installed torchvision does not fit torch {torch.__version__}: its compiled operators are missing. "
            "Install torch and torchvision together, both for the CPU or both for the same CUDA version"
        )
    return f"install a version of {package} that fits torch {torch.__version__}, or choose another model"


def _imported(error: Exception) -> set[str]:
    """The packages whose code was running when the error was raised."""
    frames = traceback.walk_tb(error.__traceback__)
    return {str(frame.f_globals.get("__name__", "")).partition(".")[0] for frame, _ in frames}


def _import_own(name: str, module_name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if module_name.endswith(".py"):
            raise ModelError(f"{name!r}: leave out .py, as in package.module:factory") from error
        raise ModelError(
            f"{name!r}: no module named {error.name!r}; install it or put it into the current folder, {Path.cwd()}"
        ) from error
    except Exception as error:  # importing a user's module may raise anything
        raise ModelError(f"{name!r}: importing {module_name} failed with {type(error).__name__}: {error}") from error


def _default(factory: Callable[..., Any], argument: str, otherwise: int) -> int:
    """The default of a factory's own parameter, if it is a whole number."""
    found = inspect.signature(factory).parameters.get(argument) if _accepts(factory, argument) else None
    return found.default if found is not None and type(found.default) is int else otherwise


def _accepts(factory: Callable[..., Any], argument: str) -> bool:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # builtins without a signature
        return False
    return any(p.name == argument or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
