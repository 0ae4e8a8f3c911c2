"""torch-pruning on the networks of the zoo: everything that it offers is cut by 25% to 50% at once, and compared.

What a pruned network should compute is known without either tool: the network as it was, in which the removed channels
are zero where they leave their layers and where they enter the next ones.
"""

from __future__ import annotations

import copy
import random
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from tests import proof, zoo_nets

LAYERS = (nn.modules.conv._ConvNd, nn.Linear)
EXACT = {torch.float64: 1e-9, torch.float32: 1e-4}  # relative
Gone = dict[str, dict[str, list[int]]]  # layer -> "in" and "out" -> channels removed, in the numbers of the whole layer


def examine(name: str) -> dict[str, Any]:
    """Its verdict ("exact", "wrong", "crashed", "nothing"), why, and how many groups and layers it cuts."""
    model, example = zoo_nets.prepared(name)
    small = copy.deepcopy(model)
    try:
        groups, gone = cut_everything(small, example)
    except Exception as error:  # noqa: BLE001  (whatever it is, it belongs in the table)
        return {"verdict": "crashed", "why": f"while it prunes: {said(error)}"}
    norms = any(isinstance(module, (nn.LayerNorm, nn.GroupNorm)) for module in model.modules())
    layers = sum(not is_depthwise(model.get_submodule(layer)) for layer in gone)
    found = {"groups": groups, "layers": layers, "norms": norms}
    if not groups:
        return {"verdict": "nothing", **found}
    with torch.no_grad():
        want = proof.outputs(masked(model, gone), example)
    try:
        got = proof.outputs(small.eval(), example)
    except Exception as error:  # noqa: BLE001
        return {"verdict": "crashed", "why": f"when the pruned network runs: {said(error)}", **found}
    if [tuple(t.shape) for t in got] != [tuple(t.shape) for t in want]:
        return {"verdict": "wrong", "why": "an output has another shape", **found}
    error = max((distance(one, other) for one, other in zip(got, want, strict=True)), default=0.0)
    return {"verdict": "exact" if error <= EXACT[zoo_nets.entry(name).dtype] else "wrong", "error": error, **found}


def distance(got: Tensor, want: Tensor) -> float:
    if not want.numel():
        return 0.0
    apart = (got - want).abs().max().item() / max(want.abs().max().item(), 1e-9)
    return apart if apart == apart else float("inf")


def cut_everything(model: nn.Module, example: Any) -> tuple[int, Gone]:
    """Prune the model in place; the number of groups cut, and what is gone."""
    import torch_pruning as tp

    ends = layers_at_the_end(model, example)  # users must name these themselves
    shares = random.Random(1)
    pruner = tp.pruner.BasePruner(
        model,
        example,
        tp.importance.RandomImportance(),
        pruning_ratio_dict={m: shares.uniform(0.25, 0.5) for m in model.modules() if isinstance(m, LAYERS)},
        ignored_layers=ends,
        root_module_types=[*LAYERS],
        output_transform=proof.tensors_of,
    )
    names = {module: name for name, module in model.named_modules()}
    left: dict[tuple[str, str], list[int]] = {}
    gone: Gone = defaultdict(lambda: {"in": [], "out": []})
    groups = 0
    for group in pruner.step(interactive=True):
        groups += 1
        for dependency, channels in group:
            module = dependency.target.module
            if isinstance(module, LAYERS):
                side = "out" if pruner.DG.is_out_channel_pruning_fn(dependency.handler) else "in"
                key = (names[module], side)
                now = left.setdefault(key, list(range(width(module, side))))
                lost = {channel for channel in channels if channel < len(now)}  # `prune` checks them
                gone[names[module]][side] += [now[channel] for channel in lost]
                left[key] = [channel for place, channel in enumerate(now) if place not in lost]
        group.prune()
    return groups, gone


def width(layer: nn.Module, side: str) -> int:
    kind = "channels" if hasattr(layer, "in_channels") else "features"
    return int(getattr(layer, f"{side}_{kind}"))


def layers_at_the_end(model: nn.Module, example: Any) -> list[nn.Module]:
    """The layers that write an output of the network, found by walking back from there through autograd's graph."""
    writers: dict[Any, nn.Module] = {}

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        writers[output.grad_fn] = module

    handles = [m.register_forward_hook(note) for m in model.modules() if isinstance(m, LAYERS)]
    outputs = proof.tensors_of(proof.call(model, copy.deepcopy(example)))
    for handle in handles:
        handle.remove()
    ends, seen = [], set()
    ahead = [tensor.grad_fn for tensor in outputs]
    while ahead:
        step = ahead.pop()
        if step in writers:
            ends.append(writers[step])
        elif step is not None and step not in seen:
            seen.add(step)
            ahead += [before for before, _ in step.next_functions]
    return ends


def masked(model: nn.Module, gone: Gone) -> nn.Module:
    """The model with hooks that make the channels zero on both sides of each layer."""
    for name, sides in gone.items():
        layer = model.get_submodule(name)
        axis = -1 if isinstance(layer, nn.Linear) else 1
        removed, inputs = torch.tensor(sides["out"], dtype=torch.long), torch.tensor(sides["in"], dtype=torch.long)
        layer.register_forward_pre_hook(
            lambda module, args, axis=axis, inputs=inputs: (args[0].index_fill(axis, inputs, 0.0), *args[1:])
        )
        layer.register_forward_hook(
            lambda module, args, output, axis=axis, removed=removed: output.index_fill(axis, removed, 0.0)
        )
    return model


def is_depthwise(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.conv._ConvNd) and module.groups == module.in_channels > 1


def said(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:160]}"
