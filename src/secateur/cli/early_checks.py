"""Checks of single values before a verb begins, and so before torch is imported.

    Model = Annotated[str, typer.Argument(help="..."), Early(network)]

`friendly` runs the checks of a verb's parameters. Fields of settings have their own (`secateur.base.options`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from secateur.base.options import check_choice
from secateur.cli.model_argument import resolve
from secateur.errors import FileError, ModelError, SecateurError
from secateur.scoring.metrics import METRICS
from secateur.zoo.checks import check_model, check_weight_file


@dataclass(frozen=True)
class Early:
    """Marks a parameter of a verb: `check` raises a SecateurError for a wrong value."""

    check: Callable[[Any], object]


def run_early_checks(verb: Callable[..., Any], values: dict[str, Any]) -> None:
    """Check the values of a verb's parameters that are marked; each one of a list."""
    for name, hint in get_type_hints(verb, include_extras=True).items():
        value = values.get(name)
        for mark in getattr(hint, "__metadata__", ()):
            if isinstance(mark, Early) and value is not None:
                for each in value if isinstance(value, list) else [value]:
                    mark.check(each)


def choice(option: str, *choices: str) -> Early:
    """One of some words."""
    return Early(lambda value: check_choice(option, value, choices, SecateurError))


def network(text: str) -> None:
    """A name, NAME=WEIGHTS, or the folder of a run or a pruned network."""
    if not text:
        raise ModelError("the name of the network is empty")
    if Path(text).is_dir():  # which may need --model
        return
    found = resolve(text)
    check_model(found.name)
    if found.weights is not None:
        check_weight_file(found.weights)


def network_or_file(text: str) -> None:
    """What `network` takes, or an ONNX file."""
    if text.endswith(".onnx"):
        file(Path(text))
    else:
        network(text)


def file(path: Path) -> None:
    """A file that exists."""
    if not path.is_file():
        raise FileError(f"{path} {'is a folder, not a file' if path.is_dir() else 'does not exist'}")


def folder(path: Path) -> None:
    """A folder that exists."""
    if not path.is_dir():
        raise FileError(f"{path} {'is a file, not a folder' if path.is_file() else 'does not exist'}")


def metrics(text: str) -> None:
    """Names of metrics, separated by commas, each with options as in gsd:ridge=1; or all."""
    for name in names_in([text]):
        if name != "all":
            METRICS.check(name.partition(":")[0])


def names_in(given: Sequence[str]) -> list[str]:
    """The names in an option that can be repeated and can contain several names, separated by commas."""
    return [name.strip() for text in given for name in text.split(",") if name.strip()]


weights = check_weight_file
