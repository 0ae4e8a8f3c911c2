"""Find the first layer at which a pruned network and the zeroed one compute different values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from secateur.channels.layer_kinds import CONVOLUTIONS, batched_dims, is_depthwise
from secateur.channels.layer_surgery import depthwise_filters
from secateur.channels.replay import Slices
from secateur.channels.traced import Example, named_modules
from secateur.channels.units import Indices
from secateur.channels.verifying.comparison import outputs_of, precision_of
from secateur.channels.verifying.outputs import tensor_distance

Seen = Callable[[str, Any], None]  # called with the name of a layer and its output


class _Found(Exception):
    """The search is over."""


def first_difference(pruned: nn.Module, whole: nn.Module, slices: Slices, inputs: Example) -> str | None:
    """The name of the first layer whose values differ, or in which the pruned network fails; None if no layer shows it.

    Call it while the weights of `whole` are zeroed.
    """
    rounding = float(torch.finfo(precision_of(whole)).eps) ** 0.5
    wanted: list[tuple[str, Any]] = []
    with _tapped(whole, lambda name, output: wanted.append((name, _kept(whole, slices, name, output))), []):
        outputs_of(whole, inputs)
    expected = iter(wanted)
    differing: list[str] = []

    def compare(name: str, output: Any) -> None:
        other, want = next(expected, ("", None))
        if other != name or not _alike(output, want, rounding):
            differing.append(name)
            raise _Found

    inside: list[str] = []
    try:
        with _tapped(pruned, compare, inside):
            outputs_of(pruned, inputs)
    except _Found:
        return differing[0]
    except Exception:  # noqa: BLE001  whatever the model's own code raises
        return inside[-1] if inside else None
    return None


@contextmanager
def _tapped(model: nn.Module, seen: Seen, inside: list[str]) -> Iterator[None]:
    """Call `seen` after each layer. `inside` lists the modules that are running."""
    handles = []

    def before(name: str) -> Callable[..., None]:
        return lambda module, args: inside.append(name)

    def after(name: str, leaf: bool) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            inside.pop()
            if leaf:
                seen(name, output)

        return hook

    try:
        for name, module in named_modules(model):
            if name:
                leaf = not any(True for _ in module.children())
                handles.append(module.register_forward_pre_hook(before(name), prepend=True))
                handles.append(module.register_forward_hook(after(name, leaf)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _kept(whole: nn.Module, slices: Slices, name: str, output: Any) -> Any:
    """The part of a layer's output that the pruned layer still computes."""
    layer = whole.get_submodule(name)
    index: Indices | None = None
    if name in slices.mixing:
        index = slices.mixing[name][1]
    elif name in slices.passing:
        channels = slices.passing[name][0]
        index = depthwise_filters(layer, channels) if is_depthwise(layer) else channels
    if index is None or not isinstance(output, Tensor):
        return output
    dim = output.dim() - 1 if isinstance(layer, nn.Linear) else 1
    if isinstance(layer, CONVOLUTIONS):
        dim = output.dim() - batched_dims(layer) + 1
    return output.index_select(dim, torch.from_numpy(index).to(output.device))


def _alike(got: Any, want: Any, rounding: float) -> bool:
    """Whether two outputs of a layer agree. Shapes may differ behind layers without weights, which are not cut."""
    if not (isinstance(got, Tensor) and isinstance(want, Tensor)) or got.shape != want.shape:
        return True
    return tensor_distance(got, want) <= rounding
