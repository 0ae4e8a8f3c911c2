"""What must hold of every pruned network, measured without help from the code under test."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import prunus as pr

Example = Any  # a tensor, a tuple of positional arguments or a dict of keyword arguments
Keep = dict[str, list[int]]
Bounds = tuple[float, float]

# What FlopCounterMode may call a convolution or a linear layer (bmm is attention, not a layer).
LAYER_OPS = {"convolution", "_convolution", "addmm", "mm", "bmm"}


def call(model: nn.Module, example: Example) -> Any:
    if isinstance(example, Mapping):
        return model(**example)
    if isinstance(example, tuple):
        return model(*example)
    return model(example)


def tensors_of(output: Any) -> list[Tensor]:
    """The tensors of a network's output, however deep they lie in tuples, lists and dicts."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        return [tensor for value in output.values() for tensor in tensors_of(value)]
    if isinstance(output, (tuple, list)):
        return [tensor for value in output for tensor in tensors_of(value)]
    return []


@torch.no_grad()
def outputs(model: nn.Module, example: Example) -> list[Tensor]:
    # A network may work in place on what it is given, so it gets a copy.
    return tensors_of(call(model, copy.deepcopy(example)))


def relative_error(got: list[Tensor], want: list[Tensor]) -> float:
    """The largest difference of any output, against the largest value of that output."""
    assert [tuple(t.shape) for t in got] == [tuple(t.shape) for t in want]
    worst = 0.0
    for one, other in zip(got, want, strict=True):
        difference = (one - other).abs().max().item() if one.numel() else 0.0
        assert np.isfinite(difference), "an output is not finite"
        scale = other.abs().max().item() if other.numel() else 1.0
        worst = max(worst, difference / max(scale, 1e-9))
    return worst


def random_keep(graph: pr.ChannelGraph, seed: int, low: float = 0.25, high: float = 0.5) -> Keep:
    """Kept channels that remove a share in [low, high] of every unit, the same number from each block.

    At least one channel goes from every block that has two, so nothing that can shrink stays as it is.
    """
    rng = np.random.default_rng(seed)
    keep: Keep = {}
    for name, unit in graph.units.items():
        members = [np.flatnonzero(unit.blocks == block) for block in np.unique(unit.blocks)]
        size = len(members[0])
        assert {len(block) for block in members} == {size}, f"{name}: blocks of unequal size"
        if size < 2:
            continue
        gone = min(size - 1, max(1, round(rng.uniform(low, high) * size)))
        kept = [rng.permutation(block)[: size - gone] for block in members]
        keep[name] = np.sort(np.concatenate(kept)).tolist()
    return keep


@contextmanager
def masked(model: nn.Module, graph: pr.ChannelGraph, keep: Mapping[str, Sequence[int]]) -> Iterator[None]:
    """The dropped channels set to zero where they enter each reader: the other way to say `pr.zeroed`."""
    modules = dict(model.named_modules())
    handles = []
    try:
        for name, kept in keep.items():
            unit = graph.units[name]
            for reader in unit.readers:
                gone = ~np.isin(reader.channels, kept)
                positions = torch.as_tensor(reader.inputs[gone].reshape(-1))
                mask = mask_of(positions)
                handles.append(modules[reader.module].register_forward_pre_hook(mask, with_kwargs=True))
            for norm in unit.norms:
                module, gone = modules[norm.module], torch.as_tensor(norm.inputs[~np.isin(norm.channels, kept)])
                width = module.normalized_shape[0] if hasattr(module, "normalized_shape") else unit.width
                handles.append(module.register_forward_pre_hook(zeros_at(gone.reshape(-1), width)))
        with torch.compiler.set_stance("force_eager"):  # compiled code does not see new hooks
            yield
    finally:
        for handle in handles:
            handle.remove()


def zeros_at(positions: Tensor, width: int) -> Any:
    """Zeros in front of a norm over the last dimension or, if that has another size, over the second one."""

    def hook(module: nn.Module, args: tuple[Any, ...]) -> Any:
        axis = -1 if args[0].size(-1) == width else 1
        return (args[0].index_fill(axis, positions, 0.0), *args[1:])

    return hook


