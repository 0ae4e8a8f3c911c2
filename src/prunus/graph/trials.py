"""The modes, inputs and weights with which `trace` tries a network: as small as the network allows."""

from __future__ import annotations

import ast
import inspect
import operator
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves, tree_map

from prunus.errors import TraceError
from prunus.graph.compare import (
    WITH_GRADIENTS,
    Run,
    copied,
    distance,
    few_images,
    flattened,
    in_mode,
    outputs_of,
    randomised,
    run_of,
)
from prunus.graph.multihead import Uses, has_attention, written_out
from prunus.graph.norms import modules_with_means
from prunus.graph.own_widths import with_own_widths
from prunus.graph.rules.attention import PRODUCTS
from prunus.graph.runner import GraphRunner, last_uses
from prunus.graph.traced import Example, Traced, as_call, named_modules
from prunus.graph.watch import Inside, Watch
from prunus.util.state import generators_kept, module_state_kept

_SIDES = (64, 128)  # pixels of images in trials, if they are larger: five halvings leave two pixels, or four
_LARGER = 1.5  # how much larger
_HALVED = 32  # pixels of the smallest side that is halved
_LARGEST = 128  # pixels of a side that is tried because the code compares sizes with it, or twice the example's
_FAR = 512  # likewise, if it compares them with a number of that size
_MOST_IMAGES = 64  # that are tried because the code compares their number
_MOST_ARGUMENTS = 4  # other values of arguments that are tried
_COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)


@dataclass
class Trial:
    """One run in a mode of `in_mode`, on the first of these inputs on which the network runs; others are removed. Its
    numbers are random, unless it is to be run as it is."""

    mode: str
    inputs: list[Example]
    as_it_is: bool = False
    given: str = ""  # an argument that the example leaves out, as in "normalise=True"
    _drawn: Example | None = None

    def drawn(self) -> Example:
        """The inputs to run."""
        if self._drawn is None:
            self._drawn = self.inputs[0] if self.as_it_is else randomised(self.inputs[0])
        return self._drawn

    def next(self) -> None:
        """Go on to the next inputs."""
        self.inputs.pop(0)
        self._drawn = None


