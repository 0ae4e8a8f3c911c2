"""nn.MultiheadAttention written out in operations that can be followed, with as many heads as are left.

PyTorch's module computes everything in one function, which takes its number of heads for the width of its input. An
`Attention` is the same module, with the same parameters, whose forward is written out:

    queries, keys, values = in_proj(x), split into heads
    out = out_proj(softmax(queries keys' / sqrt(d) + masks) values)

d is the size of a head in the original network. The products with rows of `in_proj_weight` are calls of child modules
(`Projection`) that own no parameters, so that they are layers like any other: read, written, selected for and repaired.

A network that has such modules is traced as a twin (`written_out`), which shares all parameters, buffers and other
modules with the network. The twin is the model of the graph, and pruned networks are copies of it.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prunus.graph.norms import give_means
from prunus.graph.traced import named_modules
from prunus.graph.units import Indices

_WHOLE = "in_proj"
_PARTS = ("q_proj", "k_proj", "v_proj")
_CONTAINERS = (
    *(nn.Transformer, nn.TransformerEncoder, nn.TransformerEncoderLayer),
    *(nn.TransformerDecoder, nn.TransformerDecoderLayer),
)


class Projection(nn.Linear):
    """The linear layer whose weight and bias are rows of those of an attention: of queries, keys, values or all."""

    owner: Any  # the attention; not a child

    def __init__(self, owner: Attention, part: int | None) -> None:
        nn.Module.__init__(self)
        self.__dict__["owner"] = owner
        self.part = part

    @property
    def tensors(self) -> tuple[str, str]:
        """The parameters of the attention that hold weight and bias."""
        if self.part is None or self.owner.in_proj_weight is not None:
            return "in_proj_weight", "in_proj_bias"
        return f"{_PARTS[self.part]}_weight", "in_proj_bias"

    @property
    def has_own_columns(self) -> bool:
        """Whether no other layer has columns of the same matrix, so that inputs can be removed."""
        return self.part is None or self.owner.in_proj_weight is None

    @property
    def rows(self) -> slice:
        """The rows of the parameter that its weight is."""
        return slice(None) if self.has_own_columns else self._rows()

    def _rows(self) -> slice:
        ends = np.cumsum([0, *self.owner.rows]).tolist()
        return slice(0, ends[-1]) if self.part is None else slice(ends[self.part], ends[self.part + 1])

    @property
    def weight(self) -> Any:  # type: ignore[override]
        """The rows of the attention's weight."""
        tensor = getattr(self.owner, self.tensors[0])
        return tensor if self.has_own_columns else tensor[self.rows]

    @property
    def bias(self) -> Any:  # type: ignore[override]
        """The part of the attention's bias."""
        tensor = self.owner.in_proj_bias
        return tensor if tensor is None or self.part is None else tensor[self._rows()]

    @property
    def in_features(self) -> int:  # type: ignore[override]
        """How many channels it reads."""
        return int(self.weight.size(1))

    @property
    def out_features(self) -> int:  # type: ignore[override]
        """How many channels it writes."""
        return int(self.weight.size(0))

    def keep(self, inputs: Indices, outputs: Indices) -> None:
        """Keep these inputs and outputs. The attention's tensors change in place: they stay the same parameters."""
        owner, mine = self.owner, self._rows()
        every = np.arange(sum(owner.rows))
        kept = np.concatenate([every[: mine.start], every[mine][outputs], every[mine.stop :]])
        weight, bias = getattr(owner, self.tensors[0]), owner.in_proj_bias
        rows = kept if owner.in_proj_weight is not None else outputs
        part_of_row = np.repeat(np.arange(len(owner.rows)), owner.rows)[kept]
        for tensor, index in ((weight, rows), (bias, kept)):
            if tensor is not None:
                tensor.data = tensor.detach().index_select(0, torch.from_numpy(index).to(tensor.device))
        if self.has_own_columns:
            weight.data = weight.detach().index_select(1, torch.from_numpy(inputs).to(weight.device))
        owner.rows = np.bincount(part_of_row, minlength=len(owner.rows)).tolist()


class HeadAverage(nn.Module):
    """The attention weights that nn.MultiheadAttention returns: their mean over heads. Few networks use it."""

    def forward(self, weights: Tensor) -> Tensor:
        """[..., heads, L, S] -> [..., L, S]"""
        return weights.mean(-3)