def mask_of(positions: Tensor) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = args[0] if args else kwargs["input"]
        batched = x.dim() == 2 + len(module.kernel_size) if isinstance(module, nn.modules.conv._ConvNd) else True
        axis = -1 if isinstance(module, nn.Linear) else int(batched)
        x = x.index_fill(axis, positions, 0.0)
        return ((x, *args[1:]), kwargs) if args else (args, {**kwargs, "input": x})

    return hook


def counted_macs(model: nn.Module, example: Example, in_layers: Collection[str] | None = None) -> int:
    """Multiply-adds of convolutions, linear layers and products in one forward: half of PyTorch's own flop count.

    in_layers: only those of convolution and linear modules and of the modules that own weights of these names, not of
        other code that calls the same operations on its own.
    """
    model = copy.deepcopy(model).requires_grad_(False)  # the counter cannot have parameters as inputs of modules
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        call(model, copy.deepcopy(example))
    counts = counter.get_flop_counts()
    modules = ["Global"]
    if in_layers is not None:
        kinds = (nn.modules.conv._ConvNd, nn.Linear)
        owners = {name.rpartition(".")[0] for name in set(in_layers) - set(dict(model.named_modules()))}
        layers = [n for n, m in model.named_modules() if isinstance(m, kinds) or n in owners]
        modules = [f"{type(model).__name__}.{name}" for name in layers]
    by_op = [item for module in modules for item in counts.get(module, {}).items()]
    flops = sum(count for op, count in by_op if str(op).split(".")[-1] in LAYER_OPS)
    assert flops % 2 == 0
    return flops // 2


def accuracy_bounds(model: nn.Module, batches: Iterable[tuple[Any, Tensor]], rounding: float = 1e-5) -> Bounds:
    """Lowest and highest top-1 accuracy that a computation with other rounding may find for this network.

    Each logit may move by `rounding` times the largest logit of its batch, so an image whose label leads or trails by
    less than twice that counts as either. Without such images both bounds are equal. The default is for float32, in
    which one sum in another order differs by about 1e-7 of its terms and a few layers by about 1e-6: ten times that.
    """
    surely, perhaps, images = 0, 0, 0
    for inputs, labels in batches:
        (logits,) = outputs(model.eval(), inputs)
        chosen = torch.nn.functional.one_hot(labels, logits.shape[1]).bool()
        lead = logits[chosen] - logits.masked_fill(chosen, -torch.inf).amax(1)
        near = 2 * rounding * logits.abs().max()
        surely, perhaps, images = (
            surely + int((lead > near).sum()),
            perhaps + int((lead >= -near).sum()),
            images + len(lead),
        )
    return surely / images, perhaps / images


def assert_accuracy(
    found: float, model: nn.Module, batches: Iterable[tuple[Any, Tensor]], rounding: float = 1e-5, printed: float = 1e-9
) -> None:
    """`found` is the top-1 accuracy of the network as a fraction, by whatever route; `printed`: to how many places."""
    low, high = accuracy_bounds(model, batches, rounding)
    assert low - printed <= found <= high + printed, f"{found} is not between {low} and {high}"


def batch_of(example: Example) -> int:
    return tensors_of(example)[0].shape[0]


def train_step(model: nn.Module, example: Example) -> set[str]:
    """One step of SGD in train mode; the names of the parameters that a gradient reached."""
    model.train()
    loss = sum(tensor.square().mean() for tensor in tensors_of(call(model, copy.deepcopy(example))))
    assert isinstance(loss, Tensor)
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=1e-3).step()
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
    return {name for name, parameter in model.named_parameters() if parameter.grad is not None}


def same_state(one: nn.Module, other: nn.Module) -> bool:
    """Every parameter and buffer equal, bit by bit, under the same names."""
    left, right = one.state_dict(), other.state_dict()
    return left.keys() == right.keys() and all(
        left[name].shape == right[name].shape and torch.equal(left[name], right[name]) for name in left
    )
