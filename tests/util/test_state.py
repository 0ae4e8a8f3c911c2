"""What running a network changes is restored: attributes, containers, tensors, hooks and generators."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from prunus.util.state import ModuleState, module_state_kept, nothing_compiled


class Memory:
    def __init__(self) -> None:
        self.count = 0
        self.items: list[int] = []


class Busy(nn.Module):
    """Changes everything that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.hidden = [nn.Linear(3, 3)]  # not registered
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("total", torch.zeros(3))
        self.plain = torch.zeros(2)
        self.memory = Memory()
        self.names: list[Any] = ["a"]
        self.table: dict[str, Any] = {"x": [1]}
        self.members = {1}
        self.queue = deque([1, 2])
        self.array = np.zeros(2)
        self.generator = torch.Generator().manual_seed(1)
        self.state: Any = None

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x) + torch.rand(3, generator=self.generator)
        self.total += 1
        self.plain += 1
        self.array += 1
        self.state, self.fresh = x, x
        self.memory.count += 1
        self.memory.items.append(1)
        self.names.append(x)
        self.table["y"] = x
        self.table["x"].append(2)
        self.members.add(2)
        self.queue.popleft()
        self.scale.data = self.scale.data * 2
        self.hidden[0].tag = "seen"
        self.register_buffer("late", x)
        self.norm.register_forward_hook(lambda module, args, output: None)
        self.add_module("child", nn.Identity())
        return x


@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_restored(fails: bool) -> None:
    model = Busy().train()
    x = torch.randn(4, 3)
    state = ModuleState(model)
    for _ in range(2):  # it can be restored several times
        model(x)
        state.restore()
    parameter, buffer = model.scale, model.total
    random = model.generator.get_state()
    attributes = {name: list(module.__dict__) for name, module in model.named_modules()}
    try:
        with module_state_kept(model):
            model(x)
            assert model.total.sum() == 3
            if fails:
                raise ArithmeticError
    except ArithmeticError:
        assert fails
    assert {name: list(module.__dict__) for name, module in model.named_modules()} == attributes
    assert model.scale is parameter and torch.equal(parameter, torch.ones(3))
    assert model.total is buffer and torch.equal(buffer, torch.zeros(3))
    assert torch.equal(model.plain, torch.zeros(2)) and not model.array.any()
    assert model.norm.num_batches_tracked.item() == 0 and torch.equal(model.norm.running_mean, torch.zeros(3))
    assert (model.memory.count, model.memory.items) == (0, [])
    assert (model.names, model.table, model.members) == (["a"], {"x": [1]}, {1})
    assert (list(model.queue), model.state) == ([1, 2], None)
    assert not hasattr(model.hidden[0], "tag") and not hasattr(model, "fresh")
    running = ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]
    assert list(dict(model.named_buffers())) == ["total", *running]
    assert list(dict(model.named_children())) == ["norm"] and not model.norm._forward_hooks
    assert torch.equal(model.generator.get_state(), random)


def test_what_has_not_changed_is_not_written_to() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()
    versions = [tensor._version for tensor in model.state_dict().values()]
    state = ModuleState(model)
    model(torch.randn(2, 3))
    state.restore()
    assert [tensor._version for tensor in model.state_dict().values()] == versions


def test_memory_that_code_exchanges_is_put_back() -> None:
    """As in layers that merge weights, and keep the others aside: these must not be written over."""
    layer, aside = nn.Linear(2, 2), torch.zeros(2, 2)
    before, memory = layer.weight.detach().clone(), layer.weight.data_ptr()
    with module_state_kept(layer, weights=True):
        layer.weight.data = aside
    assert not aside.any()
    assert torch.equal(layer.weight, before) and layer.weight.data_ptr() == memory


def test_torch_compile_is_on_again_when_the_last_block_ends() -> None:
    """In whatever order blocks end, and if they run in several threads."""
    import torch._dynamo  # as in a process that compiles
    from torch._dynamo import eval_frame

    def stance() -> str:
        return eval_frame._stance.stance

    before, nested = stance(), torch._dynamo.config.error_on_nested_fx_trace
    first, second = nothing_compiled(), nothing_compiled()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert stance() == "force_eager" and not torch._dynamo.config.error_on_nested_fx_trace
    second.__exit__(None, None, None)
    assert (stance(), torch._dynamo.config.error_on_nested_fx_trace) == (before, nested)

    def enter_and_wait(entered: threading.Event, end: threading.Event) -> None:
        with nothing_compiled():
            entered.set()
            assert end.wait(60)

    events = [(threading.Event(), threading.Event()) for _ in range(2)]
    threads = [threading.Thread(target=enter_and_wait, args=pair) for pair in events]
    for thread, (entered, _) in zip(threads, events, strict=True):
        thread.start()
        assert entered.wait(60)
    for thread, (_, end) in zip(threads, events, strict=True):
        assert stance() == "force_eager"
        end.set()
        thread.join(60)
    assert stance() == before
