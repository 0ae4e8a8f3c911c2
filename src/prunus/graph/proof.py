"""Zeroing equals removing, proven: `prove` at the end of `trace`, `verify` at the end of `prune`.

`prove` carries out trial plans that remove channels of every unit, on labels and by running, and freezes what the
network cannot lose. `verify` runs the pruned and the zeroed network: they compute the same, or nothing is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from prunus.errors import PlanError
from prunus.graph.compare import (
    RANDOM,
    WITH_GRADIENTS,
    NotRun,
    Run,
    difference,
    error_text,
    in_mode,
    is_constant,
)
from prunus.graph.discover import tensors_behind
from prunus.graph.labels import Mismatch, present
from prunus.graph.replay import Slices, replay, replay_plan
from prunus.graph.surgery import carve, depthwise_filters, zeroed
from prunus.graph.traced import MIXING, is_depthwise, may_write_weights, named_modules
from prunus.graph.trials import Trial, check_recording, constants_varied, trials_for
from prunus.graph.units import Indices, Keep, Unit
from prunus.graph.watch import Inside
from prunus.util.state import module_state_kept, undisturbed

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
    with module_state_kept(model, weights=graph.analysis.traced.writes_weights), constants_varied(model):
        attempt = _Attempt.at(graph, _trial_plan(graph))
        with zeroed(graph, attempt.keep):  # the first run of the zeroed network also shows on which images it runs
            trials, run = trials_for(graph.analysis.traced, graph.example, attempt.inside)
            check_recording(graph.analysis.traced, graph.example, trials[0].drawn(), run)
        reasons = _culprits_by_running(attempt, trials, run)
        while reasons:
            graph = graph.without(reasons)
            reasons = _culprits_by_running(_Attempt.at(graph, _trial_plan(graph)), trials) if graph.units else {}
    graph.trials = [trial for trial in trials if trial.inputs]
    return graph


def prove_branches(graph: ChannelGraph) -> None:
    """Remove all branches that can vanish, by a trial plan, and keep those without which the network computes something
    else. This is the proof of a few plans only, so that it is not a part of every `trace`."""
    model, keep = graph.model, dict.fromkeys(graph.branches, ())
    weights = graph.analysis.traced.writes_weights
    with undisturbed(model), module_state_kept(model, weights=weights), constants_varied(model):
        if keep and graph.trials and failure(graph, keep, graph.trials) is not None:
            graph.keep_branches(_culprits_of(graph, keep, graph.trials))


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


def _trial_plan(graph: ChannelGraph) -> Keep:
    """About a quarter of some units and three eighths of others, aligned in some and staggered in others."""
    plan: dict[str, list[int]] = {}
    for i, (name, unit) in enumerate(graph.units.items()):
        size = unit.width // unit.granule
        kept = max(min(2, size - 1), size * (2 + i % 2) // 8)
        plan[name] = _kept(unit, i // 2 % 2, size - kept)
    return graph.balance(plan)


def _culprits_by_running(attempt: _Attempt, trials: Sequence[Trial], run: Run | None = None) -> dict[str, str]:
    """Units that must not lose channels -> why, found by one trial plan and by parts of it. `run` is that of the zeroed
    network in the first trial, if there was one."""
    graph, keep, what = attempt.graph, attempt.keep, attempt.failure(trials, run)
    if what is None or what == RANDOM:  # `prune` compares again, on the plan itself
        return {}
    reasons = {}
    for name in _culprits_of(graph, keep, trials):
        reasons[name] = "with fewer channels of it and of others the network computes something else"
        for trial in trials:
            what = failure(graph, {name: keep[name]}, [trial])
            if what is not None:
                reasons[name] = f"with fewer channels the network computes something else{_when(trial)}: {what}"
                break
    return reasons


def _culprits_of(graph: ChannelGraph, keep: Keep, trials: Sequence[Trial]) -> list[str]:
    """The units of a plan that fails without which it does not fail."""
    return culprits(list(keep), lambda names: failure(graph, {n: keep[n] for n in names}, trials) is not None)


def _when(trial: Trial) -> str:
    given = f" with {trial.given}" if trial.given else ""
    return " in training mode, with gradients" if "training" in trial.mode else given


# -- the check at the end of `prune`


def verify(graph: ChannelGraph, keep: Keep, slices: Slices, pruned: nn.Module) -> None:
    """Raise PlanError unless `pruned` computes what the zeroed network computes.

    Both run on the example in eval mode, on random inputs of its shape with gradients, in the mode of the model if that
    is another one, and in the trials in which `trace` ran it: in training mode, on other sizes. Both are left as they
    were.
    """
    trials = [] if is_constant(graph.example) else [Trial("eval", [graph.example], as_it_is=True)]
    drawn = Trial("eval" + WITH_GRADIENTS if trials else "eval", [graph.example])
    trials += [drawn, *graph.trials[1:]]
    if any(module.training for _, module in named_modules(graph.model)):
        trials.append(Trial("own" + WITH_GRADIENTS, [drawn.drawn()], as_it_is=True))
    storages = [tensor.untyped_storage() for tensor in (*graph.model.parameters(), *graph.model.buffers())]
    memory = {storage.data_ptr(): storage for storage in storages if storage.data_ptr()}  # held, or it is used again

    def is_own(tensor: Tensor) -> bool:
        return tensor.layout == torch.strided and tensor.untyped_storage().data_ptr() in memory

    # Also what hooks of the copy write to the model.
    with module_state_kept(graph.model, pruned, weights=may_write_weights(graph.model)):
        failing = _first_failing(graph, keep, pruned, trials, _inside(graph, slices, is_own))
        if failing is None:
            return
        trial, what = failing
        cut = {name: kept for name, kept in keep.items() if len(kept) < graph.units[name].width}
        units = [] if what == RANDOM else _culprits_of(graph, cut, [trial])
    excluded = f" of {' and '.join(repr(name) for name in units[:3])}" if units else ""
    in_training = " in training mode" if trial.mode.startswith("own") and graph.model.training else _when(trial)
    raise PlanError(
        f"the pruned {type(graph.model).__name__} does not compute what the zeroed network computes{in_training}: "
        f"{what}. Keep all channels{excluded}; or pass check=False if this is known and wanted."
    )


def failure(graph: ChannelGraph, keep: Keep, trials: Sequence[Trial]) -> str | None:
    """What goes wrong if the network is pruned to `keep` and run in these trials, in words; None if nothing does."""
    return _Attempt.at(graph, keep).failure(trials)


@dataclass(frozen=True)
class _Attempt:
    """A plan carried out on a copy that shares weights, with what to compare inside; or why it could not be."""

    graph: ChannelGraph
    keep: Keep
    pruned: nn.Module | None = None
    inside: Inside | None = None
    why: str | None = None

    @classmethod
    def at(cls, graph: ChannelGraph, keep: Keep) -> _Attempt:
        """Prune to `keep`."""
        try:
            record, slices = replay_plan(graph, keep)
            pruned = carve(graph, record, slices, share=True)
        except Exception as error:  # noqa: BLE001  a plan that cannot be carried out fails, for whatever reason
            return cls(graph, keep, why=str(error) if isinstance(error, PlanError) else error_text(error))
        own = {id(tensor) for tensor in (*graph.model.parameters(), *graph.model.buffers())}
        return cls(graph, keep, pruned, _inside(graph, slices, lambda tensor: id(tensor) in own))

    def failure(self, trials: Sequence[Trial], run: Run | None = None) -> str | None:
        """What goes wrong in these trials. `run` is that of the zeroed network in the first one, if there was one."""
        if self.pruned is None or self.inside is None:
            return self.why
        failing = _first_failing(self.graph, self.keep, self.pruned, trials, self.inside, run)
        return None if failing is None else failing[1]


def _inside(graph: ChannelGraph, slices: Slices, foreign: Callable[[Tensor], bool]) -> Inside:
    """What is compared inside of the pruned and the zeroed network."""
    kept: dict[str, tuple[Indices | None, Indices | None]] = {}
    gone = {name for branch in slices.removed for name in branch.modules}
    for name, layer in graph.analysis.traced.modules.items():
        if name in gone:
            continue
        if name in slices.mixing:
            kept[name] = slices.mixing[name]
        elif name in slices.passing and is_depthwise(layer):
            channels = slices.passing[name][0]
            kept[name] = channels, depthwise_filters(layer, channels)
        elif isinstance(layer, MIXING):
            kept[name] = None, None
    calls = [node for node in graph.analysis.traced.graph.nodes if node.op.startswith("call")]
    unused = [node for node in calls if node.op == "call_module" and not node.users]  # as the average of heads
    nodes = [*unused, *filter(graph.analysis.find_rule.is_users, calls)]
    own_affair = {str(node.target) for node in nodes if node.op == "call_module"} | graph.analysis.record.norms.keys()
    # Inside of a removed branch, functions have other results; it is the layers behind it that are compared.
    functions = not gone and all(node.op == "call_module" for node in nodes)
    return Inside(kept, foreign, own_affair - gone, functions=functions)


def _first_failing(
    graph: ChannelGraph,
    keep: Keep,
    pruned: nn.Module,
    trials: Sequence[Trial],
    inside: Inside,
    run: Run | None = None,
) -> tuple[Trial, str] | None:
    """The first trial in which the pruned network and the zeroed one differ, and how, in words.

    In training mode, networks that depend on random numbers cannot be compared. `run` is that of the zeroed network in
    the first trial, if there was one.
    """
    with zeroed(graph, keep):
        for trial in trials:
            what: str | None = None
            while trial.inputs:
                inputs = trial.drawn()
                with in_mode(graph.model, trial.mode), ExitStack() as modes:
                    try:
                        modes.enter_context(in_mode(pruned, trial.mode))
                        what = difference(pruned, graph.model, inputs, inside, want=run)
                        break
                    except NotRun as error:
                        what = f"it cannot be compared, because the network fails with {error}"
                    except Exception as error:  # noqa: BLE001  a `train` of the model's own may work on its weights
                        what = f"it fails with {error_text(error)}"
                        break
                trial.next()
            run = None
            if not trial.inputs and (trial.mode != "eval" or trial is not trials[0]):
                what = None
            if what == RANDOM and "training" in trial.mode:
                what = None
            if what is not None:
                return trial, what
    return None


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