def trials_for(traced: Traced, example: Example, inside: Inside | None = None) -> tuple[list[Trial], Run | None]:
    """Trials in eval mode, and in training mode on images of another, oblong size; and at further sizes, or with more
    images, if the code compares these; and with other values of arguments that the example leaves out. All on random
    inputs: small images, or of the shape of the example where the network needs that.

    Also returns the run of the whole network in the first trial, with what happens inside; None if it does not run.
    """
    model = traced.model
    one, full = few_images(example, 1), _size_of(example)
    small = [(side, side) for side in _SIDES if full and min(full) > _LARGER * side]
    large = bool(small)
    if full and not large and min(full) >= _HALVED:
        small = [(full[0] // 2, full[1] // 2)]
    evaluation = Trial("eval", [*(_resized(one, *size) for size in small), one, example])
    run = None
    while evaluation.inputs and run is None:
        try:
            with in_mode(model, "eval"):
                run = run_of(model, evaluation.drawn(), watch=None if inside is None else Watch(inside, False))
        except Exception:  # noqa: BLE001  whatever the model's own code raises
            evaluation.next()
    trials, size = [evaluation] if evaluation.inputs else [], _size_of(evaluation.inputs[0] if run else example)
    # Batch norms in training mode need more than one value. Over a few values, as at the end of a network that halves
    # small images five times, they magnify rounding so much that it would have to be told apart in float64.
    count = 4 if large and size in small else 2

    def repeat(value: Any) -> Any:
        lonely = isinstance(value, Tensor) and value.dim() > 1 and value.size(0) == 1
        return torch.cat([value] * count) if lonely else value

    several = few_images(tree_map(repeat, example), count)
    other = [(size[0], size[1] * 3 // 2), size] if size else []
    if size in small and min(size) >= _HALVED:
        other.insert(0, (size[0] // 2, size[1] * 3 // 4))
    trials.append(Trial("training" + WITH_GRADIENTS, [*(_resized(several, *each) for each in other), several, example]))
    for height, width in _sizes_compared(traced, size if large else full) if size and full else ():
        trials.append(Trial("eval", [_resized(one, height, width)]))
    if run:
        trials += [Trial("eval", [inputs]) for inputs in _other_forms(traced, evaluation.inputs[0])]
        trials += _other_arguments(model, evaluation.inputs[0])
    return trials, run


def _size_of(example: Example) -> tuple[int, int] | None:
    """Height and width of the first image; None if there are no images."""
    images = (value for value in tree_leaves(example) if isinstance(value, Tensor) and value.dim() >= 4)
    return next(((image.size(-2), image.size(-1)) for image in images), None)


def _resized(example: Example, height: int, width: int) -> Example:
    """The example with images, and what has their size, repeated or cropped to another size."""
    size = _size_of(example)

    def resize(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() < 3 or tuple(value.shape[-2:]) != size:
            return value
        if height <= value.size(-2) and width <= value.size(-1):
            return value[..., :height, :width]
        rows, columns = torch.arange(height) % value.size(-2), torch.arange(width) % value.size(-1)
        return value[..., rows.to(value.device), :][..., columns.to(value.device)]

    return tree_map(resize, example)


def _sizes_compared(traced: Traced, size: tuple[int, int]) -> list[tuple[int, int]]:
    """Sizes for further trials: on both sides of the numbers that the code compares heights, widths or areas with, to
    choose its path; of the other parity if it asks for remainders or whether two sizes are equal; oblong and larger
    ones if it looks at sizes in another way, or catches the errors that some sizes may raise."""
    guards = [n for n in traced.graph.nodes if n.name in traced.guards]
    guards = [n for n in guards if n.target is not len]  # unpacking a shape asks how many sizes there are
    guards = [n for n in guards if _is_of_space(n, traced)]
    # Attention over all pixels takes the square of their number.
    products = any(n.target in PRODUCTS for n in traced.graph.nodes)
    largest = max(0 if products else _LARGEST, 2 * max(size))
    farthest = max(0 if products else _FAR, largest)
    sides: set[int] = set()
    # Sizes that are divided may leave a remainder, and views of them fail.
    remainder = any(n.target is operator.floordiv and _is_of_space(n, traced) for n in traced.graph.nodes)
    kinds: set[Any] = {type(module) for module in traced.model.modules()}
    other = any(map(_catches_errors, kinds))
    for node in guards:
        numbers = [n for n in node.args if isinstance(n, int | float)] if node.target in _COMPARISONS else []
        near = {int(side) for n in numbers for side in (n, max(n, 0) ** 0.5) if 4 <= side <= farthest}
        divides = any(used.target is operator.mod for used in (node, *node.all_input_nodes))
        # Two sizes that are equal after halving and doubling are not if they are odd.
        matched = node.target in (operator.eq, operator.ne) and not numbers
        sides, remainder, other = sides | near, remainder or divides or matched, other or not (near or divides)
    found: list[tuple[int, int]] = []
    for side in sorted(sides)[-2:]:
        below = side // 16 * 8 or (8 if side > 8 else side // 2)
        found += [(below, below), (side // 8 * 8 + 8, side // 8 * 8 + 16)]
    rows, columns = size
    larger = [(rows * 5 // 2, columns * 7 // 2), (rows * 3, columns), (rows, columns * 3), (largest, largest)]
    found += larger if other and not found else []
    return found + ([(rows + 1, columns + 3)] if remainder else [])


def _other_forms(traced: Traced, example: Example) -> list[Example]:
    """The example in other forms that the code asks for: with more images than the largest number that it compares
    their number with, without a batch, in channels_last."""
    numbers: set[int] = {0}
    forms: list[Callable[[Tensor], Tensor]] = []

    def is_count(node: Any) -> bool:
        sizes = isinstance(node, fx.Node) and node.target in (operator.getitem, "size") and node.args[1:] == (0,)
        return sizes and not _is_of_space(node, traced)

    for node in traced.graph.nodes:
        if node.name not in traced.guards:
            continue
        if is_count(node):  # whatever the code does with it
            numbers.add(_MOST_IMAGES // 2)
        elif node.target in _COMPARISONS and any(map(is_count, node.all_input_nodes)):
            numbers |= {n for n in node.args if isinstance(n, int) and 0 < n <= _MOST_IMAGES}
        elif node.target in _COMPARISONS and any(used.target == "dim" for used in node.all_input_nodes):
            forms.append(lambda image: image[0] if image.dim() > 1 else image)
        elif node.target == "is_contiguous":
            forms.append(lambda image: image.to(memory_format=torch.channels_last) if image.dim() == 4 else image)
    if max(numbers):
        index = torch.arange(max(numbers) + 1)
        forms.append(lambda image: image[index.to(image.device) % len(image)] if image.dim() > 1 else image)
    return [tree_map(lambda v, f=form: f(v) if isinstance(v, Tensor) else v, example) for form in forms[:4]]


def _other_arguments(model: nn.Module, example: Example) -> list[Trial]:
    """Trials with other values of the arguments of forward that the example leaves out: flags the other way round, and
    numbers and texts that forward compares them with. Such a path may read channels that the usual one does not."""
    args, kwargs = as_call(example)
    signature = inspect.signature(model.forward)
    given = signature.bind(*args, **kwargs).arguments
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if any(signature.parameters[name].kind not in named for name in given):
        return []
    defaults = {n: p.default for n, p in signature.parameters.items() if n not in given and p.kind in named}
    values = [(name, not value) for name, value in defaults.items() if isinstance(value, bool)]
    values += [(name, value) for name, value in _compared(model, defaults) if value != defaults[name]]
    return [
        Trial("eval", [{**given, name: value}], given=f"{name}={value!r}")
        for name, value in list(dict.fromkeys(values))[:_MOST_ARGUMENTS]
    ]


def _catches_errors(kind: Any) -> bool:
    """Whether the code of forward of a class has a `try`. Layers of PyTorch take no other path by it."""
    forward = getattr(kind, "forward", None)
    return not kind.__module__.startswith("torch.") and isinstance(forward, FunctionType) and _has_try(forward)


@lru_cache(maxsize=512)
def _has_try(function: FunctionType) -> bool:
    return any(isinstance(node, ast.Try) for node in ast.walk(_code_of(function)))


def _code_of(function: Any) -> ast.Module:
    """The code of a function; nothing if it cannot be read."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, SyntaxError):
        return ast.Module([], [])


def _compared(model: nn.Module, defaults: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Texts that the code of forward compares its arguments with, and numbers on both sides of those."""
    kinds = {name: type(value) for name, value in defaults.items() if type(value) in (int, float, str)}
    found: list[tuple[str, Any]] = []
    for node in ast.walk(_code_of(model.forward)) if kinds else ():
        if isinstance(node, ast.Compare):
            values: list[Any] = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
            values += [number + step for number in values if type(number) in (int, float) for step in (1, -1)]
            for name in (part.id for part in ast.walk(node) if isinstance(part, ast.Name) and part.id in kinds):
                found += [(name, v) for v in values if type(v) is kinds[name] or (type(v), kinds[name]) == (int, float)]
    return found


def _is_of_space(node: fx.Node, traced: Traced, depth: int = 4) -> bool:
    """Whether a number is computed from sizes of images, and not of batches or channels only."""
    whole = (node.target is getattr and node.args[1] == "shape") or (node.target == "size" and len(node.args) == 1)
    if node.target in ("numel", "stride", Tensor.stride) or (
        whole and len(traced.shapes.get(node.all_input_nodes[0].name, ())) > 2
    ):
        return True
    if node.target in (operator.getitem, "size") and len(node.args) > 1 and isinstance(node.args[1], int | slice):
        source = node.all_input_nodes[0]
        if source.target is operator.getitem:  # of a part of a shape
            return _is_of_space(source, traced)
        tensors = [source] if node.target == "size" else source.all_input_nodes
        shapes = [traced.shapes.get(tensor.name) for tensor in tensors]
        return node.args[1] not in (0, 1) or any(isinstance(shape, torch.Size) and len(shape) < 3 for shape in shapes)
    return depth > 0 and any(_is_of_space(used, traced, depth - 1) for used in node.all_input_nodes)


# -- check a recorded graph: run node by node, it must compute what the model computes

_ROUNDING = 1e-3  # both run the same calls: only the code of another path differs by more


def twin_for(model: nn.Module, example: Example, *, with_means: bool = False) -> nn.Module | None:
    """The network with the attentions of PyTorch written out, and on request with modules for the means in its code.
    None if it has none, or would compute something else."""
    averaging = [m for m in modules_with_means(model) if with_own_widths(m) is None] if with_means else []
    if not averaging and (with_means or not has_attention(model)):
        return None
    uses, drawn = Uses(), randomised(example)
    try:
        with in_mode(model, "eval"):
            with ExitStack() as hooks:
                uses.watch(model, hooks)
                outputs_of(model, drawn)
            output = outputs_of(model, drawn)  # without hooks, with which nn.TransformerEncoder takes another path
            twin = written_out(model, uses, averaging)
        with in_mode(twin, "eval"):
            same = distance(outputs_of(twin, drawn), output) <= _ROUNDING
        return twin if same and (not averaging or _trains_alike(twin, model, drawn)) else None
    except Exception:  # noqa: BLE001  whatever the model's own code raises
        return None


def _trains_alike(twin: nn.Module, model: nn.Module, inputs: Example) -> bool:
    """Whether a twin computes in training mode, without dropout, what its network computes there, if that runs at all:
    code may ask for its class or its children."""
    found: list[list[Any]] = []
    for network in (model, twin):
        with in_mode(network, "training"), module_state_kept(network):
            for module in network.modules():
                if isinstance(module, nn.MultiheadAttention):
                    module.dropout = 0.0
            try:
                found.append(run_of(network, inputs, dropout=False).output)
            except Exception:  # noqa: BLE001  whatever the model's own code raises
                return network is model
    return distance(*found) <= _ROUNDING


def check_recording(traced: Traced, example: Example, inputs: Example, run: Run | None) -> None:
    """Raise TraceError unless the graph computes what the model computes: what this run gave for these inputs, or else
    what it gives for random inputs of the shape of the example.

    Code that looks at sizes may be recorded for the sizes of the example only. The example itself would not show that
    something computed from it was recorded as a constant.
    """

    def apart(inputs: Example, output: list[Any]) -> float:
        runner = GraphRunner(traced)
        # What the model does not change, its calls do not.
        state = nullcontext() if run is not None and not run.changed else module_state_kept(traced.model)
        try:
            with state, generators_kept(0):
                values = runner.bind(copied(inputs))
                return distance(flattened(runner.run(values, free=last_uses(runner.nodes))), output)
        except Exception:  # noqa: BLE001  whatever the model's own code raises
            return float("inf")

    with in_mode(traced.model, "eval"):
        if run is not None and not traced.guards and apart(inputs, run.output) <= _ROUNDING:
            return
        drawn = randomised(example)
        error = apart(drawn, outputs_of(traced.model, drawn))
    if error > _ROUNDING:
        raise TraceError(
            f"the calls recorded from {type(traced.model).__name__} do not compute what the model computes on the "
            f"example (the outputs differ by {error:.2g} of their size). Its code probably takes another path while it "
            "is recorded, or keeps something from one call to the next. Move that code into a module of its own and "
            "give that class a rule with prunus.register_rule(Class, prunus.rules.unknown)."
        )


# -- weights that show what a trial is for: an untrained network scales by ones and adds zeros, which hides errors

_SMALL = 0.05  # a smaller factor would hide the branch that it scales


@contextmanager
def constants_varied(model: nn.Module) -> Iterator[None]:
    """Inside the block, numbers differ in each parameter and statistic whose numbers are all equal.

    They are within 30% of the constant, or between 0.1 and 0.3 if that is small. The tensors are restored afterwards.
    """
    tensors: dict[int, Tensor] = {}
    for _, module in named_modules(model):
        statistics = [b for name, b in module._buffers.items() if name in ("running_mean", "running_var")]
        tensors |= {id(t): t for t in (*module._parameters.values(), *statistics) if t is not None}
    found = [(tensor, _constant(tensor.detach())) for tensor in tensors.values()]
    constant = [tensor for tensor, number in found if number is not None]
    saved = [tensor.data for tensor in constant]
    counts = torch.tensor([tensor.numel() for tensor in constant], dtype=torch.long)
    value = torch.tensor([number for _, number in found if number is not None]).repeat_interleave(counts)
    drawn = torch.rand(len(value), generator=torch.Generator().manual_seed(0))
    varied = torch.where(value.abs() >= _SMALL, value * (0.7 + 0.6 * drawn), 0.1 + 0.2 * drawn)
    try:
        for tensor, numbers in zip(constant, torch.split(varied, counts.tolist()) if constant else (), strict=True):
            tensor.data = numbers.view(tensor.shape).to(tensor.device, tensor.dtype)
        yield
    finally:
        for tensor, before in zip(constant, saved, strict=True):
            tensor.data = before


def _constant(tensor: Tensor) -> float | None:
    """The number that a tensor of several numbers is full of; None if they differ."""
    if not tensor.is_floating_point() or tensor.numel() < 2:
        return None
    plain = tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.float64)
    numbers: Any = (tensor.numpy() if plain else tensor).reshape(-1)  # numpy is faster for a few numbers
    first = numbers[0]
    return float(first) if bool(numbers[-1] == first) and bool((numbers == first).all()) else None
