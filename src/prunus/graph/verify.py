"""The check at the end of `prune`: the pruned and the zeroed network compute the same, or nothing is returned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from prunus.errors import PlanError
from prunus.graph.compare import (
    RANDOM,
    NotRun,
    difference,
    few_images,
    in_mode,
    is_constant,
    outputs_of,
    precision_of,
    randomised,
    said,
    tensor_distance,
)
from prunus.graph.layer_surgery import depthwise_filters
from prunus.graph.replay import Slices, replay_plan
from prunus.graph.surgery import carve, zeroed
from prunus.graph.traced import CONVOLUTIONS, Example, batched_dims, is_depthwise, named_modules
from prunus.graph.trials import Trial, may_write_weights
from prunus.graph.units import Indices, Keep
from prunus.util.state import generators_kept, module_state_kept

if TYPE_CHECKING:
    from prunus.graph.channel_graph import ChannelGraph


# Find the first layer at which a pruned network and the zeroed one compute different values.

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


_TRIALS = 200  # how many smaller plans are tried to find the unit that is to blame


def verify(graph: ChannelGraph, keep: Keep, pruned: nn.Module) -> None:
    """Raise PlanError unless `pruned` computes what the zeroed network computes.

    Both run on the example and on random inputs of its shape, in eval mode, and in the mode of the model if that is
    another one. Both are left as they were.
    """
    modes = ["own"] if not any(module.training for _, module in named_modules(graph.model)) else ["eval", "own"]
    given = [] if is_constant(graph.example) else [graph.example]
    trials = [Trial(mode, inputs, []) for inputs in [*given, randomised(graph.example)] for mode in modes]
    writing = may_write_weights(graph.model)
    with module_state_kept(graph.model, pruned, weights=writing):  # also what hooks of the copy write to the model
        differing = first_failing(graph, keep, pruned, trials)
        if differing is not None:
            trial, found = differing
            raise PlanError(_message(graph, keep, trial.inputs, trial.mode, found))


def first_failing(
    graph: ChannelGraph, keep: Keep, pruned: nn.Module, trials: Sequence[Trial]
) -> tuple[Trial, str] | None:
    """The first trial in which the pruned network and the zeroed one differ, and how, in words."""
    with zeroed(graph, keep):  # once for all: the weights of a large network take as long to copy as a run
        for trial in trials:
            with in_mode(graph.model, trial.mode), ExitStack() as modes:
                try:
                    modes.enter_context(in_mode(pruned, trial.mode))
                except Exception as error:  # noqa: BLE001  a `train` of the model's own may work on its weights
                    return trial, f"it fails with {said(error)}"
                found = _difference_from_zeroed(graph.model, pruned, trial.inputs)
            if found is not None:
                return trial, found
    return None


def _difference_from_zeroed(whole: nn.Module, pruned: nn.Module, inputs: Example) -> str | None:
    """How the outputs differ, in words; None if they do not.

    In training mode, networks that do not run on these inputs or depend on random numbers cannot be compared.
    """
    try:
        try:
            found = difference(pruned, whole, few_images(inputs))
        except NotRun:
            found = difference(pruned, whole, inputs)
    except NotRun as error:
        return None if whole.training else f"it cannot be compared, because the network fails with {error}"
    return None if found == RANDOM and whole.training else found


def _message(graph: ChannelGraph, keep: Keep, inputs: Example, mode: str, found: str) -> str:
    """What differs, the first layer at which it does, and the unit to exclude."""
    cut = [name for name, kept in keep.items() if len(kept) < graph.units[name].width]

    def fails(names: Sequence[str]) -> bool:
        return failure(graph, {name: keep[name] for name in names}, [Trial(mode, inputs, [])]) is not None

    units = [] if found == RANDOM else culprits(cut, fails)
    layer = layer_that_differs(graph, {name: keep[name] for name in units or cut}, inputs, mode)
    where = f", first at layer {layer!r}" if layer else ""
    advice = f"Keep all channels of {' and '.join(repr(name) for name in units[:3])}" if units else "Keep all channels"
    in_training = " in training mode" if mode == "own" and graph.model.training else ""
    return (
        f"the pruned {type(graph.model).__name__} does not compute what the zeroed network computes{in_training}: "
        f"{found}{where}. {advice}; or pass check=False if this is known and wanted."
    )


def failure(graph: ChannelGraph, keep: Keep, trials: Sequence[Trial]) -> str | None:
    """What goes wrong if the network is pruned to `keep` and run in these modes on these inputs, in words."""
    try:
        pruned = carve(graph, *replay_plan(graph, keep), share=True)
    except Exception as error:  # noqa: BLE001  a plan that cannot be carried out fails, for whatever reason
        return str(error) if isinstance(error, PlanError) else said(error)
    differing = first_failing(graph, keep, pruned, trials)
    return None if differing is None else differing[1]


def layer_that_differs(graph: ChannelGraph, keep: Keep, inputs: Example, mode: str) -> str | None:
    """The first layer whose values differ between the network pruned to `keep` and the zeroed one."""
    try:
        record, slices = replay_plan(graph, keep)
        return _tap(graph, keep, carve(graph, record, slices, share=True), slices, inputs, mode)
    except Exception:  # noqa: BLE001  the layer is only named to help
        return None


def _tap(graph: ChannelGraph, keep: Keep, pruned: nn.Module, slices: Slices, inputs: Any, mode: str) -> str | None:
    with generators_kept(), in_mode(graph.model, mode), in_mode(pruned, mode), zeroed(graph, keep):
        return first_difference(pruned, graph.model, slices, inputs)


def culprits(names: Sequence[str], fails: Callable[[Sequence[str]], bool], trials: int = _TRIALS) -> list[str]:
    """The fewest names, found by bisection, without which all others together do not fail.

    After so many trials, parts that still fail are not divided further.
    """
    left = trials

    def test(some: list[str]) -> bool:
        nonlocal left
        left -= 1
        return fails(some)

    def search(part: list[str], base: list[str]) -> list[str]:
        """The culprits in `part`, which fails together with `base`; `base` alone does not."""
        if len(part) == 1 or left <= 0:
            return part
        found: list[str] = []
        for half in (part[: len(part) // 2], part[len(part) // 2 :]):
            bad = search(half, base) if test(base + half) else []
            base = base + [name for name in half if name not in bad]
            found += bad
        return found

    return search(list(names), []) if names else []
