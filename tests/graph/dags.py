"""Random networks: hypothesis draws a program step by step, and a module runs it.

Programs are meant to be unkind: the same tensor twice in a cat, sums of sums, gates that come from other branches,
grouped convolutions after cats, shuffles, halves, slices, zero channels, layers nobody reads. Each step is executed
while it is drawn, so shapes are known; what an op of the program does is in `dag_ops` and `dag_odd_ops`, what may be
drawn in `dag_makers` and `dag_odd_makers`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.graph.dag_odd_ops import ODD_OPS, PARAMETER_OPS
from tests.graph.dag_ops import OPS

BATCH = 2


@dataclass(frozen=True)
class Step:
    op: str
    inputs: tuple[int, ...]
    module: str | None = None
    consts: tuple[Any, ...] = ()

    def __str__(self) -> str:
        parts = [f"v{i}" for i in self.inputs] + [repr(const) for const in self.consts]
        return f"{self.op}{'[' + self.module + ']' if self.module else ''}({', '.join(parts)})"


class Dag(nn.Module):
    """Runs a program: values are numbered in the order they are made, value 0 is the image."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.results: tuple[int, ...] = ()
        self.layers = nn.ModuleDict()
        self.scales = nn.ParameterDict()

    def forward(self, x: Tensor) -> Any:
        values = [x]
        for step in self.steps:
            made = self.run(step, [values[i] for i in step.inputs])
            values.extend(made if isinstance(made, tuple) else (made,))
        if len(self.results) == 1:
            return values[self.results[0]]
        return tuple(values[i] for i in self.results)

    def run(self, step: Step, arguments: list[Any]) -> Any:
        if step.op == "layer":
            assert step.module is not None
            return self.layers[step.module](*arguments)
        if step.op in PARAMETER_OPS:
            assert step.module is not None
            return PARAMETER_OPS[step.op](self.scales[step.module], *arguments, *step.consts)
        if step.op == "weight_scalar":
            assert step.module is not None
            return arguments[0] * self.layers[step.module].weight.abs().mean()
        if step.op == "module_fact":
            assert step.module is not None
            fact = getattr(self.layers[step.module], step.consts[0])
            return arguments[0] * (fact.mean() if isinstance(fact, Tensor) else fact**0.5)
        return (OPS.get(step.op) or ODD_OPS[step.op])(*arguments, *step.consts)

    def __str__(self) -> str:
        lines = []
        count = 1
        for step in self.steps:
            lines.append(f"  v{count}.. = {step}" + (f"  # {self.layers[step.module]}" if step.op == "layer" else ""))
            count += {"halves": 2, "thirds": 3, "split": 2, "split_dynamic": 2, "groups_apart": 2}.get(step.op, 1)
        return "\n".join([*lines, f"  return {self.results}"])

    __repr__ = __str__


class Builder:
    """The network so far, and the tensors it has made, for makers to pick from."""

    def __init__(self, draw: Any, channels: int = 3, size: int = 4) -> None:
        self.draw = draw
        self.net = Dag()
        self.values: list[Tensor] = [torch.randn(BATCH, channels, size, size, dtype=torch.float64)]
        self.last: list[bool] = [False]  # does this value have its channels last?

    def integer(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def choice(self, options: Any) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def pick(self, wanted: Any) -> int | None:
        """A value that fits, rather a recent one than an old one."""
        fits = [i for i, value in enumerate(self.values) if not self.last[i] and wanted(value)]
        if not fits:
            return None
        return fits[-1 - min(self.integer(0, 3 * len(fits)) // 3, len(fits) - 1)] if len(fits) > 1 else fits[0]

    def map(self) -> int:
        """A tensor [N, C, H, W]; there is always one."""
        found = self.pick(lambda value: value.dim() == 4)
        assert found is not None
        return found

    def like(self, index: int) -> int:
        """A value of the same shape, perhaps the same one."""
        shape = self.values[index].shape
        found = self.pick(lambda value: value.shape == shape)
        assert found is not None
        return found

    def channels(self, index: int) -> int:
        return self.values[index].shape[1]

    @torch.no_grad()
    def add(self, op: str, *inputs: int, consts: tuple[Any, ...] = (), last: bool = False) -> int:
        return self._append(Step(op, inputs, None, consts), last)

    @torch.no_grad()
    def layer(self, module: nn.Module | str, index: int, last: bool = False) -> int:
        """Calls a new layer, or one that is there already, by its name."""
        if isinstance(module, str):
            name = module
        else:
            name = f"{type(module).__name__.lower()}{len(self.net.layers)}"
            self.net.layers[name] = randomised(module).double().eval()
        return self._append(Step("layer", (index,), name), last)

    @torch.no_grad()
    def parameter(self, op: str, *inputs: int, shape: tuple[int, ...] = (), name: str = "") -> int:
        """An op with a bare parameter: a new one of this shape, or one that is there already, by its name."""
        if not name:
            name = f"gamma{len(self.net.scales)}"
            self.net.scales[name] = nn.Parameter(torch.empty(shape, dtype=torch.float64).uniform_(0.5, 1.5))
        return self._append(Step(op, inputs, name), last=False)

    @torch.no_grad()
    def weight_scalar(self, index: int, name: str) -> int:
        return self._append(Step("weight_scalar", (index,), name), last=False)

    @torch.no_grad()
    def module_fact(self, index: int, name: str, fact: str) -> int:
        """A tensor times a number that is an attribute of a layer."""
        return self._append(Step("module_fact", (index,), name, (fact,)), last=False)

    def _append(self, step: Step, last: bool) -> int:
        made = self.net.run(step, [self.values[i] for i in step.inputs])
        made = made if isinstance(made, tuple) else (made,)
        self.net.steps.append(step)
        self.values.extend(made)
        self.last.extend([last] * len(made))
        return len(self.values) - 1


@torch.no_grad()
def randomised(module: nn.Module) -> nn.Module:
    """Weights that keep values near one, and nothing that is zero or one by default."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if not tensor.is_floating_point():
            continue
        if name == "weight" and tensor.dim() > 1:
            tensor.normal_(0.0, (2.0 / tensor[0].numel()) ** 0.5)
        elif name in ("weight", "running_var"):
            tensor.uniform_(0.5, 1.5)
        else:
            tensor.normal_(0.0, 0.3)
    return module
