"""A network for some of its classes: the rows of the others leave the layer that writes the outputs."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from prunus.errors import TraceError
from prunus.graph.channel_graph import ChannelGraph, trace
from prunus.graph.compare import distance, in_mode, outputs_of, randomised
from prunus.graph.traced import CONVOLUTIONS, TRANSPOSED, Example
from prunus.util.state import undisturbed

ROUNDING = 1e-4  # of how much the outputs vary


def keep_classes(model: nn.Module, example: Example, classes: Sequence[int]) -> nn.Module:
    """A copy of a classifier, or of a network with a class for each pixel, that knows only some of its classes.

    The outputs for these classes are what they were; that is checked on random inputs. Pruned on images of these
    classes, such a network loses more channels for the same accuracy.

    Args:
        model: the network; it is not changed.
        example: an input of it, as for `trace`.
        classes: numbers of the classes to keep, in the order of the new outputs.

    Raises:
        TraceError: there is no such class, or the outputs are not those of one linear or convolution layer.
    """
    graph = trace(model, example, check=False)
    layer, count = _writer_of_outputs(graph)
    numbers = [int(number) for number in classes]
    wrong = next((n for n in numbers if not 0 <= n < count), None)
    if not numbers or wrong is not None or len({*numbers}) < len(numbers):
        got = "none" if not numbers else f"{wrong}" if wrong is not None else f"{numbers}, some of them twice"
        raise TraceError(f"classes are different numbers from 0 to {count - 1}; got {got}")
    with undisturbed(model):
        small = copy.deepcopy(model)
    index = torch.tensor(numbers)
    _narrow(small.get_submodule(layer), index)
    _check_equal(model, small, graph.example, index, layer)
    return small


def _writer_of_outputs(graph: ChannelGraph) -> tuple[str, int]:
    """The layer whose outputs are those of the network, and their number."""
    analysis = graph.analysis
    (result,) = next(node for node in analysis.traced.graph.nodes if node.op == "output").args
    labels = analysis.record.values.get(getattr(result, "name", ""))
    if isinstance(labels, Tensor) and labels.dim() > 1:
        found = labels.movedim(1, 0).reshape(labels.size(1), -1)[:, 0].numpy()
        if (found >= 0).all():
            channels = analysis.of_label[found]
            for name, written in analysis.writes.items():
                if len(written) == len(channels) and (written == channels).all():
                    return name, len(channels)
    raise TraceError(
        "classes can be left out of a network whose only output [N, classes, ...] is that of a linear or convolution "
        "layer; take off a softmax behind it"
    )


def _narrow(layer: Any, index: Tensor) -> None:
    if isinstance(layer, TRANSPOSED) or getattr(layer, "groups", 1) > 1:
        raise TraceError("classes cannot be left out of a grouped or transposed convolution")
    for name in ("weight", "bias"):
        parameter = layer._parameters.get(name)
        if parameter is not None:
            rows = parameter.detach()[index.to(parameter.device)].clone()
            layer._parameters[name] = nn.Parameter(rows, requires_grad=parameter.requires_grad)
    setattr(layer, "out_channels" if isinstance(layer, CONVOLUTIONS) else "out_features", len(index))


def _check_equal(model: nn.Module, small: nn.Module, example: Example, index: Tensor, layer: str) -> None:
    inputs = randomised(example)
    with in_mode(model, "eval"), in_mode(small, "eval"):
        (want,), (got,) = outputs_of(model, inputs), outputs_of(small, inputs)
    want = want.index_select(1, index.to(want.device))
    if got.shape != want.shape or distance([got.reshape(-1)], [want.reshape(-1)]) > ROUNDING:
        raise TraceError(
            f"without some outputs of {layer} the others change: something behind it, such as a softmax, mixes them. "
            "Take it off, and give the network's own outputs"
        )
