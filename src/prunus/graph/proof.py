"""Zeroing equals removing, proven: `prove` at the end of `trace`, `verify` at the end of `prune`.

`prove` carries out trial plans that remove channels of every unit, on labels and by running, and freezes what the
network cannot lose. `verify` runs the pruned and the zeroed network: they compute the same, or nothing is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
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
from prunus.graph.discover import tensors_behind
from prunus.graph.labels import Mismatch, present
from prunus.graph.layer_surgery import depthwise_filters
from prunus.graph.replay import Slices, replay, replay_plan
from prunus.graph.surgery import carve, zeroed
from prunus.graph.traced import Example, channel_dim, is_depthwise, named_modules
from prunus.graph.trials import Trial, check_recording, constants_varied, may_write_weights, trials_for
from prunus.graph.units import Indices, Keep, Unit
from prunus.util.state import generators_kept, module_state_kept

if TYPE_CHECKING:
    from prunus.graph.channel_graph import ChannelGraph


def prove(graph: ChannelGraph, *, by_running: bool = True) -> ChannelGraph:
    """The graph in which all units can be pruned. Units for which a trial plan fails are frozen, with the reason.

    Args:
        graph: the units that the analysis gives.
        by_running: also run the pruned and the zeroed network, not only labels.
    """
    graph = _prove_on_labels(graph)
    if not graph.units or not by_running:
        return graph
    model = graph.model
    # Hooks of copies may write to the model, and so may code for training, which the trials run too.
    with module_state_kept(model, weights=may_write_weights(model)), constants_varied(model):
        trials = trials_for(model, graph.example)
        check_recording(graph.analysis.traced, next((t for t in trials if t.mode == "eval"), None), graph.example)
        while graph.units and (reasons := _culprits_by_running(graph, trials)):
            graph = graph.without(reasons)
    return graph


def _prove_on_labels(graph: ChannelGraph) -> ChannelGraph:
    for _ in range(1000):
        if not graph.units or not graph.analysis.depends_on_widths:
            return graph
        try:
            uneven = any(unit.granule > 1 for unit in graph.units.values())
            # Random halves too: shifts may agree where the blocks are few and small, chance does not.
            for stagger in (0, 1, None) if uneven else (0,):
                keep = {n: _kept(unit, stagger, unit.width // unit.granule // 2) for n, unit in graph.units.items()}
                replay(graph, graph.balance(keep))
        except Mismatch as error:
            reason = f"{error.where} does not work with fewer channels ({error})"
            graph = graph.without(dict.fromkeys(_units_at(graph, error), reason))
        else:
            return graph
    raise PlanError("the channels of this network cannot be told apart")  # pragma: no cover


def _kept(unit: Unit, stagger: int | None, dropped: int) -> list[int]:
    """Drop so many channels of each block: the first ones, which moves all others; with `stagger`, other ones in each
    block; with None, random ones."""
    kept, draw = [], np.random.default_rng(0)
    for block in range(unit.granule):
        inside = np.flatnonzero(unit.blocks == block)
        inside = draw.permutation(inside) if stagger is None else np.roll(inside, -stagger * block)
        kept += inside[dropped:].tolist()
    return sorted(kept)


def _units_at(graph: ChannelGraph, error: Mismatch) -> list[str]:
    """The units whose channels meet at the node where a replay failed, or as closely before it as possible."""
    for tensors in tensors_behind(error.node, graph.analysis.record.values):
        labels = np.concatenate([np.zeros(0, np.int64), *(present(tensor) for tensor in tensors)])
        channels = np.unique(graph.analysis.of_label[labels])
        units = [name for name in graph.units if np.isin(graph.grouped.channels[name], channels).any()]
        if units:
            return units
    return list(graph.units)


def _culprits_by_running(graph: ChannelGraph, trials: Sequence[Trial]) -> dict[str, str]:
    """Units that must not lose channels -> why, found by one trial plan and by parts of it."""
    plan: dict[str, list[int]] = {}
    for i, (name, unit) in enumerate(graph.units.items()):
        # About a quarter of some units and three eighths of others, aligned in some and staggered in others.
        size = unit.width // unit.granule
        kept = max(min(2, size - 1), size * (2 + i % 2) // 8)
        plan[name] = _kept(unit, i // 2 % 2, size - kept)
    keep: Keep = graph.balance(plan)
    what = failure(graph, keep, trials)
    if what is None or what == RANDOM:  # `prune` compares again, on the plan itself
        return {}

    def fails(names: Sequence[str]) -> bool:
        return failure(graph, {name: keep[name] for name in names}, trials) is not None

    return {name: _why(graph, {name: keep[name]}, trials) for name in culprits(list(keep), fails)}


def _why(graph: ChannelGraph, keep: Keep, trials: Sequence[Trial]) -> str:
    """Why a unit cannot lose channels, found by pruning it alone."""
    for trial in trials:
        what = failure(graph, keep, [trial])
        if what is not None:
            layer = _layer_that_differs(graph, keep, trial)
            when = f" {trial.mode}".replace(" eval", "").replace(" training", " in training mode")
            return f"with fewer channels the network computes something else{when}: {what}" + (
                f", first at {layer}" if layer else ""
            )
    return "with fewer channels of it and of others the network computes something else"


# -- the check at the end of `prune`


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
        failing = _first_failing(graph, keep, pruned, trials)
        if failing is not None:
            raise PlanError(_message(graph, keep, *failing))


def _message(graph: ChannelGraph, keep: Keep, trial: Trial, what: str) -> str:
    """What differs, the first layer at which it does, and the unit to exclude."""
    cut = [name for name, kept in keep.items() if len(kept) < graph.units[name].width]

    def fails(names: Sequence[str]) -> bool:
        return failure(graph, {name: keep[name] for name in names}, [trial]) is not None

    units = [] if what == RANDOM else culprits(cut, fails)
    layer = _layer_that_differs(graph, {name: keep[name] for name in units or cut}, trial)
    where = f", first at layer {layer!r}" if layer else ""
    advice = f"Keep all channels of {' and '.join(repr(name) for name in units[:3])}" if units else "Keep all channels"
    in_training = " in training mode" if trial.mode == "own" and graph.model.training else ""
    return (
        f"the pruned {type(graph.model).__name__} does not compute what the zeroed network computes{in_training}: "
        f"{what}{where}. {advice}; or pass check=False if this is known and wanted."
    )


def failure(graph: ChannelGraph, keep: Keep, trials: Sequence[Trial]) -> str | None:
    """What goes wrong if the network is pruned to `keep` and run in these trials, in words; None if nothing does."""
    try:
        pruned = carve(graph, *replay_plan(graph, keep), share=True)
    except Exception as error:  # noqa: BLE001  a plan that cannot be carried out fails, for whatever reason
        return str(error) if isinstance(error, PlanError) else said(error)
    failing = _first_failing(graph, keep, pruned, trials)
    return None if failing is None else failing[1]


def _first_failing(
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
                what = _difference_from_zeroed(graph.model, pruned, trial.inputs)
            if what is not None:
                return trial, what
    return None


def _difference_from_zeroed(whole: nn.Module, pruned: nn.Module, inputs: Example) -> str | None:
    """How the outputs differ, in words; None if they do not.

    In training mode, networks that do not run on these inputs or depend on random numbers cannot be compared.
    """
    try:
        try:
            what = difference(pruned, whole, few_images(inputs))
        except NotRun:
            what = difference(pruned, whole, inputs)
    except NotRun as error:
        return None if whole.training else f"it cannot be compared, because the network fails with {error}"
    return None if what == RANDOM and whole.training else what


def culprits(names: Sequence[str], fails: Callable[[Sequence[str]], bool], trials: int = 200) -> list[str]:
    """The fewest names, found by bisection, without which all others together do not fail.

    After so many trials, parts that still fail are not divided further.
    """
    left = trials

    def search(part: list[str], base: list[str]) -> list[str]:
        """The culprits in `part`, which fails together with `base`; `base` alone does not."""
        nonlocal left
        if len(part) == 1 or left <= 0:
            return part
        guilty: list[str] = []
        for half in (part[: len(part) // 2], part[len(part) // 2 :]):
            left -= 1
            bad = search(half, base) if fails(base + half) else []
            base = base + [name for name in half if name not in bad]
            guilty += bad
        return guilty

    return search(list(names), []) if names else []


# -- the first layer at which a pruned network and the zeroed one compute different values


class _Stop(Exception):
    """The search is over."""


def _layer_that_differs(graph: ChannelGraph, keep: Keep, trial: Trial) -> str | None:
    """The name of the first layer whose values differ, or in which the pruned network fails; None if no layer does."""
    inside: list[str] = []  # modules that are running
    differing: list[str] = []
    try:
        record, slices = replay_plan(graph, keep)
        whole, pruned = graph.model, carve(graph, record, slices, share=True)
        rounding = float(torch.finfo(precision_of(whole)).eps) ** 0.5
        with generators_kept(), in_mode(whole, trial.mode), in_mode(pruned, trial.mode), zeroed(graph, keep):
            expected: list[tuple[str, Any]] = []

            def note(name: str, output: Any) -> None:
                expected.append((name, _part_kept(whole, slices, name, output)))

            def compare(name: str, got: Any) -> None:
                other, want = expected.pop(0) if expected else ("", None)
                # Shapes may differ behind layers without weights, which are not cut.
                differs = other != name
                if isinstance(got, Tensor) and isinstance(want, Tensor) and got.shape == want.shape:
                    differs = differs or not tensor_distance(got, want) <= rounding
                if differs:
                    differing.append(name)
                    raise _Stop

            with _tapped(whole, note, []):
                outputs_of(whole, trial.inputs)
            try:
                with _tapped(pruned, compare, inside):
                    outputs_of(pruned, trial.inputs)
            except _Stop:
                return differing[0]
            except Exception:  # noqa: BLE001  whatever the model's own code raises
                return inside[-1] if inside else None
    except Exception:  # noqa: BLE001  the layer is only named to help
        return None
    return None


@contextmanager
def _tapped(model: nn.Module, seen: Callable[[str, Any], None], inside: list[str]) -> Iterator[None]:
    """Call `seen` with the name and the output of each layer after it ran. `inside` lists modules that are running."""
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


def _part_kept(whole: nn.Module, slices: Slices, name: str, output: Any) -> Any:
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
    return output.index_select(channel_dim(layer, output), torch.from_numpy(index).to(output.device))
