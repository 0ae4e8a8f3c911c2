"""Your own classifier: train it, make it as fast as it can be without retraining, save it and load it again.

python examples/own_classifier.py            # --small: a shorter training, for the tests

It printed, on one thread (times depend on the machine):

    1.33x as fast in onnxruntime at batch 1 (1.31 to 1.35), 99.72% -> 98.05% test accuracy
    Goal reached: 0.28 points of held-out accuracy lost, at most 1 allowed (standard error 0.48; on other images at most
    1.1 with 95% confidence).
                                    before    after
      ms in onnxruntime at batch 1  0.0272    0.0205    1.33x (1.31 to 1.35)
      held-out accuracy             99.44%    99.16%    -0.28 points
      test accuracy                 99.72%    98.05%    -1.67 points
      MACs                          599.68 K  106.10 K  -82.3%
      weights                       23.82 K   3.07 K    -87.1%
      bytes on disk                 97.60 K   13.07 K   -86.6%
    accuracy of the loaded network on test images: 0.9805013927576601
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
result = prunus.compress(model, train, holdout, test=test)  # as fast as it can be, losing at most one point
print(result)

result.save("small-classifier")
loaded = prunus.load("small-classifier", Classifier()).eval()
print("accuracy of the loaded network on test images:", prunus.evaluate(loaded, test).quality)
