"""Options that several verbs take, said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Augment = Annotated[bool, typer.Option(help="Random crops and flips in retraining.")]
Classes = Annotated[int | None, typer.Option(help="Its classes, if they are not the usual number.")]
Data = Annotated[str, typer.Option(help="digits, mnist, cifar10, cifar100, imagenet:PATH, folder:PATH.")]
DataRoot = Annotated[Path | None, typer.Option(help="Folder that holds the data set.")]
DecidingImages = Annotated[str, typer.Option(help="Images for decisions: train:SHARE or test:SHARE.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 ...; the best there is by default.")]
Exact = Annotated[bool, typer.Option(help="All held-out images for all units: no racing.")]
HeldOut = Annotated[str, typer.Option(help="Held-out images: train:SHARE, test:SHARE or none.")]
LearningRate = Annotated[float | None, typer.Option(help="Learning rate, instead of the preset's.")]
Mean = Annotated[str | None, typer.Option(help="Mean to subtract, as in 0.485,0.456,0.406.")]
Model = Annotated[str, typer.Argument(help="Built-in name, torchvision:NAME, timm:NAME, package.module:factory.")]
Size = Annotated[int | None, typer.Option(help="Side of the images in pixels.")]
Std = Annotated[str | None, typer.Option(help="Deviation to divide by.")]
Streams = Annotated[str, typer.Option(help="Additions: select or coupled.")]
Weights = Annotated[Path | None, typer.Option(help="The trained network's weights.")]
Workers = Annotated[int, typer.Option(help="Processes that decode image files.")]
