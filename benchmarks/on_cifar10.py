"""What the benchmarks on trained CIFAR-10 networks share: their arguments, the network and its images, their table."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from prunus.util.files import write_atomically
from prunus.zoo.data import ImageData, load
from prunus.zoo.models import create
from prunus.zoo.weights import load_weights

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser that knows the weights, the data and the table's file; a benchmark adds its own."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds CIFAR-10")
    parser.add_argument("--out", type=Path, required=True, help="JSON file; what it holds is not measured again")
    return parser


def opened(network: str, args: argparse.Namespace, holdout: str = "test:0.5") -> tuple[nn.Module, ImageData]:
    """The trained network, in eval mode, and CIFAR-10 normalised as in its training."""
    model = create(network, num_classes=10).eval()
    load_weights(model, args.weights)
    return model, load("cifar10", args.data, mean=MEAN, std=STD, holdout=holdout)


def table_so_far(path: Path, start: Mapping[str, Any]) -> dict[str, Any]:
    """What an earlier run has written, or the start of a table."""
    return dict(json.loads(path.read_text())) if path.exists() else dict(start)


def write(table: Mapping[str, Any], path: Path) -> None:
    """The table as JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, f"{json.dumps(table, indent=2)}\n".encode())
