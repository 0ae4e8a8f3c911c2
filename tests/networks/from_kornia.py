"""kornia: descriptors of image patches."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

from torch import nn

from tests.networks import Network

NAMES = ["HardNet", "HardNet8", "SOSNet", "HyNet", "TFeat"]


def library() -> Any:
    return importlib.import_module("kornia.feature")


def make(name: str) -> nn.Module:
    return getattr(library(), name)(pretrained=False)  # type: ignore[no-any-return]


def networks() -> dict[str, Network]:
    return {name: Network(partial(make, name), ((1, 32, 32),)) for name in NAMES}
