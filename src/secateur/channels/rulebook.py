"""Which operation follows which rule. What is not listed here is unknown, and its channels stay."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from secateur.channels import reshape_rules, rules
from secateur.channels.label_pass import LabelPass
from secateur.channels.rule_call import Call, Rule
from secateur.channels.rules import CONVOLUTIONS, is_depthwise

# --------------------------------------------------------------------------------------------- layers, by class

_ELEMENTWISE_LAYERS = """
    ReLU ReLU6 LeakyReLU RReLU ELU SELU CELU GELU SiLU Mish Hardswish Hardsigmoid Hardtanh Hardshrink Softshrink
    Softplus Softsign Sigmoid LogSigmoid Tanh Tanhshrink Threshold Identity
    Dropout Dropout1d Dropout2d Dropout3d AlphaDropout FeatureAlphaDropout
"""
_SPATIAL_LAYERS = {
    1: "MaxPool1d AvgPool1d LPPool1d AdaptiveAvgPool1d AdaptiveMaxPool1d ZeroPad1d ConstantPad1d ReflectionPad1d "
    "ReplicationPad1d CircularPad1d",
    2: "MaxPool2d AvgPool2d LPPool2d FractionalMaxPool2d AdaptiveAvgPool2d AdaptiveMaxPool2d ZeroPad2d ConstantPad2d "
    "ReflectionPad2d ReplicationPad2d CircularPad2d UpsamplingNearest2d UpsamplingBilinear2d",
    3: "MaxPool3d AvgPool3d LPPool3d FractionalMaxPool3d AdaptiveAvgPool3d AdaptiveMaxPool3d ZeroPad3d ConstantPad3d "
    "ReflectionPad3d ReplicationPad3d CircularPad3d",
    0: "Upsample",
}
_NORMS_OVER_CHANNELS = "LayerNorm GroupNorm RMSNorm LocalResponseNorm CrossMapLRN2d"


def _layers() -> dict[type, Rule]:
    table: dict[type, Rule] = dict.fromkeys(CONVOLUTIONS, rules.convolution)
    table |= {nn.Linear: rules.linear, nn.PReLU: rules.prelu}
    table |= {getattr(nn, f"BatchNorm{k}d"): rules.channelwise for k in (1, 2, 3)}
    table |= {nn.SyncBatchNorm: rules.channelwise}
    table |= {getattr(nn, f"InstanceNorm{k}d"): rules.instance_norm for k in (1, 2, 3)}
    table |= {getattr(nn, name): rules.elementwise for name in _ELEMENTWISE_LAYERS.split()}
    table |= {getattr(nn, n): rules.norm_over_channels for n in _NORMS_OVER_CHANNELS.split() if hasattr(nn, n)}
    for dims, names in _SPATIAL_LAYERS.items():
        table |= {getattr(nn, name): rules.spatial(dims) for name in names.split() if hasattr(nn, name)}
    table |= {nn.Flatten: reshape_rules.structural, nn.Softmax: rules.softmax, nn.LogSoftmax: rules.softmax}
    table |= {nn.Softmax2d: rules.norm_over_channels}
    return table


# --------------------------------------------------------------------------------------------- functions and methods

_ELEMENTWISE = """
    relu relu6 leaky_relu rrelu elu selu celu gelu silu mish hardswish hardsigmoid hardtanh hardshrink softshrink
    softplus softsign sigmoid logsigmoid tanh tanhshrink threshold dropout dropout1d dropout2d dropout3d alpha_dropout
    feature_alpha_dropout abs neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square reciprocal sin cos erf floor
    ceil round sign clamp clip clamp_min clamp_max nan_to_num pos positive
"""
_COMBINE = """
    mul multiply imul div divide true_divide truediv itruediv floordiv floor_divide pow ipow mod remainder fmod maximum
    minimum where lerp eq ne lt le gt ge logical_and logical_or logical_not and_ or_ addcmul atan2 hypot lt copysign
"""
_ADD = "add iadd sub subtract isub rsub"
_SAME = "contiguous clone detach to float double half bfloat16 type type_as cpu cuda requires_grad int long bool"
_REDUCE = "mean sum amax amin logsumexp std var nanmean nansum prod"
_STRUCTURAL = """
    flatten permute transpose swapaxes swapdims movedim moveaxis unsqueeze squeeze stack flip t expand_as
    ravel numpy_T adjoint
