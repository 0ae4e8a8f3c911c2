"""predictions.safetensors: what each test image adds to the quality, before and after pruning, for paired tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from prunus.errors import FileError
from prunus.tasks.paired import ImageValues
from prunus.util.files import write_atomically

PREDICTIONS = "predictions.safetensors"
NOTES = "prunus"  # key in the metadata of the tensors


@dataclass(frozen=True)
class Predictions:
    """The values of some networks on the same images.

    Attributes:
        of: Name of a network ("before", "after") -> what each image adds to its quality.
        part: The images: test or holdout.
        quality: The quality's name.
    """

    of: Mapping[str, ImageValues]
    part: str
    quality: str


def write_predictions(path: Path, predictions: Predictions) -> None:
    """Write a safetensors file: a tensor for each network, with a byte for each image where answers are right or wrong.

    Its metadata are the part, the name of the quality and a digest of the labels.
    """
    labels = {name: each.labels for name, each in predictions.of.items()}
    notes = {"part": predictions.part, "quality": predictions.quality, "labels": labels}
    tensors = {name: each.values.contiguous() for name, each in predictions.of.items()}
    write_atomically(path, save(tensors, {NOTES: json.dumps(notes)}))


def read_predictions(path: Path) -> Predictions | None:
    """What `write_predictions` wrote; None if there is no such file: the run is older, or values were not known."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            notes = json.loads(file.metadata()[NOTES])
            of = {name: ImageValues(file.get_tensor(name), str(notes["labels"][name])) for name in file.keys()}  # noqa: SIM118
        return Predictions(of, str(notes["part"]), str(notes["quality"]))
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path} is not a file of predictions that prunus wrote: {error}") from error
