"""The rulebook: find the rule for each call of a network, and register rules for your own operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from prunus.errors import TraceError
from prunus.graph.labels import Call, Rule
from prunus.graph.rules import layers, pointwise, running
from prunus.graph.rules.tables import FUNCTIONS, LAYERS, METHODS
from prunus.graph.traced import Traced, is_depthwise

_OWN: dict[Any, Rule] = {}  # registered by users: class, function or method name -> rule


def register_rule(target: type[nn.Module] | Callable[..., Any] | str, rule: Rule) -> None:
    """Tell prunus what one of your own operations or layers does to channels.

    target: a module class (its forward is then not followed), a function (wrap it with `torch.fx.wrap` so that traces
        record it) or the name of a tensor method.
    rule: one of `prunus.rules`, or a function of a `Call` that returns label tensors. It holds for the whole process.

        sc.register_rule(MySwish, sc.rules.elementwise)

    docs/rules.md has more examples.
    """
    if isinstance(target, nn.Module):
        name = type(target).__name__
        raise TraceError(f"a rule is for all layers of a class: pass the class {name}, not an instance of it")
    if not callable(rule) or not (isinstance(target, str) or callable(target)):
        raise TraceError(
            "expected register_rule(target, rule): a class, a function or the name of a tensor method, and one of "
            f"prunus.rules or a function; got {target!r} and {rule!r}"
        )
    _OWN[target] = rule


def base_layer(module: nn.Module) -> type | None:
    """The first class with a rule among the class of `module` and its bases."""
    for kind in type(module).__mro__:
        if kind in _OWN or kind in LAYERS:
            return kind
    return None


def is_leaf(module: nn.Module) -> bool:
    """Whether traces record a module as one call: its class, or a base of it, has a rule."""
    return base_layer(module) is not None


@dataclass(frozen=True)
class RuleFinder:
    """Finds the rule of each node of a traced network."""

    traced: Traced
    opaque: Mapping[str, str]  # modules and parameters that must not be cut -> reason
    reading_all: frozenset[str] = frozenset()  # layers that may lose outputs, but keep all of their inputs

    def __call__(self, node: fx.Node) -> Rule:
        """The rule for a node: the user's own first, then the one of the tables, else `unknown`."""
        target = node.target
        layer = self.traced.layer_of(node)
        if layer is not None and layer in self.opaque:
            return kept_because(self.opaque[layer])
        if node.op == "call_module":
            base = base_layer(self.traced.module(node))
            return running.unknown if base is None else _OWN.get(base) or LAYERS.get(base, running.unknown)
        if target in _OWN:
            return _OWN[target]
        rule = METHODS.get(str(target)) if node.op == "call_method" else FUNCTIONS.get(target)
        if rule is None and node.name in self.traced.identities:
            return running.handed_on  # no rule, but eval mode returns the argument unchanged (stochastic depth)
        return rule or running.unknown


def kept_because(reason: str) -> Rule:
    """A rule that keeps all channels, with a reason."""

    def rule(call: Call) -> Any:
        return call.unknown(reason)

    return rule


def is_pass_through(rule: Rule, module: nn.Module | None) -> bool:
    """Whether channels pass one by one, so that a selection after the operation can be moved in front of it."""
    if rule in (pointwise.elementwise, layers.channelwise, layers.prelu, layers.instance_norm):
        return True
    if module is not None and is_depthwise(module):
        return True
    return getattr(rule, "__qualname__", "").startswith("spatial.")
