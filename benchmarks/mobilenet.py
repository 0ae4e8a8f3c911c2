"""MobileNetV2 (1.0, 224 pixels) with real ImageNet weights, from an 8-bit file of TensorFlow Lite (package tflite).

The file has 8-bit weights with one scale for each layer, and batch norms folded into them. They become 32-bit weights
of convolutions with a bias. TensorFlow pads an even image at its right and lower edge only.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

# expansion, channels, blocks and the first block's stride (Table 2 of the MobileNetV2 paper)
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def _convolution(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    if stride == 2:
        return [nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(inputs, outputs, kernel, stride, groups=groups)]
    return [nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups)]


class InvertedResidual(nn.Module):
    """A 1x1 convolution that expands, a depthwise one, and a 1x1 convolution that projects."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        expand = [*_convolution(inputs, hidden), nn.ReLU6()] if expansion > 1 else []
        depthwise = [*_convolution(hidden, hidden, 3, stride, groups=hidden), nn.ReLU6()]
        self.layers = nn.Sequential(*expand, *depthwise, *_convolution(hidden, outputs))
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return x + out if self.has_shortcut else out


class MobileNetV2(nn.Module):
    """MobileNetV2 with folded batch norms, for 1,000 classes."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [*_convolution(3, 32, 3, 2), nn.ReLU6()]
        width = 32
        for expansion, outputs, blocks, stride in STAGES:
            for place in range(blocks):
                layers.append(InvertedResidual(width, outputs, expansion, stride if place == 0 else 1))
                width = outputs
        self.features = nn.Sequential(*layers, *_convolution(width, 1280), nn.ReLU6())
        self.classifier = nn.Linear(1280, 1000)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return out


def from_tflite(path: Path) -> MobileNetV2:
    """The network of mobilenet_v2_1.0_224_quant.tflite with 32-bit weights; images are (pixel - 128) / 128."""
    import tflite

    file = tflite.Model.GetRootAs(path.read_bytes(), 0)
    graph = file.Subgraphs(0)
    kinds = (tflite.BuiltinOperator.CONV_2D, tflite.BuiltinOperator.DEPTHWISE_CONV_2D)

    def values(index: int) -> Tensor:
        tensor = graph.Tensors(index)
        kind = np.uint8 if tensor.Type() == tflite.TensorType.UINT8 else np.int32
        raw = file.Buffers(tensor.Buffer()).DataAsNumpy().view(kind).reshape(tensor.ShapeAsNumpy())
        how = tensor.Quantization()
        return torch.from_numpy((raw.astype(np.float64) - how.ZeroPoint(0)) * how.Scale(0)).float()

    pairs = []
    for place in range(graph.OperatorsLength()):
        operator = graph.Operators(place)
        kind = file.OperatorCodes(operator.OpcodeIndex()).BuiltinCode()
        if kind in kinds:
            weight, bias = (values(operator.Inputs(slot)) for slot in (1, 2))
            # (outputs, height, width, inputs), and (1, height, width, channels) of a depthwise convolution
            pairs.append((weight.permute(3, 0, 1, 2) if kind == kinds[1] else weight.permute(0, 3, 1, 2), bias))
    model = MobileNetV2()
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    with torch.no_grad():
        for layer, (weight, bias) in zip(layers, pairs[:-1], strict=True):
            layer.weight.copy_(weight)
            assert layer.bias is not None
            layer.bias.copy_(bias)
        weight, bias = pairs[-1]  # the first of its 1,001 classes is the background
        model.classifier.weight.copy_(weight[1:, :, 0, 0])
        model.classifier.bias.copy_(bias[1:])
    return model.eval()
