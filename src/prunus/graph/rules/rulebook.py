"""The rulebook: which operation of PyTorch follows which rule, the rule for each call of a network, and user-provided
rules. An operation that is not listed is unknown: its channels are kept."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from prunus.errors import TraceError
from prunus.graph.labels import Call, Rule
from prunus.graph.multihead import HeadAverage
from prunus.graph.norms import Mean
from prunus.graph.rules import attention, layers, pointwise, reshaping
from prunus.graph.traced import CONVOLUTIONS, Traced, is_depthwise, with_part
from prunus.graph.traced import FUNCTIONS as LAYER_FUNCTIONS

# -- layers, by class

_ELEMENTWISE_LAYERS = """
    ReLU ReLU6 LeakyReLU RReLU ELU SELU CELU GELU SiLU Mish Hardswish Hardsigmoid Hardtanh Hardshrink Softshrink
    Softplus Softsign Sigmoid LogSigmoid Tanh Tanhshrink Threshold Identity
    Dropout Dropout1d Dropout2d Dropout3d AlphaDropout FeatureAlphaDropout
"""
_SPATIAL_LAYERS = {
    1: "MaxPool1d AvgPool1d LPPool1d AdaptiveAvgPool1d AdaptiveMaxPool1d ZeroPad1d ConstantPad1d ReflectionPad1d "
    "ReplicationPad1d CircularPad1d MaxUnpool1d",
    2: "MaxPool2d AvgPool2d LPPool2d FractionalMaxPool2d AdaptiveAvgPool2d AdaptiveMaxPool2d ZeroPad2d ConstantPad2d "
    "ReflectionPad2d ReplicationPad2d CircularPad2d MaxUnpool2d UpsamplingNearest2d UpsamplingBilinear2d",
    3: "MaxPool3d AvgPool3d LPPool3d FractionalMaxPool3d AdaptiveAvgPool3d AdaptiveMaxPool3d ZeroPad3d ConstantPad3d "
    "ReflectionPad3d ReplicationPad3d CircularPad3d MaxUnpool3d",
    0: "Upsample",
}
_NORMS_OVER_CHANNELS = "LayerNorm RMSNorm LocalResponseNorm CrossMapLRN2d Softmax2d"


def _layer_table() -> dict[type, Rule]:
    table: dict[type, Rule] = dict.fromkeys(CONVOLUTIONS, layers.convolution)
    table |= {
        nn.Linear: layers.linear,
        nn.PReLU: layers.prelu,
        nn.SyncBatchNorm: layers.channelwise,
        nn.GroupNorm: layers.group_norm,
        nn.PixelShuffle: layers.pixel_shuffle,
        nn.PixelUnshuffle: layers.pixel_unshuffle,
        nn.ChannelShuffle: layers.channel_shuffle,
        nn.Unfold: layers.unfold,
        nn.Fold: layers.fold,
        nn.Flatten: reshaping.structural,
        nn.Unflatten: reshaping.unflatten,
        nn.GLU: reshaping.glu,
        nn.Softmax: pointwise.softmax,
        nn.LogSoftmax: pointwise.softmax,
        HeadAverage: attention.average_of_heads,
        Mean: pointwise.mean,
    }
    for k in (1, 2, 3):
        table |= {getattr(nn, f"BatchNorm{k}d"): layers.channelwise}
        table |= {getattr(nn, f"InstanceNorm{k}d"): layers.instance_norm}
    named: dict[str, Rule] = {
        _ELEMENTWISE_LAYERS: pointwise.elementwise,
        _NORMS_OVER_CHANNELS: layers.norm_over_channels,
    }
    named |= {names: layers.spatial(dims) for dims, names in _SPATIAL_LAYERS.items()}
    for names, rule in named.items():  # not every version of torch has all of them
        table |= {getattr(nn, name): rule for name in names.split() if hasattr(nn, name)}
    return table


# -- functions and methods, by name

_NAMES: dict[str, Rule] = {
    name: rule
    for names, rule in {
        """relu relu6 leaky_relu rrelu elu selu celu gelu silu mish hardswish hardsigmoid hardtanh hardshrink softshrink
        softplus softsign sigmoid logsigmoid tanh tanhshrink threshold dropout dropout1d dropout2d dropout3d
        alpha_dropout feature_alpha_dropout abs neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square reciprocal sin
        cos tan asin acos atan sinh cosh asinh acosh atanh erf erfc erfinv sinc lgamma digamma floor ceil round trunc
        frac sign sgn logit deg2rad rad2deg isnan isinf isfinite signbit clamp clip clamp_min clamp_max nan_to_num pos
        positive zeros_like ones_like full_like""": pointwise.elementwise,
        """mul multiply imul div divide true_divide truediv itruediv floordiv floor_divide pow ipow mod remainder fmod
        maximum minimum fmax fmin where masked_fill lerp eq ne lt le gt ge logical_and logical_or logical_not
        logical_xor and_ or_ xor addcmul addcdiv atan2 hypot copysign float_power logaddexp logaddexp2 xlogy heaviside
        isclose bitwise_and bitwise_or bitwise_xor bitwise_not""": pointwise.combine,
        "add iadd sub subtract isub rsub": pointwise.add,
        "mean": pointwise.mean,
        """sum amax amin logsumexp std var var_mean std_mean nanmean nansum prod argmax argmin any all median
        nanmedian count_nonzero""": pointwise.reduce,
        "sort argsort cummax cummin logcumsumexp": pointwise.along_axis(1),
        "topk diff": pointwise.along_axis(2),
        "max min": pointwise.extreme,
        "norm": pointwise.norm,
        "normalize": pointwise.normalize,
        "softmax log_softmax cumsum cumprod": pointwise.softmax,
        """contiguous clone detach to float double half bfloat16 type type_as cpu cuda requires_grad int long
        bool""": pointwise.same,
        "size dim ndimension numel is_floating_point": pointwise.execute,
        "new_zeros new_ones new_full": pointwise.compute,
        "_assert": pointwise.nothing,
        "batch_norm instance_norm prelu": layers.batch_norm_function,
        "layer_norm rms_norm group_norm local_response_norm": layers.norm_over_channels,
        "pixel_shuffle": layers.pixel_shuffle,
        "pixel_unshuffle": layers.pixel_unshuffle,
        "channel_shuffle": layers.channel_shuffle,
        "grid_sample": layers.grid_sample,
        "affine_grid": layers.affine_grid,
        "interpolate upsample": layers.spatial(0),
        "max_pool1d max_pool1d_with_indices max_unpool1d avg_pool1d lp_pool1d adaptive_avg_pool1d "
        "adaptive_max_pool1d adaptive_max_pool1d_with_indices": layers.spatial(1),
        "max_pool2d max_pool2d_with_indices max_unpool2d avg_pool2d lp_pool2d adaptive_avg_pool2d "
        "adaptive_max_pool2d adaptive_max_pool2d_with_indices": layers.spatial(2),
        "max_pool3d max_pool3d_with_indices max_unpool3d avg_pool3d lp_pool3d adaptive_avg_pool3d "
        "adaptive_max_pool3d adaptive_max_pool3d_with_indices": layers.spatial(3),
        """flatten permute transpose swapaxes swapdims movedim moveaxis unsqueeze squeeze flip t expand_as ravel numpy_T
        adjoint rot90 fliplr flipud""": reshaping.structural,
        "cat concat concatenate hstack vstack dstack": reshaping.concatenate,
        "stack": reshaping.stack,
        "repeat tile": reshaping.repeat,
        "pad": reshaping.pad,
        "expand": reshaping.expand,
        "repeat_interleave": reshaping.repeat_interleave,
        "view reshape view_as reshape_as": reshaping.reshape,
        "unflatten": reshaping.unflatten,
        "getitem": reshaping.take,
        "chunk tensor_split": reshaping.chunk,
        "split": reshaping.split,
        "narrow": reshaping.narrow,
        "select": reshaping.select,
        "index_select": reshaping.index_select,
        "unbind": reshaping.unbind,
        "matmul bmm __matmul__": attention.matmul,
        "einsum": attention.einsum,
        "scaled_dot_product_attention": attention.scaled_dot_product_attention,
        "roll": reshaping.roll,
        "glu": reshaping.glu,
    }.items()
    for name in names.split()
}


def _function_table() -> dict[Any, Rule]:
    """By the function object itself, so that a user's function called `add` is not mistaken for torch's."""
    table: dict[Any, Rule] = {}
    for name, rule in _NAMES.items():
        for variant in (name, f"{name}_"):
            for space in (torch, F, operator, torch.special):
                function = getattr(space, variant, None)
                if callable(function):
                    table[function] = rule
    # Pooling of torch.nn.functional dispatches on return_indices; the plain variants are other objects.
    for k in (1, 2, 3):
        for name in (f"_max_pool{k}d", f"_adaptive_max_pool{k}d"):
            if hasattr(F, name):
                table[getattr(F, name)] = layers.spatial(k)
    table |= dict.fromkeys(LAYER_FUNCTIONS, layers.functional_layer)
    table |= {getattr: pointwise.execute, with_part: reshaping.assign}
    table |= {F.pad: reshaping.pad, F.unfold: layers.unfold, F.fold: layers.fold}
    table |= {torch.linalg.vector_norm: pointwise.norm, torch.linalg.norm: pointwise.norm}
    for function in (len, int, float, bool, max, min, math.ceil, math.floor, math.sqrt, round, abs, isinstance):
        table[function] = pointwise.compute
    return table


LAYERS = _layer_table()
FUNCTIONS = _function_table()
METHODS = _NAMES | {f"{name}_": rule for name, rule in _NAMES.items()} | {"unfold": reshaping.windows}
_USER_RULES: dict[Any, Rule] = {}  # class, function or method name -> rule


def register_rule(target: type[nn.Module] | Callable[..., Any] | str, rule: Rule) -> None:
    """Tell prunus what one of your operations or layers does to channels. It holds for the whole process.

        prunus.register_rule(MySwish, prunus.rules.elementwise)

    docs/rules.md has more examples.

    Args:
        target: a module class (its forward is then not followed), a function (wrap it with `torch.fx.wrap` so that
            traces record it) or the name of a tensor method.
        rule: one of `prunus.rules`, or a function of a `Call` that returns label tensors.

    Raises:
        TraceError: one of the arguments is something else.
    """
    if isinstance(target, nn.Module):
        name = type(target).__name__
        raise TraceError(f"a rule is for all layers of a class: pass the class {name}, not an instance of it")
    if not callable(rule) or not (isinstance(target, str) or callable(target)):
        raise TraceError(
            "expected register_rule(target, rule): a class, a function or the name of a tensor method, and one of "
            f"prunus.rules or a function; got {target!r} and {rule!r}"
        )
    _USER_RULES[target] = rule


def base_layer(module: nn.Module) -> type | None:
    """The first class with a rule among the class of `module` and its bases."""
    for kind in type(module).__mro__:  # not a generator: this is asked several times for each call of a network
        if kind in _USER_RULES or kind in LAYERS:
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
    compensates: bool = False  # whether norms over channels may lose some
    dims: bool = False  # whether attention loses dimensions of all heads, and not heads

    def __call__(self, node: fx.Node) -> Rule:
        """The rule for a node: a user-provided one first, then the one of the tables, else `unknown`."""
        target = node.target
        layer = self.traced.layer_of(node)
        if layer is not None and layer in self.opaque:
            return kept_because(self.opaque[layer])
        if node.op == "call_module":
            base = base_layer(self.traced.module(node))
            return pointwise.unknown if base is None else _USER_RULES.get(base) or LAYERS.get(base, pointwise.unknown)
        if target in _USER_RULES:
            return _USER_RULES[target]
        rule = METHODS.get(str(target)) if node.op == "call_method" else FUNCTIONS.get(target)
        if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):  # torch.ops.aten.relu.default
            space, name = str(target).split(".")[:2]
            rule = METHODS.get(name) if space == "aten" else None
        if rule is None and node.name in self.traced.identities:
            return pointwise.handed_on  # no rule, but eval mode returns the argument unchanged (stochastic depth)
        return rule or pointwise.unknown

    def is_users(self, node: fx.Node) -> bool:
        """Whether the rule for a node is a user-provided one."""
        return (base_layer(self.traced.module(node)) if node.op == "call_module" else node.target) in _USER_RULES


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
