"""The curve of benchmarks/speedup.py as a picture: accuracy over measured speed-up.

python benchmarks/speedup_picture.py docs/results/speedup-resnet56.json docs/results/speedup-resnet56.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

WHERE = "onnxruntime, batch 64"
SERIES = (  # label, colour, style, whether a row belongs to it
    ("ours, by time", "C0", "o-", lambda title: title.startswith(f"ours by time, {WHERE}")),
    ("ours, by MACs", "C1", "s-", lambda title: title.startswith("ours by MACs")),
    ("torch-pruning's channels, our repair", "C2", "^", lambda title: title.startswith("torch") and "repair" in title),
    ("torch-pruning, as cut", "C3", "v", lambda title: title.startswith("torch") and "repair" not in title),
)


def main() -> None:
    """Draw the rows of a file."""
    found = json.loads(Path(sys.argv[1]).read_text())
    figure, axes = plt.subplots(figsize=(6.4, 4.6), layout="constrained")
    for label, colour, style, belongs in SERIES:
        rows = [row for title, row in found["rows"].items() if belongs(title) and WHERE in row.get("timed", ())]
        points = sorted((row["timed"][WHERE]["ratio"], 100 * row["top1"]) for row in rows)
        axes.plot([x for x, _ in points], [y for _, y in points], style, color=colour, label=label)
    axes.plot([1], [100 * found["base"]], "k*", markersize=10, label="original network")
    axes.set(xlabel=f"measured speed-up, {WHERE}, one thread", ylabel="test accuracy, %")
    axes.set_title("ResNet-56 on CIFAR-10 without any training")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2)
    figure.savefig(sys.argv[2], dpi=110)


if __name__ == "__main__":
    main()
