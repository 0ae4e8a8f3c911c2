"""Copies of models share what they should, and are otherwise what deepcopy makes; trials are as small as possible."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from prunus.graph.surgery import copy_sharing
from prunus.graph.trials import trials_for


class Own(nn.Module):
    """A class that says how it is copied."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def __deepcopy__(self, memo: dict[int, Any]) -> Own:
        twin = Own()
        twin.copied = True
        return twin


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.tied = nn.Conv2d(3, 4, 3, padding=1)
        self.tied.weight = self.conv.weight
        self.own = Own()
        self.sizes, self.notes, self.names = (1, 2), [{"a": 1}], {"x"}
        self.above: list[nn.Module] = [self]  # a cycle
        self.same = self.notes
        self.conv.register_forward_hook(self.watch)

    def watch(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output * 2

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)) + self.tied(x)


def test_a_copy_is_what_deepcopy_makes() -> None:
    model = nn.Sequential(Block(), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    shared = [model[0].conv.weight, model[2].weight]
    twin, plain = copy_sharing(model, shared), copy.deepcopy(model)
    for (name, module), (_, other), (_, old) in zip(
        twin.named_modules(), plain.named_modules(), model.named_modules(), strict=True
    ):
        assert type(module) is type(other), name
        assert list(module.__dict__) == list(other.__dict__), name
        assert module is not old
    block, before = twin[0], model[0]
    assert block.conv.weight is block.tied.weight is before.conv.weight
    assert block.conv.bias is not before.conv.bias
    assert torch.equal(block.conv.bias, before.conv.bias)
    assert block.norm.running_mean is not before.norm.running_mean
    assert block.own.copied
    assert block.above[0] is block
    assert block.same is block.notes
    assert block.notes is not before.notes
    assert block.names == {"x"}
    (hook,) = block.conv._forward_hooks.values()
    assert hook.__self__ is block
    x = torch.randn(1, 3, 5, 5)
    assert torch.equal(twin(x), model(x))
    block.norm.running_mean.add_(1.0)
    assert before.norm.running_mean.sum() == 0


class Wide(nn.Module):
    """Needs images of 80 pixels a side, and in training of 200."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.aux = nn.Conv2d(3, 2, 80, stride=8), nn.Conv2d(2, 2, 16)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = self.stem(x)
        return (x, self.aux(x)) if self.training else x


def test_trials_take_the_smallest_images_that_the_network_allows() -> None:
    in_eval, in_training = trials_for(Wide().eval(), torch.zeros(1, 3, 224, 224))
    assert (in_eval.mode, in_eval.inputs.shape) == ("eval", (1, 3, 128, 128))
    assert (in_training.mode, in_training.inputs.shape) == ("training", (2, 3, 224, 224))
    small = nn.Sequential(nn.Conv2d(3, 2, 3))
    assert trials_for(small, torch.zeros(1, 3, 224, 224))[0].inputs.shape == (1, 3, 64, 64)
    assert trials_for(small, torch.zeros(4, 3, 80, 80))[0].inputs.shape == (1, 3, 80, 80)
