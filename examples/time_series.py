"""A time series (1-D convolutions): which machine state does a vibration signal show?

    python examples/time_series.py               # --small: a shorter training, for the tests

One training epoch after the cut (epochs=1) beside no training at all: which is better is measured, not assumed.

It printed, on one thread (times depend on the machine):

    repaired only:
    1.52x as fast in onnxruntime at batch 1 (1.50 to 1.55), 98.63% -> 98.48% test accuracy
    Goal reached: 50.3% of the MACs removed, 50.0% asked.
                                    before    after
      ms in onnxruntime at batch 1  0.127     0.0842    1.52x (1.50 to 1.55)
      ms in eager at batch 1        0.362     0.331     1.09x (1.03 to 1.14)
      ms in openvino at batch 1     0.202     0.183     1.12x (1.06 to 1.20)
      held-out accuracy             98.05%    97.89%    -0.16 points
      test accuracy                 98.63%    98.48%    -0.16 points
      MACs                          3.95 M    1.96 M    -50.3%
      weights                       61.79 K   30.75 K   -50.2%
      bytes on disk                 252.35 K  126.53 K  -49.9%
    one epoch of training as well:
    1.58x as fast in onnxruntime at batch 1 (1.56 to 1.59), 98.63% -> 98.44% test accuracy
    Goal reached: 54.0% of the MACs removed, 50.0% asked.
                                    before    after
      ms in onnxruntime at batch 1  0.127     0.0813    1.58x (1.56 to 1.59)
      ms in eager at batch 1        0.371     0.333     1.14x (1.08 to 1.20)
      ms in openvino at batch 1     0.154     0.122     1.25x (1.23 to 1.29)
      held-out accuracy             98.05%    97.85%    -0.20 points
      test accuracy                 98.63%    98.44%    -0.20 points
      MACs                          3.95 M    1.82 M    -54.0%
      weights                       61.79 K   28.51 K   -53.9%
      bytes on disk                 252.35 K  117.57 K  -53.4%
"""

import sys

import torch
from torch import nn

import prunus

SMALL = "--small" in sys.argv


class SignalNet(nn.Module):
    """Three residual blocks on a signal of one channel."""

    def __init__(self, width=32, classes=4):
        super().__init__()
        self.stem = nn.Conv1d(1, width, 7, stride=2, padding=3)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm1d(width),
                nn.ReLU(),
                nn.Conv1d(width, 2 * width, 5, padding=2, bias=False),
                nn.BatchNorm1d(2 * width),
                nn.ReLU(),
                nn.Conv1d(2 * width, width, 5, padding=2),
            )
            for _ in range(3)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.relu().mean(2))


def signals(count, seed):
    """Noisy waves [count, 1, 128] of four kinds: one tone, two tones, rising frequency, bursts. In batches of 64."""
    draw = torch.Generator().manual_seed(seed)
    kind = torch.randint(4, (count,), generator=draw)
    t = torch.linspace(0, 6.28, 128)
    f, g = 4 + 12 * torch.rand(2, count, 1, generator=draw)
    tone = torch.sin(f * t)
    two, rising, bursts = (
        0.7 * tone + 0.7 * torch.sin(1.7 * g * t),
        torch.sin(f * t**2 / 5),
        tone * (torch.sin(g * t / 4) > 0),
    )
    x = torch.stack([tone, two, rising, bursts])[kind, torch.arange(count)] + 0.5 * torch.randn(
        count, 128, generator=draw
    )
    return list(zip(x[:, None].split(64), kind.split(64), strict=True))


torch.manual_seed(0)
train, holdout, test = (signals(640 if SMALL else 2560, seed) for seed in range(3))
model = prunus.fit(SignalNet(), train, epochs=3 if SMALL else 10, lr=0.05).model

repaired = prunus.compress(model, train, holdout, test=test, target=0.5)
print("repaired only:", repaired, sep="\n")
retrained = prunus.compress(model, train, holdout, test=test, target=0.5, epochs=1, rounds=1)
print("one epoch of training as well:", retrained, sep="\n")
