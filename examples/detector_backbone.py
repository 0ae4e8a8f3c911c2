"""A detector: its backbone is pruned by itself, because the whole cannot be traced.

    python examples/detector_backbone.py         # --small: a shorter training, for the tests

Like the detectors of torchvision, this one takes (images, targets) in training and returns losses, and in eval mode
returns a list of boxes for each image, as many as it finds. Such a forward has no fixed graph. The backbone has one:
images in, feature maps out. Its output keeps its channels, so that the heads fit as before.

No goal is given, so the result is the fastest backbone that loses at most one point of F1 on the held-out images.

It printed, on one thread (times depend on the machine):

    1.86x as fast in onnxruntime at batch 1 (1.84 to 1.87), 98.76% -> 97.83% test F1
    Goal reached: 0.60 points of held-out F1 lost, at most 1 allowed.
                                    before    after
      ms in onnxruntime at batch 1  0.146     0.0792    1.86x (1.84 to 1.87)
      ms in eager at batch 1        0.493     0.362     1.36x (1.27 to 1.44)
      ms in openvino at batch 1     0.227     0.165     1.40x (1.28 to 1.49)
      held-out F1                   99.06%    98.47%    -0.60 points
      test F1                       98.76%    97.83%    -0.93 points
      MACs                          7.52 M    3.39 M    -54.9%
      weights                       60.05 K   30.10 K   -49.9%
      bytes on disk                 244.07 K  123.30 K  -49.5%
    the first test image: [{'cells': tensor([[4, 1],
            [4, 6],
            [6, 1]]), 'digits': tensor([9, 1, 0])}]
"""

import copy
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import prunus

SMALL = "--small" in sys.argv


def conv(inputs, outputs, stride=1):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU())


class Detector(nn.Module):
    """On a grid of 8 x 8 cells: is the centre of a digit in this cell, and which digit?"""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(conv(1, 16), conv(16, 32, stride=2), conv(32, 48), conv(48, 48, 2), conv(48, 48))
        self.there, self.kind = nn.Conv2d(48, 1, 1), nn.Conv2d(48, 10, 1)

    def forward(self, images, targets=None):
        features = self.backbone(images)
        return self.loss(features, targets) if self.training else self.found(features)

    def loss(self, features, targets):  # targets [N, 8, 8]: the digit in each cell, or -1
        there, weight = self.there(features)[:, 0], torch.tensor(8.0)
        found = F.binary_cross_entropy_with_logits(there, (targets >= 0).float(), pos_weight=weight)
        return found + F.cross_entropy(self.kind(features), targets, ignore_index=-1)

    def found(self, features):
        there, kind = self.there(features)[:, 0] > 0, self.kind(features).argmax(1)
        return [{"cells": cells.nonzero(), "digits": digits[cells]} for cells, digits in zip(there, kind, strict=True)]


def scenes(count, seed):
    """Images [count, 1, 32, 32] with three digits, and targets [count, 8, 8]. In batches of 32."""
    digits, draw = load_digits(), torch.Generator().manual_seed(seed)
    images, targets = 0.1 * torch.randn(count, 1, 32, 32, generator=draw), torch.full((count, 8, 8), -1)
    for image, target in zip(images, targets, strict=True):
        corners = torch.randperm(9, generator=draw)[:3] * 10  # three of nine places that do not overlap
        for n, corner in zip(torch.randint(1797, (3,), generator=draw).tolist(), corners.tolist(), strict=True):
            y, x = corner // 30 * 10 + 2, corner % 30 + 2
            image[0, y : y + 8, x : x + 8] += torch.tensor(digits.images[n] / 16)
            target[(y + 4) // 4, (x + 4) // 4] = int(digits.target[n])
    return list(zip(images.split(32), targets.split(32), strict=True))


torch.manual_seed(0)
train, holdout, test = (scenes(256 if SMALL else 1280, seed) for seed in range(3))
detector = Detector()
optimizer = torch.optim.Adam(detector.parameters(), 0.005)
for images, targets in train * (6 if SMALL else 12):
    optimizer.zero_grad()
    detector.train()(images, targets).backward()
    optimizer.step()
detector.eval()


def counts(features, targets):
    """Digits that the heads find in these features in the right cell, all that they find, all that are there."""
    found = detector.found(features)
    hits = [target[tuple(one["cells"].T)] == one["digits"] for one, target in zip(found, targets, strict=True)]
    return torch.stack([torch.cat(hits).sum(), torch.tensor(len(torch.cat(hits))), (targets >= 0).sum()])


task = prunus.Task(
    loss=detector.loss,  # used if epochs= asks for retraining
    quality=prunus.Quality(counts, name="F1", unit="%", value=lambda sums: float(2 * sums[0] / (sums[1] + sums[2]))),
)
result = prunus.compress(detector.backbone, train, holdout, test=test, task=task)
print(result)

smaller = copy.deepcopy(detector)
smaller.backbone = result.model
print("the first test image:", smaller(test[0][0][:1]))
