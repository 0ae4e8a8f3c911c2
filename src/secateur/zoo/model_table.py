"""What the built-in networks are and cost, from a stored table: `secateur models` need not import torch.

`tests/zoo/test_model_table.py` compares the table with the networks themselves.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class KnownModel:
    """A network with its default input and classes. `weights` leaves out biases and batch norm."""

    shape: tuple[int, ...]
    classes: int
    macs: int
    weights: int
    parameters: int
    about: str


@cache
def known_models() -> dict[str, KnownModel]:
    """name -> what is known, in the order of `secateur models`."""
    table = json.loads(Path(__file__).with_name("model_table.json").read_text(encoding="utf-8"))
    return {name: KnownModel(**{**words, "shape": tuple(words["shape"])}) for name, words in table.items()}
