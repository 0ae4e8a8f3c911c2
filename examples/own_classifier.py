"""Your own classifier: train it, remove half of its MACs without retraining, save it and load it again.

python examples/own_classifier.py            # --small: a shorter training, for the tests

It printed (and the time of a batch, which depends on the machine):

    Compressed Classifier in 1 round(s)
                         before    after
      held-out accuracy  99.44%    99.44%    +0.00 points
      test accuracy      99.72%    99.72%    +0.00 points
      MACs               599.68 K  299.72 K  -50.0%
      weights            23.82 K   8.12 K    -65.9%
      bytes on disk      97.60 K   33.74 K   -65.4%
    accuracy of the loaded network on test images: 0.9972144846796658
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import prunus


def conv(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(conv(1, 16), conv(16, 32), nn.MaxPool2d(2), conv(32, 64), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16  # [1797, 1, 8, 8]
parts = torch.utils.data.random_split(TensorDataset(images, torch.tensor(digits.target)), [0.6, 0.2, 0.2])
train, holdout, test = (DataLoader(part, batch_size=64, shuffle=part is parts[0]) for part in parts)

model = prunus.fit(Classifier(), train, epochs=3 if "--small" in sys.argv else 15, lr=0.1).model  # or your own training
result = prunus.compress(model, train, holdout, test=test, target=0.5)
print(result)

prunus.save(result.model, result.plan, "small-classifier")
loaded = prunus.load("small-classifier", Classifier()).eval()
print("accuracy of the loaded network on test images:", prunus.evaluate(loaded, test).quality)