class Attention(nn.MultiheadAttention):
    """nn.MultiheadAttention whose forward is written out. It may have fewer heads, of the same size.

    Attributes:
        scale: of the products of queries and keys, 1 / sqrt(d).
        rows: how many channels queries, keys and values have. (A list, because tuples of numbers may count channels.)
    """

    scale: float
    rows: list[int]
    average: HeadAverage

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As that of nn.MultiheadAttention. `is_causal` is a hint only: the mask is what counts."""
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        single = query.dim() == 2
        q, k, v = self._heads_of(query, key, value)
        if single:
            q, k, v = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
        elif not self.batch_first:
            q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # [N, heads, tokens, d]
        mask = None
        if attn_mask is not None:
            mask = _summand(attn_mask, query.dtype)
            if attn_mask.dim() == 3:
                mask = mask.unflatten(0, (q.shape[0], self.num_heads))  # type: ignore[no-untyped-call]
        if key_padding_mask is not None:
            padding = _summand(key_padding_mask, query.dtype)
            padding = (padding.unsqueeze(0) if single else padding).unsqueeze(1).unsqueeze(1)
            mask = padding if mask is None else mask + padding
        weights = None
        dropout = self.dropout if self.training else 0.0
        if need_weights or dropout > 0:
            weights = (q * self.scale) @ k.transpose(-2, -1)
            weights = (weights if mask is None else weights + mask).softmax(-1)
            weights = F.dropout(weights, dropout) if dropout > 0 else weights
            out = weights @ v
        else:
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scale)
        out = out.transpose(1, 2).flatten(2)
        if single:
            out = out.squeeze(0)
        elif not self.batch_first:
            out = out.transpose(0, 1)
        out = self.out_proj(out)
        if not need_weights or weights is None:
            return out, None
        weights = weights.squeeze(0) if single else weights
        return out, self.average(weights) if average_attn_weights else weights

    def _heads_of(self, query: Tensor, key: Tensor, value: Tensor) -> Any:
        """Queries, keys and values, [..., heads, d] each."""
        known = self._modules
        if query is key and key is value and self.in_proj_weight is not None and _PARTS[0] not in known:
            x = (known.get(_WHOLE) or Projection(self, None))(query)
            return x.unflatten(-1, (3, self.num_heads, self.head_dim)).unbind(-3)
        parts = [known.get(name) or Projection(self, i) for i, name in enumerate(_PARTS)]
        projected = (part(x) for part, x in zip(parts, (query, key, value), strict=True))
        return [x.unflatten(-1, (self.num_heads, self.head_dim)) for x in projected]


def _summand(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What a mask adds to the products: minus infinity where it is True; a mask of numbers is added as it is."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))


# -- the twin of a network


def reason_against(module: nn.Module) -> str | None:
    """Why an attention of PyTorch cannot be written out, in words; None if it can."""
    attention: Any = module
    if type(module) is not nn.MultiheadAttention or "forward" in vars(module):
        return "its code is not that of nn.MultiheadAttention"
    if attention.bias_k is not None or attention.bias_v is not None:
        return "it adds a bias to the sequence of keys and values (add_bias_kv)"
    if attention.add_zero_attn:
        return "it adds zeros to the sequence of keys and values (add_zero_attn)"
    parts = [f"{name}_weight" for name in _PARTS]
    names = ["in_proj_bias", *(["in_proj_weight"] if attention._qkv_same_embed_dim else parts)]
    if any(name not in module._parameters for name in names) or hasattr(module, "parametrizations"):
        return "its weights are computed from other parameters"
    out = attention.out_proj
    own_code = "forward" in vars(out) or type(out).forward is not nn.Linear.forward
    if own_code or out._forward_hooks or out._forward_pre_hooks:
        return "it uses the weights of its output projection, whose own code or hooks it never calls"
    return None


def is_followed(module: nn.Module) -> bool:
    """Whether a module of torch.nn is not one call of the graph, but what it consists of."""
    if isinstance(module, Attention):
        return True
    if not isinstance(module, _CONTAINERS):
        return False
    inside = [m for m in module.modules() if isinstance(m, nn.MultiheadAttention)]
    return bool(inside) and all(isinstance(m, Attention) for m in inside)


_LOCK = threading.Lock()
_SOURCES: weakref.WeakKeyDictionary[nn.Module, weakref.ref[nn.Module]] = weakref.WeakKeyDictionary()


def source_of(model: nn.Module) -> nn.Module:
    """The network that a twin was made from, if it still exists; any other network is returned as it is."""
    source = _SOURCES[model]() if model in _SOURCES else None
    return model if source is None else source


def follow_mode(twin: nn.Module) -> None:
    """Give the modules of a twin the modes that those of its network have now."""
    source = source_of(twin)
    modules = dict(named_modules(source))
    for name, module in named_modules(twin) if source is not twin else ():
        like = modules.get(name, modules.get(name.rpartition(".")[0]))  # parts of an attention have its mode
        if like is not None:
            module.training = like.training


@contextmanager
def computed_by_twin(twin: nn.Module) -> Iterator[None]:
    """Inside the block, a network that was traced as a twin computes what the twin computes, in its own mode."""
    source = source_of(twin)
    if source is twin:
        yield
        return

    with _LOCK:
        patched = vars(source).get("forward")
        forward = patched if isinstance(patched, _ByTwin) else _ByTwin(source, patched)
        source.__dict__["forward"] = forward
        forward.twins.append(twin)
    try:
        yield
    finally:
        with _LOCK:
            forward.twins.remove(twin)
            if not forward.twins and vars(source).get("forward") is forward:
                del source.__dict__["forward"]
                if forward.patched is not None:
                    source.__dict__["forward"] = forward.patched


class _ByTwin:
    """The forward of a network inside of `computed_by_twin`: that of the twin that came last. Blocks may end in any
    order, as in threads."""

    def __init__(self, source: nn.Module, patched: Any) -> None:
        self.source, self.patched = source, patched
        self.twins: list[nn.Module] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward = self.patched or type(self.source).forward.__get__(self.source)
        for twin in self.twins[-1:]:
            follow_mode(twin)
            forward = twin.forward
        return forward(*args, **kwargs)


class Uses:
    """How a network calls its attentions, as hooks see it."""

    def __init__(self) -> None:
        self.crossing: dict[nn.Module, bool] = {}  # attention -> whether queries, keys and values are several tensors
        self.padded: set[nn.Module] = set()  # encoders that may turn padded batches into nested tensors

    def watch(self, model: nn.Module, hooks: ExitStack) -> None:
        """Note the calls until the hooks are removed."""

        def attention(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            given = dict(zip(("query", "key", "value"), args, strict=False)) | dict(kwargs)
            crossing = not (given["query"] is given["key"] and given["key"] is given["value"])
            self.crossing[module] = crossing or self.crossing.get(module, False)

        def encoder(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            mask = args[2] if len(args) > 2 else kwargs.get("src_key_padding_mask")
            if mask is not None and getattr(module, "use_nested_tensor", False):
                self.padded.add(module)

        for module in model.modules():
            if isinstance(module, nn.MultiheadAttention):
                hooks.callback(module.register_forward_pre_hook(attention, with_kwargs=True).remove)
            elif isinstance(module, nn.TransformerEncoder):
                hooks.callback(module.register_forward_pre_hook(encoder, with_kwargs=True).remove)


def has_attention(model: nn.Module) -> bool:
    """Whether a network has attentions that could be written out."""
    return any(isinstance(m, nn.MultiheadAttention) and reason_against(m) is None for _, m in named_modules(model))


def written_out(model: nn.Module, uses: Uses, averaging: Collection[nn.Module] = ()) -> nn.Module:
    """A twin of the network in which attentions are written out, and modules compute the means in the code of those in
    `averaging`. It shares parameters, buffers and other modules."""
    excluded = {id(part) for encoder in uses.padded for part in encoder.modules()}
    chosen = {
        id(module)
        for _, module in named_modules(model)
        if isinstance(module, nn.MultiheadAttention)
        and module in uses.crossing
        and reason_against(module) is None
        and id(module) not in excluded
    }
    means = {id(module) for module in averaging}
    memo: dict[int, Any] = {}
    for _, module in named_modules(model):
        # Shared dicts: the twin sees parameters and buffers that are replaced in the network later.
        memo |= {id(part): part for part in (module._parameters, module._buffers)}
        memo |= {id(t): t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None}
        if not any(id(part) in chosen or id(part) in means for part in module.modules()):
            memo[id(module)] = module
    crossing = {id(module): crosses for module, crosses in uses.crossing.items()}
    twin = copy.deepcopy(model, memo)
    for part in chosen:
        _write_out(memo[part], crossing[part])
    for part in means:
        give_means(memo[part])
    for module in twin.modules():
        if isinstance(module, nn.TransformerEncoder) and is_followed(module):
            module.use_nested_tensor = False
    _SOURCES[twin] = weakref.ref(model)
    return twin


def _write_out(module: Any, crossing: bool) -> None:
    """Make an attention one that is written out."""
    module.__class__ = Attention
    module.scale = module.head_dim**-0.5
    module.rows = [module.embed_dim] * 3
    module._qkv_same_embed_dim = False  # keeps nn.TransformerEncoderLayer from computing the layer in one call
    if module.in_proj_weight is not None and not crossing:
        module.add_module(_WHOLE, Projection(module, None))
    else:
        for i, name in enumerate(_PARTS):
            module.add_module(name, Projection(module, i))
    module.average = HeadAverage()
