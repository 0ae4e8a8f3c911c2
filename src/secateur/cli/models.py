"""`secateur models`: the networks that can be named, with their cost."""

from __future__ import annotations

from typing import Annotated

import typer

from secateur.cli.common import console, friendly


@friendly
def command(
    names: Annotated[
        list[str] | None, typer.Argument(help="Names to show instead of all: also torchvision:NAME, timm:NAME, mod:fn.")
    ] = None,
    classes: Annotated[int | None, typer.Option("--classes", min=1, help="Classes instead of each one's own.")] = None,
) -> None:
    """List the built-in networks with their MACs and parameters."""
    from rich.table import Table

    from secateur.zoo import models
    from secateur.zoo.models.totals import totals

    table = Table(box=None, pad_edge=False)
    for title in ("name", "input", "classes", "MACs", "weights", "parameters", "what"):
        table.add_column(title, justify="right" if title in ("classes", "MACs", "weights", "parameters") else "left")
    for name in names or models.names():
        found = models.config(name)
        cost = totals(name, classes)
        shape = "x".join(str(side) for side in found.shape)
        counts = [_millions(number) for number in (cost.macs, cost.weights, cost.parameters)]
        table.add_row(name, shape, str(classes or found.num_classes), *counts, found.about)
    console.print(table)
    console.print("MACs: multiply-adds of convolutions and linear layers; weights: those of the same layers.")
    if not names:
        console.print("Also by name: torchvision:NAME, timm:NAME, and package.module:factory for your own.")


def _millions(number: int) -> str:
    return f"{number / 1e6:,.2f} M"
