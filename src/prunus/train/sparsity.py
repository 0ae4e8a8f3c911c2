"""Sparsity training of batch-norm scales, so that channels that can be removed have scales near 0.

l1:       network slimming (Liu et al. 2017): loss + sparsity x sum of |scale|, by the same SGD.
proximal: sparse structure selection (Huang and Wang 2018): the scales take steps of accelerated proximal gradient.
          The publication adds factors of its own behind each structure; here the batch-norm scales are the factors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from prunus.deciding.widths import floor_of, weakest_first
from prunus.errors import RunError
from prunus.graph.channel_graph import trace
from prunus.graph.traced import TRANSPOSED
from prunus.scoring.evidence import filters

Objective = Callable[[Any, Any, Any], Tensor]  # outputs (logits [N, K]), images, labels -> mean loss


def batch_norm_scales(model: nn.Module) -> list[nn.Parameter]:
    """The scales of all batch norms that train. A network without any is an error."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    scales = [norm.weight for norm in norms if norm.weight is not None and norm.weight.requires_grad]
    if not scales:
        raise RunError(f"sparsity needs batch norms with scales that train, and {type(model).__name__} has none")
    return list(dict.fromkeys(scales))


def with_penalty(objective: Objective, model: nn.Module, sparsity: float) -> Objective:
    """The objective + sparsity x sum of |scale|; the gradient of |0| is 0."""
    scales = batch_norm_scales(model)

    def penalised(logits: Tensor, images: Any, labels: Tensor) -> Tensor:
        return objective(logits, images, labels) + sparsity * torch.stack([s.abs().sum() for s in scales]).sum()

    return penalised


class ProximalSGD(torch.optim.SGD):
    """SGD. Groups with a `penalty` above 0 take steps of accelerated proximal gradient instead, without weight decay:

        s = S(p - lr x gradient, lr x penalty),    v = s - p + momentum x v,    p = s + momentum x v

    with S(x, t) = sign(x) max(|x| - t, 0) (Huang and Wang 2018, Eqn. 11). v takes the place of the momentum buffer.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step of all groups."""
        proximal = [(group, p, p.grad) for group in self.param_groups if group.get("penalty") for p in group["params"]]
        for _, parameter, _ in proximal:
            parameter.grad = None  # SGD leaves parameters without a gradient alone
        loss = super().step(closure)
        for group, parameter, gradient in proximal:
            parameter.grad = gradient
            if gradient is None:
                continue
            rate, momentum, state = group["lr"], group["momentum"], self.state[parameter]
            moved = parameter - rate * gradient
            shrunk = moved.sign() * (moved.abs() - rate * group["penalty"]).clamp(min=0)
            before = state.get("momentum_buffer")
            speed = shrunk - parameter + (0 if before is None else momentum * before)
            state["momentum_buffer"] = speed
            parameter.copy_(shrunk + momentum * speed)
        return loss


class SoftFilters:
    """Soft filter pruning (SFP, He et al. 2018): sets the weakest filters of a network to zero, by their L2 norm.

    It is done after each epoch, and the filters may come back.
    Only filters that pruning can remove count: those that write private units. The publication counts all
    convolutions. Biases and batch norms are left as they are, as in the publication.
    """

    def __init__(self, model: nn.Module, example: Any, ratio: float) -> None:
        """ratio: fraction of the filters of every unit."""
        self._ratio, self._graph = ratio, trace(model, example)
        self._units = [unit for unit in self._graph.units.values() if unit.kind == "private"]
        if not self._units:
            raise RunError(f"soft_prune: no filter of {type(model).__name__} can be removed")

    @torch.no_grad()
    def zero(self) -> None:
        """Set the round(ratio x width) weakest filters of every unit to zero; a unit's floor stays."""
        for unit in self._units:
            norms = filters(self._graph, unit).norm(dim=1).numpy()
            count = min(unit.granule * round(self._ratio * unit.width / unit.granule), unit.width - floor_of(unit))
            gone = torch.from_numpy(weakest_first(unit, norms)[:count])
            for writer in unit.writers:
                layer: Any = self._graph.model.get_submodule(writer.module)
                mine = torch.isin(torch.from_numpy(writer.channels), gone)
                outputs = torch.from_numpy(writer.outputs)[mine].flatten().to(layer.weight.device)
                weight = layer.weight.transpose(0, 1) if isinstance(layer, TRANSPOSED) else layer.weight
                weight[outputs] = 0
