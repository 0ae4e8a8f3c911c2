"""The plan that a pruned model was cut by. The model remembers it, outside its state_dict, and `save` checks it."""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from secateur.channels.plan import Plan
from secateur.errors import PlanError

MEMORY = "_secateur_plans"  # an attribute of the model; copies of the model have it too


def remember_plan(pruned: nn.Module, original: nn.Module, plan: object) -> None:
    """Note that `plan` gave `pruned` from `original`, which may have been pruned before."""
    if not isinstance(plan, Plan):
        pruned.__dict__.pop(MEMORY, None)
        return
    plans = [plan]
    for old in plans_of(original):
        try:
            plans.append(old.then(plan))
        except PlanError:  # other streams or units: no single plan leads here from that network
            continue
    pruned.__dict__[MEMORY] = tuple(plans)


def plans_of(model: nn.Module) -> tuple[Plan, ...]:
    """The plans that lead to a model: from the original network, and from each network in between."""
    return tuple(model.__dict__.get(MEMORY, ()))


def same_origin(model: nn.Module, other: nn.Module) -> None:
    """Note that `model` was cut by the same plans as `other`."""
    if not plans_of(model) and plans_of(other):
        model.__dict__[MEMORY] = plans_of(other)


def check_origin(model: Any, plan: Any) -> None:
    """PlanError unless `plan` leads to this model."""
    if not isinstance(model, nn.Module) or not isinstance(plan, Plan):
        kinds = f"{type(model).__name__} and {type(plan).__name__}"
        raise PlanError(f"expected save(model, plan, folder) with a network and its plan, got {kinds}")
    known = plans_of(model)
    if any(old.fingerprint == plan.fingerprint and dict(old.keep) == dict(plan.keep) for old in known):
        return
    name = type(model).__name__
    if known:
        raise PlanError(
            f"the plan does not belong to this {name}: it was cut by a plan that keeps other channels. Save it with "
            "the plan that was given to secateur.prune (after several rounds: first.then(second))"
        )
    if any(plan.removed().values()) and not isinstance(model, fx.GraphModule):  # its copies forget attributes
        raise PlanError(
            f"the plan removes channels, and this {name} was not cut by secateur.prune: save what prune(graph, plan) "
            "returned, not the original network"
        )
