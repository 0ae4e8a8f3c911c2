"""Your own training loop in plain PyTorch, used for the retraining in each round.

    python examples/fit_pytorch.py               # --small: fewer epochs, for the tests

Any function fit(model, train, holdout) that returns the trained network can be given to `compress`. Here it uses Adam,
label smoothing and a one-cycle schedule, none of which prunus's own loop has.

It printed (and the time of a batch, which depends on the machine):

    Compressed CifarResNet in 2 round(s)
                         before    after
      held-out accuracy  98.61%    98.61%    +0.00 points
      test accuracy      98.05%    97.49%    -0.56 points
      test top-5         99.72%    100.00%   +0.28 points
      MACs               747.14 K  294.40 K  -60.6%
      weights            74.51 K   35.20 K   -52.8%
      bytes on disk      301.98 K  143.74 K  -52.4%
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F

import prunus
from prunus.zoo import data, models

EPOCHS = 2 if "--small" in sys.argv else 8


def fit(model: nn.Module, train, holdout, epochs: int = EPOCHS, rate: float = 0.003) -> nn.Module:
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=epochs * len(train))
    for epoch in range(epochs):
        model.train()
        for images, labels in train:
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch + 1}: loss {loss:.3f}, held-out accuracy {prunus.evaluate(model, holdout).quality:.1%}")
    return model


torch.manual_seed(0)
digits = data.load("digits")
train, holdout, test = (digits.loader(part, 64, shuffle=part == "train") for part in ("train", "holdout", "test"))
model = fit(models.create("resnet8", num_classes=10, in_channels=1), train, holdout, 2 * EPOCHS, 0.01)

result = prunus.compress(model, train, holdout, test=test, target=0.6, rounds=2, fit=fit)
print(result)
