"""LeNet-5 (LeCun et al. 1998) for 32x32 grey images, with ReLU and max pooling."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from secateur.zoo.models.registry import GREY32, register


class LeNet5(nn.Module):
    """Three 5x5 convolutions (6, 16, 120 filters) and two linear layers. The last convolution has a 1x1 output."""

    def __init__(self, num_classes: int = 10, in_channels: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.conv3 = nn.Conv2d(16, 120, 5)
        self.fc1 = nn.Linear(120, 84)
        self.fc2 = nn.Linear(84, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of a batch of images."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)  # [N, 6, 14, 14]
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)  # [N, 16, 5, 5]
        x = F.relu(self.conv3(x))  # [N, 120, 1, 1]
        x = F.relu(self.fc1(torch.flatten(x, 1)))  # [N, 84]
        return self.fc2(x)  # type: ignore[no-any-return]


@register("lenet5", GREY32, "grey images")
def lenet5(num_classes: int = 10, in_channels: int = 1) -> nn.Module:
    """LeNet-5."""
    return LeNet5(num_classes, in_channels)
