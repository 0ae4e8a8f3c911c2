"""Other tools on the same tasks: at the same MACs or ratio, and torch-pruning's graph on the networks of the zoo.

    python benchmarks/peers.py --network resnet56 --weights FILE --data DIR [--target 0.5] [--out FILE.json]

tries torch-pruning's importances on the inner channels of each block (its graph does not follow the zero-padded
shortcuts), with the same share of each layer, with one ranking over all layers (":global") and with one ranking for
each kind of layer (":isomorphic"), and prints held-out accuracy before any training. The best one is what
`cifar.py --method torch-pruning:best` retrains. With --tools, also onnxsim (onnxsim:l2, onnxsim:wanda; package
onnxsim 0.8.1) and ModelOpt's FastNAS (modelopt:fastnas; package nvidia-modelopt 0.47), and Prunus itself.
"""

from __future__ import annotations

import copy
import itertools
import random
import sys
import tempfile
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import prunus
from prunus.ship.fold import fold_batch_norm
from tests import proof, zoo_nets

LAYERS = (nn.modules.conv._ConvNd, nn.Linear)

# Importances at a goal


def importance(name: str) -> Any:
    """torch-pruning's importance called l2, l1, fpgm, bn_scale, lamp, taylor or hessian."""
    import torch_pruning as tp

    found: dict[str, Callable[[], Any]] = {
        "l2": lambda: tp.importance.GroupMagnitudeImportance(p=2),
        "l1": lambda: tp.importance.GroupMagnitudeImportance(p=1),
        "fpgm": lambda: tp.importance.FPGMImportance(p=2),
        "bn_scale": tp.importance.BNScaleImportance,
        "lamp": lambda: tp.importance.LAMPImportance(p=2),
        "taylor": tp.importance.GroupTaylorImportance,
        "hessian": tp.importance.GroupHessianImportance,
    }
    if name not in found:
        raise SystemExit(f"no importance is called {name}; there are {', '.join(found)}")
    return found[name]()


NAMES = ("l2", "l1", "fpgm", "bn_scale", "lamp", "taylor", "hessian")
IMPORTANCES = [f"{name}{where}" for name in NAMES for where in ("", ":global", ":isomorphic")]


def prunable(name: str, module: nn.Module) -> bool:
    """Not the classifier; of CIFAR's ResNets only the inner channels, of transformers heads and the hidden channels of
    MLPs, of other networks all convolutions."""
    if name.startswith("blocks."):
        return name.endswith(("attn.qkv", "mlp.fc1"))
    if isinstance(module, nn.Conv2d) and name.startswith(("layer", "conv1")):
        return name.startswith("layer") and name.endswith("conv1")
    return not isinstance(module, nn.Linear)


def cut(model: nn.Module, example: Tensor, method: str, ratio: float, round_to: int | None = None) -> nn.Module:
    """A copy without that share of the channels, by an importance such as "l2", "l2:global" or "l2:isomorphic"."""
    import torch_pruning as tp

    name, _, where = method.partition(":")
    small = copy.deepcopy(model)
    attentions = [module for module in small.modules() if hasattr(module, "qkv")]
    for mine, theirs in zip(small.parameters(), model.parameters(), strict=True):
        mine.grad = None if theirs.grad is None else theirs.grad.clone()  # for Taylor and Hessian
    pruner = tp.pruner.BasePruner(
        small,
        example,
        importance(name),
        global_pruning=where in ("global", "isomorphic"),
        isomorphic=where == "isomorphic",
        pruning_ratio=ratio,
        max_pruning_ratio=0.9,
        ignored_layers=[
            module
            for title, module in small.named_modules()
            if isinstance(module, nn.Conv2d | nn.Linear) and not prunable(title, module)
        ],
        round_to=round_to,
        num_heads={attention.qkv: attention.num_heads for attention in attentions},
        prune_num_heads=bool(attentions),
        prune_head_dims=False,
        head_pruning_ratio=ratio,
    )
    pruner.step()
    for attention in attentions:  # numbers of timm's attention, which its users set themselves
        attention.num_heads = pruner.num_heads[attention.qkv]
        attention.attn_dim = attention.qkv.out_features // 3
    small.zero_grad(set_to_none=True)
    return small


def at_target(model: nn.Module, example: Tensor, method: str, target: float) -> nn.Module:
    """Cut by the smallest ratio, in steps of half a per cent, that removes this share of the MACs."""
    goal = macs_of(model, example) * (1 - target + 0.002)
    share = bisect_left(range(180), True, key=lambda n: macs_of(cut(model, example, method, n / 200), example) <= goal)
    return cut(model, example, method, share / 200)


