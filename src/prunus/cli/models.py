"""`prunus models`: the built-in networks and what they cost."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from prunus.cli.console import columns, console, friendly

if TYPE_CHECKING:
    from prunus.zoo.names import KnownModel

WIDTH = 80
NUMBERS = ("classes", "MACs", "weights", "params")


@friendly
def command(
    names: Annotated[
        list[str] | None, typer.Argument(help="Names to show instead of all; also torchvision:NAME, timm:NAME, mod:fn")
    ] = None,
    classes: Annotated[int | None, typer.Option("--classes", min=1, help="Number of classes")] = None,
) -> None:
    """List the built-in networks with their MACs and parameters.

    Examples:

        prunus models

        prunus models resnet56 torchvision:resnet50 --classes 10
    """
    from prunus.zoo.names import known_models

    table = known_models()
    found = {name: _known(name, classes) for name in names or table}
    rows = []
    for name, known in found.items():
        shape = "x".join(str(side) for side in known.shape)
        counts = [_short(number) for number in (known.macs, known.weights, known.parameters)]
        rows.append([name, shape, str(known.classes), *counts])
    console.print(columns(("name", "input", *NUMBERS), rows, NUMBERS), soft_wrap=True)
    for about in dict.fromkeys(known.about for known in found.values() if known.about):
        named = ", ".join(name for name, known in found.items() if known.about == about)
        console.print(textwrap.fill(f"{about}: {named}", WIDTH, subsequent_indent="  "), soft_wrap=True)
    console.print("MACs, weights: of convolutions and linear layers. params: all parameters.", soft_wrap=True)
    if not names:
        console.print("Other models: torchvision:NAME, timm:NAME, package.module:factory.", soft_wrap=True)


def _known(name: str, classes: int | None) -> KnownModel:
    """From the stored table, or counted if the network or its classes are others."""
    from prunus.zoo.names import KnownModel, known_models

    if name in known_models() and classes is None:
        return known_models()[name]
    from prunus.zoo import models
    from prunus.zoo.models import totals

    config, cost = models.config(name), totals(name, classes)
    number = classes or config.num_classes
    return KnownModel(config.shape, number, cost.macs, cost.weights, cost.parameters, config.about)


def _short(number: int) -> str:
    return f"{number / 1e9:.2f} G" if number >= 1e9 else f"{number / 1e6:.2f} M"