"""
_CUTS: dict[str, Rule] = {
    "cat": reshape_rules.concatenate,
    "concat": reshape_rules.concatenate,
    "concatenate": reshape_rules.concatenate,
    "pad": reshape_rules.pad,
    "getitem": reshape_rules.take,
    "chunk": reshape_rules.chunk,
    "tensor_split": reshape_rules.chunk,
    "split": reshape_rules.split,
    "unbind": reshape_rules.unbind,
    "roll": reshape_rules.roll,
    "expand": reshape_rules.expand,
    "repeat": reshape_rules.expand,
    "tile": reshape_rules.expand,
    "view": reshape_rules.reshape,
    "reshape": reshape_rules.reshape,
    "view_as": reshape_rules.reshape,
    "reshape_as": reshape_rules.reshape,
    "softmax": rules.softmax,
    "log_softmax": rules.softmax,
    "size": reshape_rules.size_of,
    "dim": reshape_rules.size_of,
    "ndimension": reshape_rules.size_of,
    "numel": reshape_rules.size_of,
    "is_floating_point": reshape_rules.size_of,
    "_assert": rules.nothing,
    "interpolate": rules.spatial(0),
    "upsample": rules.spatial(0),
}
_POOLS = "max_pool avg_pool lp_pool adaptive_avg_pool adaptive_max_pool"


def _names() -> dict[str, Rule]:
    table: dict[str, Rule] = {}
    for names, rule in (
        (_ELEMENTWISE, rules.elementwise),
        (_SAME, rules.same),
        (_COMBINE, rules.combine),
        (_ADD, rules.add),
        (_REDUCE, rules.reduce),
        (_STRUCTURAL, reshape_rules.structural),
    ):
        table |= dict.fromkeys(names.split(), rule)
    table |= {f"{pool}{k}d": rules.spatial(k) for pool in _POOLS.split() for k in (1, 2, 3)}
    return table | _CUTS


def _functions(names: dict[str, Rule]) -> dict[Any, Rule]:
    """By the function object itself, so that a user's function that is called `add` is not taken for torch's."""
    table: dict[Any, Rule] = {}
    for name, rule in names.items():
        for variant in (name, f"{name}_"):
            for space in (torch, F, operator, torch.special):
                function = getattr(space, variant, None)
                if callable(function):
                    table[function] = rule
    # Pooling of torch.nn.functional dispatches on return_indices; the plain variants are other objects.
    for k in (1, 2, 3):
        for name in ("max_pool", "adaptive_max_pool"):
            plain = getattr(F, f"_{name}{k}d", None)
            if plain is not None:
                table[plain] = rules.spatial(k)
    table[getattr] = reshape_rules.size_of
    table[torch.nn.functional.pad] = reshape_rules.pad
    for function in (len, int, float, bool, max, min, math.ceil, math.floor, math.sqrt, round, abs, isinstance):
        table[function] = reshape_rules.compute
    return table


_NAMES = _names()
LAYERS = _layers()
FUNCTIONS = _functions(_NAMES)
METHODS = _NAMES | {f"{name}_": rule for name, rule in _NAMES.items()}
_OWN: dict[Any, Rule] = {}  # what users registered: class, function or method name -> rule


def register_rule(target: type[nn.Module] | Callable[..., Any] | str, rule: Rule) -> None:
    """Tell secateur what an operation or layer of your own does to channels.

    `target` is a module class (then it is a leaf: its forward is not followed), a function (wrap it with
    `torch.fx.wrap` so that traces call it) or the name of a tensor method. `rule` is one of `secateur.rules` or a
    function of a `Call` that returns label tensors. The rule holds for the whole process.

        sc.register_rule(MySwish, sc.rules.elementwise)
    """
    _OWN[target] = rule


@contextmanager
def own_rules(table: dict[Any, Rule]) -> Iterator[None]:
    """Rules for a while, put back afterwards."""
    before = dict(_OWN)
    _OWN.update(table)
    try:
        yield
    finally:
        _OWN.clear()
        _OWN.update(before)


def base_layer(module: nn.Module) -> type | None:
    """The class in the rulebook that `module` is of, or derives from."""
    for kind in type(module).__mro__:
        if kind in _OWN or kind in LAYERS:
            return kind
    return None


def is_leaf(module: nn.Module) -> bool:
    """Traces stop at layers of the rulebook and at what they derive into."""
    return base_layer(module) is not None


def find_rule(labels: LabelPass, node: fx.Node) -> Rule:
    """The rule for a node: the user's own first, then the rulebook's, else `unknown`."""
    target = node.target
    if node.op == "call_module":
        name = str(target)
        if name in labels.opaque:
            return _opaque(labels.opaque[name])
        base = base_layer(labels.traced.module(node))
        return _OWN.get(base) or LAYERS.get(base, rules.unknown) if base is not None else rules.unknown
    if target in _OWN:
        return _OWN[target]
    rule = METHODS.get(str(target)) if node.op == "call_method" else FUNCTIONS.get(target)
    if rule is None and node.name in labels.traced.identities:
        return rules.handed_on  # without a rule, but eval mode hands its argument on as it is (stochastic depth)
    return rule or rules.unknown


def _opaque(reason: str) -> Rule:
    def rule(call: Call) -> Any:
        return call.unknown(reason)

    return rule


def is_pass_through(rule: Rule, module: nn.Module | None) -> bool:
    """Whether channels go through one by one, so that a selection behind the operation may as well stand before it."""
    if rule in (rules.elementwise, rules.channelwise, rules.prelu, rules.instance_norm):
        return True
    if module is not None and is_depthwise(module):
        return True
    return getattr(rule, "__qualname__", "").startswith("spatial.")


def parameters_are_plain(module: nn.Module) -> bool:
    """Whether weight and bias are parameters of the module itself, not computed (weight norm, parametrisations)."""
    if hasattr(module, "parametrizations"):
        return False
    return all(
        isinstance(module._parameters.get(name), Tensor) or getattr(module, name, None) is None
        for name in ("weight", "bias")
    )