def macs_of(model: nn.Module, example: Tensor) -> int:
    """MACs of one image, by prunus's count."""
    return prunus.trace(model, example, check=False).macs


def prepare(model: nn.Module, method: str, batches: Any) -> None:
    """Fill in the gradients that an importance reads, over some training images; batch norm as in use.

    Taylor reads the gradient of the loss. Hessian reads the mean of the squared gradients of single images, which is
    put where it expects it: the importance's own `accumulate_grad` (1.6.1) looks gradients up by name and stores them
    by parameter, so that only the last image would be left of its sum.
    """
    model.zero_grad(set_to_none=True)
    if method.startswith("taylor"):
        for _, (images, labels) in zip(range(40), batches, strict=False):
            F.cross_entropy(model(images), labels).backward()
    elif method.startswith("hessian"):
        parameters = list(model.parameters())
        squares = [torch.zeros_like(parameter) for parameter in parameters]
        for image, label in _single(batches, HESSIAN_IMAGES):
            each = torch.autograd.grad(F.cross_entropy(model(image), label), parameters)
            for total, one in zip(squares, each, strict=True):
                total += one.square() / HESSIAN_IMAGES
        for parameter, total in zip(parameters, squares, strict=True):
            parameter.grad = total


HESSIAN_IMAGES = 500


