"""Which operation of PyTorch follows which rule. An operation that is not listed is unknown: its channels are kept."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from prunus.graph.labels import Rule
from prunus.graph.rules import cutting, layers, pointwise, regrouping, reshaping, running
from prunus.graph.traced import CONVOLUTIONS, with_part
from prunus.graph.traced import FUNCTIONS as LAYER_FUNCTIONS

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
_NORMS_OVER_CHANNELS = "LayerNorm RMSNorm LocalResponseNorm CrossMapLRN2d"


def _layers() -> dict[type, Rule]:
    table: dict[type, Rule] = dict.fromkeys(CONVOLUTIONS, layers.convolution)
    table |= {nn.Linear: layers.linear, nn.PReLU: layers.prelu}
    table |= {getattr(nn, f"BatchNorm{k}d"): layers.channelwise for k in (1, 2, 3)}
    table |= {nn.SyncBatchNorm: layers.channelwise}
    table |= {getattr(nn, f"InstanceNorm{k}d"): layers.instance_norm for k in (1, 2, 3)}
    table |= {getattr(nn, name): pointwise.elementwise for name in _ELEMENTWISE_LAYERS.split()}
    table |= {getattr(nn, n): layers.norm_over_channels for n in _NORMS_OVER_CHANNELS.split() if hasattr(nn, n)}
    for dims, names in _SPATIAL_LAYERS.items():
        table |= {getattr(nn, name): layers.spatial(dims) for name in names.split() if hasattr(nn, name)}
    table |= {nn.Flatten: reshaping.structural, nn.Softmax: pointwise.softmax, nn.LogSoftmax: pointwise.softmax}
    table |= {nn.Softmax2d: layers.norm_over_channels, nn.GroupNorm: regrouping.group_norm}
    table |= {nn.PixelShuffle: regrouping.pixel_shuffle, nn.PixelUnshuffle: regrouping.pixel_unshuffle}
    table |= {nn.ChannelShuffle: regrouping.channel_shuffle, nn.GLU: cutting.glu, nn.Unflatten: reshaping.unflatten}
    table |= {nn.Unfold: regrouping.unfold, nn.Fold: regrouping.fold}
    return table


# --------------------------------------------------------------------------------------------- functions and methods

_ELEMENTWISE = """
    relu relu6 leaky_relu rrelu elu selu celu gelu silu mish hardswish hardsigmoid hardtanh hardshrink softshrink
    softplus softsign sigmoid logsigmoid tanh tanhshrink threshold dropout dropout1d dropout2d dropout3d alpha_dropout
    feature_alpha_dropout abs neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square reciprocal sin cos erf floor
    ceil round sign clamp clip clamp_min clamp_max nan_to_num pos positive zeros_like ones_like full_like
"""
_COMBINE = """
    mul multiply imul div divide true_divide truediv itruediv floordiv floor_divide pow ipow mod remainder fmod maximum
    minimum where masked_fill lerp eq ne lt le gt ge logical_and logical_or logical_not and_ or_ addcmul atan2 hypot
    copysign
"""
_ADD = "add iadd sub subtract isub rsub"
_SAME = "contiguous clone detach to float double half bfloat16 type type_as cpu cuda requires_grad int long bool"
_REDUCE = "mean sum amax amin logsumexp std var nanmean nansum prod argmax argmin any all count_nonzero"
_STRUCTURAL = """
    flatten permute transpose swapaxes swapdims movedim moveaxis unsqueeze squeeze flip t expand_as
    ravel numpy_T adjoint repeat tile
"""
_CUTS: dict[str, Rule] = {
    "cat": reshaping.concatenate,
    "concat": reshaping.concatenate,
    "concatenate": reshaping.concatenate,
    "stack": reshaping.stack,
    "pad": reshaping.pad,
    "getitem": cutting.take,
    "chunk": cutting.chunk,
    "tensor_split": cutting.chunk,
    "split": cutting.split,
    "unbind": cutting.unbind,
    "roll": cutting.roll,
    "expand": reshaping.expand,
    "repeat_interleave": reshaping.repeat_interleave,
    "unflatten": reshaping.unflatten,
    "narrow": cutting.narrow,
    "glu": cutting.glu,
    "view": reshaping.reshape,
    "reshape": reshaping.reshape,
    "view_as": reshaping.reshape,
    "reshape_as": reshaping.reshape,
    "softmax": pointwise.softmax,
    "log_softmax": pointwise.softmax,
    "cumsum": pointwise.softmax,
    "cumprod": pointwise.softmax,
    "normalize": pointwise.normalize,
    "norm": pointwise.norm,
    "grid_sample": regrouping.grid_sample,
    "affine_grid": regrouping.affine_grid,
    "prelu": layers.batch_norm_function,
    "max": pointwise.extreme,
    "min": pointwise.extreme,
    "pixel_shuffle": regrouping.pixel_shuffle,
    "pixel_unshuffle": regrouping.pixel_unshuffle,
    "channel_shuffle": regrouping.channel_shuffle,
    "layer_norm": layers.norm_over_channels,
    "rms_norm": layers.norm_over_channels,
    "group_norm": layers.norm_over_channels,
    "local_response_norm": layers.norm_over_channels,
    "batch_norm": layers.batch_norm_function,
    "instance_norm": layers.batch_norm_function,
    "new_zeros": running.new,
    "new_ones": running.new,
    "new_full": running.new,
    "size": running.size_of,
    "dim": running.size_of,
    "ndimension": running.size_of,
    "numel": running.size_of,
    "is_floating_point": running.size_of,
    "_assert": running.nothing,
    "interpolate": layers.spatial(0),
    "upsample": layers.spatial(0),
}
_POOLS = "max_pool avg_pool lp_pool adaptive_avg_pool adaptive_max_pool"


def _names() -> dict[str, Rule]:
    table: dict[str, Rule] = {}
    for names, rule in (
        (_ELEMENTWISE, pointwise.elementwise),
        (_SAME, running.same),
        (_COMBINE, pointwise.combine),
        (_ADD, pointwise.add),
        (_REDUCE, pointwise.reduce),
        (_STRUCTURAL, reshaping.structural),
    ):
        table |= dict.fromkeys(names.split(), rule)
    table |= {f"{pool}{k}d": layers.spatial(k) for pool in _POOLS.split() for k in (1, 2, 3)}
    return table | _CUTS


def _functions(names: dict[str, Rule]) -> dict[Any, Rule]:
    """By the function object itself, so that a user's function called `add` is not mistaken for torch's."""
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
                table[plain] = layers.spatial(k)
    table |= dict.fromkeys(LAYER_FUNCTIONS, layers.own_layer)
    table[getattr] = running.size_of
    table[with_part] = cutting.assign
    table |= {F.pad: reshaping.pad, F.unfold: regrouping.unfold, F.fold: regrouping.fold}
    table |= {torch.linalg.vector_norm: pointwise.norm, torch.linalg.norm: pointwise.norm}
    for function in (len, int, float, bool, max, min, math.ceil, math.floor, math.sqrt, round, abs, isinstance):
        table[function] = running.compute
    return table


_NAMES = _names()
LAYERS = _layers()
FUNCTIONS = _functions(_NAMES)
METHODS = _NAMES | {f"{name}_": rule for name, rule in _NAMES.items()} | {"unfold": reshaping.windows}
