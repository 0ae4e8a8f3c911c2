"""A U-Net for segmentation: the task says what loss and quality are, everything else is as for a classifier.

    python examples/segmentation_unet.py         # --small: a shorter training, for the tests

The decoder concatenates the encoder's maps. Prunus follows the channels through the concatenation. No goal is given, so
the result is the fastest network that loses at most one point of mean IoU on the held-out images.

It printed, on one thread (times depend on the machine):

    2.05x as fast in onnxruntime at batch 1 (2.02 to 2.07), 80.34% -> 78.61% test mean IoU
    Goal reached: 0.87 points of held-out mean IoU lost, at most 1 allowed.
                                    before    after
      ms in onnxruntime at batch 1  0.2       0.0977   2.05x (2.02 to 2.07)
      ms in eager at batch 1        0.743     0.486    1.57x (1.41 to 1.67)
      ms in openvino at batch 1     0.234     0.187    1.31x (1.20 to 1.40)
      held-out mean IoU             80.17%    79.30%   -0.87 points
      test mean IoU                 80.34%    78.61%   -1.72 points
      MACs                          4.69 M    1.80 M   -61.5%
      weights                       25.63 K   10.90 K  -57.5%
      bytes on disk                 104.66 K  45.17 K  -56.8%
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F

import prunus

SMALL = "--small" in sys.argv


def conv(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.middle = conv(1, 12), conv(12, 24), conv(24, 32)
        self.up2, self.up1 = conv(32 + 24, 24), conv(24 + 12, 12)
        self.head = nn.Conv2d(12, 3, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.middle(F.max_pool2d(b, 2))
        b = self.up2(torch.cat([F.interpolate(c, scale_factor=2.0), b], 1))
        return self.head(self.up1(torch.cat([F.interpolate(b, scale_factor=2.0), a], 1)))


def discs_and_squares(count, seed):
    """Noisy images [count, 1, 24, 24], and for each pixel 0: background, 1: disc, 2: square. In batches of 32."""
    draw = torch.Generator().manual_seed(seed)
    rows, columns = torch.meshgrid(torch.arange(24), torch.arange(24), indexing="ij")
    labels = torch.zeros(count, 24, 24, dtype=torch.long)
    for label in labels:
        (y, v), (x, w) = torch.randint(5, 19, (2, 2), generator=draw)
        label[(rows - y) ** 2 + (columns - x) ** 2 <= 25] = 1
        label[((rows - v).abs() <= 3) & ((columns - w).abs() <= 3)] = 2
    images = 0.8 * (labels > 0).float() + 0.25 * torch.randn(labels.shape, generator=draw)
    return list(zip(images[:, None].split(32), labels.split(32), strict=True))


torch.manual_seed(0)
train, holdout, test = (discs_and_squares(256 if SMALL else 640, seed) for seed in range(3))
model = prunus.fit(UNet(), train, task="segmentation", epochs=4 if SMALL else 10, lr=0.1).model

result = prunus.compress(model, train, holdout, test=test, task="segmentation")  # loses at most one point
print(result)

prunus.export(result.model, train[0][0][:1], "unet.onnx")  # checked by onnxruntime before the file is written
