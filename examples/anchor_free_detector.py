"""A small anchor-free detector of your own: pruned for AP, by the task detection.

    python examples/anchor_free_detector.py      # --small: a shorter training, for the tests

At every fourth pixel it predicts a class, and the distances of the sides of a box. A function of yours makes boxes of
the output; the loss is yours too, and trains the detector and, with epochs=, the pruned one.

`pip install "prunus[detection]"`
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import prunus

SMALL = "--small" in sys.argv
SIDE, STRIDE = 64, 4


def conv(inputs, outputs, stride=1):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU())


class Detector(nn.Module):
    """Scores of classes [N, 10, 16, 16], and the distances of left, top, right and bottom [N, 4, 16, 16]."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(conv(1, 16, 2), conv(16, 32, 2), conv(32, 48), conv(48, 48), conv(48, 48))
        self.kind, self.sides = nn.Conv2d(48, 10, 1), nn.Conv2d(48, 4, 1)
        nn.init.constant_(self.kind.bias, -4.0)  # most places are background

    def forward(self, images):
        features = self.body(images)
        return {"kind": self.kind(features), "sides": F.softplus(self.sides(features)) * STRIDE}


def places(output):
    """The pixel in the middle of each place [2, 16, 16]: x, y."""
    steps = torch.arange(output["kind"].shape[-1]) * STRIDE + STRIDE / 2
    return torch.stack(torch.meshgrid(steps, steps, indexing="xy"))


def decode(output):
    """Boxes, scores and labels of each image: places that are more likely than their neighbours."""
    scores, labels = output["kind"].sigmoid().max(1)
    peaks = scores == F.max_pool2d(scores[:, None], 3, 1, 1)[:, 0]
    middle, found = places(output), []
    for score, label, peak, sides in zip(scores, labels, peaks & (scores > 0.01), output["sides"], strict=True):
        boxes = torch.cat([middle - sides[:2], middle + sides[2:]])[:, peak].T
        found.append({"boxes": boxes, "scores": score[peak], "labels": label[peak]})
    return found


def loss(output, labels):
    """Cross-entropy of the place in the middle of each object against all others, and the relative error of its box."""
    target, terms, middle = torch.zeros_like(output["kind"]), [], places(output)
    for n, one in enumerate(labels):
        for box, label in zip(one["boxes"], one["labels"], strict=True):
            x, y = ((box[:2] + box[2:]) / 2 // STRIDE).long().tolist()
            target[n, label, y, x] = 1.0
            wanted = torch.cat([middle[:, y, x] - box[:2], box[2:] - middle[:, y, x]])
            terms.append(F.l1_loss(output["sides"][n, :, y, x], wanted))
    found = F.binary_cross_entropy_with_logits(output["kind"], target, pos_weight=torch.tensor(4.0))
    return 40 * found + torch.stack(terms).mean() / STRIDE


def scenes(count, seed):
    """Images [count, 1, 64, 64] of three digits, enlarged two or three times, with boxes. In batches of 16."""
    digits, draw = load_digits(), torch.Generator().manual_seed(seed)
    images, labels = 0.1 * torch.randn(count, 1, SIDE, SIDE, generator=draw), []
    for image in images:
        boxes, kinds = [], []
        for corner in (torch.randperm(4, generator=draw)[:3]).tolist():  # three of four quarters
            number, times = (
                torch.randint(1797, (), generator=draw).item(),
                torch.randint(2, 4, (), generator=draw).item(),
            )
            digit = torch.tensor(digits.images[number] / 16).repeat_interleave(times, 0).repeat_interleave(times, 1)
            rows, columns = (digit.amax(1) > 0.2).nonzero(), (digit.amax(0) > 0.2).nonzero()
            shift = torch.randint(0, 32 - 8 * times + 1, (2,), generator=draw).tolist()
            y, x = corner // 2 * 32 + shift[0], corner % 2 * 32 + shift[1]
            image[0, y : y + 8 * times, x : x + 8 * times] += digit
            boxes.append([x + columns.min(), y + rows.min(), x + columns.max() + 1, y + rows.max() + 1])
            kinds.append(int(digits.target[number]))
        labels.append({"boxes": torch.tensor(boxes).float(), "labels": torch.tensor(kinds)})
    return [(images[i : i + 16], labels[i : i + 16]) for i in range(0, count, 16)]


torch.manual_seed(0)
train, holdout, test = (scenes(192 if SMALL else 960, 0), *(scenes(64 if SMALL else 256, seed) for seed in (1, 2)))
detector, epochs = Detector(), 10 if SMALL else 12
optimizer = torch.optim.Adam(detector.parameters(), 0.004)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.004, epochs * len(train))
for images, labels in train * epochs:
    optimizer.zero_grad()
    loss(detector.train()(images), labels).backward()
    optimizer.step()
    schedule.step()
detector.eval()

task = prunus.detection(decode, loss=loss)
result = prunus.compress(detector, train, holdout, test=test, task=task, target=0.4, timing=not SMALL)
print(result)