def _single(batches: Any, most: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The first images, one by one."""
    every = (
        (image[None], label[None]) for images, labels in batches for image, label in zip(images, labels, strict=True)
    )
    return itertools.islice(every, most)


# onnxsim and ModelOpt


def onnxsim_at(model: nn.Module, example: Tensor, how: str, target: float, images: Any) -> nn.Module:
    """onnxsim's structured pruning ("l2", "wanda", "l2:global") of the exported network, as a PyTorch network.

    It takes a share for all layers: the smallest one, in steps of half a per cent, that removes the target. Which
    channels it kept is found by comparing the filters; that network is run beside onnxsim's own file.
    """
    import numpy as np
    import onnx
    import onnxruntime
    import onnxsim

    graph = prunus.trace(model, example)
    folded = fold_batch_norm(model, example)
    name, _, where = how.partition(":")
    options: dict[str, Any] = {"global_sparsity": where == "global"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        prunus.export(folded, example, path, progress=False)
        whole = onnx.load(str(path))
    if name == "wanda":
        entry = whole.graph.input[0].name
        options["calibration_data"] = [{entry: x.numpy()} for x, _ in itertools.islice(images, WANDA_BATCHES)]
    prune = onnxsim.apply_structured_wanda_pruning if name == "wanda" else onnxsim.apply_structured_pruning

    def cut_by(share: int) -> tuple[Any, nn.Module]:
        small = prune(copy.deepcopy(whole), sparsity=share / 200, **options)
        weights = {each.name: onnx.numpy_helper.to_array(each) for each in small.graph.initializer}
        keep = {}
        for title, layer in folded.named_modules():
            if isinstance(layer, nn.Conv2d) and f"{title}:out" in graph.units:
                keep[f"{title}:out"] = same_filters(torch.tensor(weights[f"{title}.weight"]), layer.weight)
        return small, prunus.prune(graph, prunus.Plan.of(graph, keep))

    goal = graph.macs * (1 - target + 0.002)
    share = bisect_left(range(190), True, key=lambda share: macs_of(cut_by(share)[1], example) <= goal)
    file, small = cut_by(share)
    some = next(iter(images))[0][:8]
    got = onnxruntime.InferenceSession(file.SerializeToString()).run(None, {file.graph.input[0].name: some.numpy()})[0]
    with torch.no_grad():
        assert np.allclose(got, small(some).numpy(), rtol=1e-3, atol=1e-3), "not the network that onnxsim made"
    return small


WANDA_BATCHES = 8


def fastnas(model: nn.Module, example: Tensor, target: float, train: Any, holdout: Any) -> nn.Module:
    """ModelOpt's FastNAS: a search for the widths that lose the least held-out accuracy at these FLOPs.

    Widths may be any multiple of 1 (by default only multiples of 32, more than most of these layers have). Scores are
    the accuracy on the held-out batches, after ModelOpt has estimated the batch norms again on training batches.
    """
    import modelopt.torch.prune as mtp

    def accuracy(network: nn.Module) -> float:
        network.eval()
        with torch.no_grad():
            right = [(network(images).argmax(1) == labels).float().mean() for images, labels in holdout]
        return float(torch.stack(right).mean())

    ratios = tuple(share / 8 for share in range(1, 9))
    rules = {
        "nn.Conv2d": {"*": {"channels_ratio": ratios, "kernel_size": (), "channel_divisor": 1}},
        "nn.BatchNorm2d": {"*": {"features_ratio": ratios, "feature_divisor": 1}},
        "nn.Linear": {"*": {"features_ratio": ratios, "feature_divisor": 1}},
    }
    found, _ = mtp.prune(
        model=copy.deepcopy(model),
        mode=[("fastnas", rules)],
        constraints={"flops": f"{100 * (1 - target):g}%"},
        dummy_input=example,
        config={"data_loader": train, "score_func": accuracy, "verbose": False},
    )
    return found


def kept_by(model: nn.Module, small: nn.Module) -> dict[str, list[int]]:
    """Unit -> inner channels of the blocks that a smaller network kept."""
    return {
        f"{name}:out": same_filters(small.get_parameter(f"{name}.weight"), layer.weight)
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Conv2d) and name.endswith(".conv1")
    }


def same_filters(some: Tensor, every: Tensor) -> list[int]:
    """Numbers of the filters of a layer that are nearest to some of them."""
    distances = torch.cdist(some.detach().flatten(1), every.detach().flatten(1))
    return distances.argmin(1).sort().values.tolist()  # type: ignore[no-any-return]


# Its graph on the networks of the zoo: everything that it offers is cut by 25% to 50% at once, and compared. What a
# pruned network should compute is known without either tool: the network as it was, in which the removed channels are
# zero where they leave their layers and where they enter the next ones.

EXACT = {torch.float64: 1e-9, torch.float32: 1e-4}  # relative
Gone = dict[str, dict[str, list[int]]]  # layer -> "in" and "out" -> channels removed, in the numbers of the whole layer


def examine(name: str) -> dict[str, Any]:
    """Its verdict ("exact", "wrong", "crashed", "nothing"), why, and how many groups and layers it cuts."""
    model, example = zoo_nets.prepared(name)
    small = copy.deepcopy(model)
    try:
        groups, gone = cut_everything(small, example)
    except Exception as error:  # noqa: BLE001  (whatever it is, it belongs in the table)
        return {"verdict": "crashed", "why": f"while it prunes: {_first_line(error)}"}
    norms = any(isinstance(module, (nn.LayerNorm, nn.GroupNorm)) for module in model.modules())
    layers = sum(not is_depthwise(model.get_submodule(layer)) for layer in gone)
    counts = {"groups": groups, "layers": layers, "norms": norms}
    if not groups:
        return {"verdict": "nothing", **counts}
    with torch.no_grad():
        want = proof.outputs(masked(model, gone), example)
    try:
        got = proof.outputs(small.eval(), example)
    except Exception as error:  # noqa: BLE001
        return {"verdict": "crashed", "why": f"when the pruned network runs: {_first_line(error)}", **counts}
    if [tuple(t.shape) for t in got] != [tuple(t.shape) for t in want]:
        return {"verdict": "wrong", "why": "an output has another shape", **counts}
    apart = max((_distance(one, other) for one, other in zip(got, want, strict=True)), default=0.0)
    return {"verdict": "exact" if apart <= EXACT[zoo_nets.entry(name).dtype] else "wrong", "error": apart, **counts}


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
                kind = "channels" if hasattr(module, "in_channels") else "features"
                now = left.setdefault(key, list(range(int(getattr(module, f"{side}_{kind}")))))
                lost = {channel for channel in channels if channel < len(now)}  # `prune` checks them
                gone[names[module]][side] += [now[channel] for channel in lost]
                left[key] = [channel for place, channel in enumerate(now) if place not in lost]
        group.prune()
    return groups, gone


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
    """Whether each channel has a filter for itself."""
    return isinstance(module, nn.modules.conv._ConvNd) and module.groups == module.in_channels > 1


def _distance(got: Tensor, want: Tensor) -> float:
    if not want.numel():
        return 0.0
    apart = (got - want).abs().max().item() / max(want.abs().max().item(), 1e-9)
    return apart if apart == apart else float("inf")


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:160]}"


def main() -> None:
    """All importances at one target: rows of the driver, without a repair and without training."""
    from benchmarks import cifar

    parser = cifar.parser(__doc__)
    parser.add_argument("--target", type=float, default=0.5)
    parser.add_argument("--tools", action="store_true", help="Prunus, onnxsim and ModelOpt as well")
    args = parser.parse_args()
    args.goal, args.repair, args.epochs = [f"macs={args.target:g}"], None if args.tools else "none", 0
    args.method = [f"torch-pruning:{name}" for name in IMPORTANCES]
    if args.tools:
        args.method += ["ours", "onnxsim:l2", "onnxsim:l2:global", "onnxsim:wanda", "onnxsim:wanda:global"]
        args.method += ["modelopt:fastnas"]
    cifar.run(args)


if __name__ == "__main__":
    main()
