"""`secateur models`: the built-in networks and what they cost."""

from __future__ import annotations

from typing import Annotated

import typer

from secateur.cli.columns import columns
from secateur.cli.common import console, friendly

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

        secateur models

        secateur models resnet56 torchvision:resnet50 --classes 10
    """
    from secateur.zoo import models
    from secateur.zoo.models.totals import totals

    rows = []
    for name in names or models.names():
        found = models.config(name)
        cost = totals(name, classes)
        shape = "x".join(str(side) for side in found.shape)
        counts = [_short(number) for number in (cost.macs, cost.weights, cost.parameters)]
        rows.append([name, shape, str(classes or found.num_classes), *counts, found.about])
    table = columns(("name", "input", *NUMBERS, "notes"), rows, NUMBERS)
    console.print(table, soft_wrap=True, markup=False)
    console.print("MACs, weights: of convolutions and linear layers. params: all parameters.", soft_wrap=True)
    if not names:
        console.print("Other models: torchvision:NAME, timm:NAME, package.module:factory.", soft_wrap=True)


def _short(number: int) -> str:
    return f"{number / 1e9:.2f} G" if number >= 1e9 else f"{number / 1e6:.2f} M"
