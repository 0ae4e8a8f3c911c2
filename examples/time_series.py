"""A time series (1-D convolutions): which machine state does a vibration signal show?

    python examples/time_series.py               # --small: a shorter training, for the tests

One training epoch after the cut (epochs=1) beside no training at all: which is better is measured, not assumed.

It printed (and the time of a batch, which depends on the machine):

    repaired only: Compressed SignalNet in 1 round(s)
                         before    after
      held-out accuracy  98.05%    97.97%    -0.08 points
      test accuracy      98.63%    98.52%    -0.12 points
      MACs               3.95 M    1.97 M    -50.0%
      weights            61.79 K   30.95 K   -49.9%
      bytes on disk      252.35 K  127.41 K  -49.5%
    one epoch of training as well: Compressed SignalNet in 1 round(s)
                         before    after
      held-out accuracy  98.05%    97.93%    -0.12 points
      test accuracy      98.63%    98.40%    -0.23 points
      MACs               3.95 M    1.96 M    -50.3%
      weights            61.79 K   30.75 K   -50.2%
      bytes on disk      252.35 K  126.64 K  -49.8%
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
print("repaired only:", repaired)
retrained = prunus.compress(model, train, holdout, test=test, target=0.5, epochs=1, rounds=1)
print("one epoch of training as well:", retrained)
