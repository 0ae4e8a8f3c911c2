"""Data of the user's own: `--data your.module:make_data`, for any task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secateur.base.own_code import made_by_own_function
from secateur.cli.model_argument import resolve
from secateur.cli.opening import refuse_other_weights
from secateur.errors import DataError

if TYPE_CHECKING:
    from torch import nn

PARTS = ("train", "holdout", "test", "score_on", "example")


def own_parts(spec: str) -> dict[str, Any]:
    """What make_data returned, as arguments of `compress`: two or three loaders, or a dict with names of PARTS."""
    made = made_by_own_function(spec, DataError)
    if isinstance(made, tuple | list) and 2 <= len(made) <= 3:
        made = dict(zip(PARTS, made, strict=False))
    known = isinstance(made, Mapping) and set(made) <= set(PARTS) and {"train", "holdout"} <= set(made)
    if not known:
        got = f"the keys {sorted(map(str, made))}" if isinstance(made, Mapping) else f"a {type(made).__name__}"
        raise DataError(
            f"{spec!r} must return loaders (train, holdout) or (train, holdout, test), or a dict of "
            f"{', '.join(PARTS)}; it returned {got}"
        )
    return dict(made)


def network_for_own_data(typed: str, weights: Path | None, seed: int) -> nn.Module:
    """The network that `typed` names as its factory makes it: nothing is known of the data's classes and channels."""
    from secateur.base.preserve_state import generators_kept
    from secateur.channels.files import load
    from secateur.zoo.models import create, load_weights

    found = resolve(typed)
    refuse_other_weights(found, weights)
    with generators_kept(seed):
        model = create(found.name)
    file = weights or found.weights
    if file is not None:
        load_weights(model, file)
    for folder in found.folders:
        model = load(folder, model)
    return model
