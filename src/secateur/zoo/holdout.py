"""Which images are held out for decisions, as it is typed. Nothing here imports torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from secateur.errors import DataError


@dataclass(frozen=True)
class Holdout:
    """Which images are held out for decisions: a `share` of the training or test images, or none."""

    source: Literal["train", "test", "none"]
    share: float = 0.0


def parse_holdout(text: str) -> Holdout:
    """`train:0.1`, `test:0.5` or `none`."""
    if text == "none":
        return Holdout("none")
    found = re.fullmatch(r"(train|test):(0?\.\d+)", text)
    share = float(found.group(2)) if found else 0.0
    if found is None or share == 0.0:
        raise DataError(
            f"holdout must be train:SHARE, test:SHARE (0 < SHARE < 1, as in test:0.5) or none, got {text!r}"
        )
    return Holdout("train" if found.group(1) == "train" else "test", share)
