"""Charts of retraining: loss and learning rate in each epoch of all rounds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from secateur.measuring.quality_words import QualityWords
from secateur.report import svg
from secateur.report.axes import EPOCHS, Axes
from secateur.report.finished_run import FinishedRun
from secateur.training.history import Epoch

Numbered = tuple[int, int, Epoch]  # epochs so far, round, epoch
LOSS, RATE = QualityWords("loss", ""), QualityWords("learning rate", "")


def losses_chart(run: FinishedRun) -> str:
    """Loss over training batches in blue, on held-out images in orange; "" for fewer than two epochs."""
    found = _epochs(run)
    trained = [(place, number, epoch.loss) for place, number, epoch in found]
    held = [(place, number, e.holdout.loss) for place, number, e in found if e.holdout is not None]
    label = f"Loss in each of {len(found)} epochs of retraining, on training batches and on held-out images."
    return _chart([("kept", "training", trained), ("cut", "held-out", held)], LOSS, 210, label, "losses")


def rates_chart(run: FinishedRun) -> str:
    """The learning rate at the end of each epoch; "" for fewer than two epochs."""
    found = [(place, number, epoch.lr) for place, number, epoch in _epochs(run)]
    label = f"Learning rate at the end of each of {len(found)} epochs."
    return _chart([("kept", "learning rate", found)], RATE, 150, label, "rates")


def _epochs(run: FinishedRun) -> list[Numbered]:
    """The epochs of all rounds in a row, counted from 1."""
    all_epochs = [(done.outcome.number, epoch) for done in run.rounds for epoch in done.outcome.retraining]
    return [(place, number, epoch) for place, (number, epoch) in enumerate(all_epochs, start=1)]


def _chart(
    curves: Sequence[tuple[str, str, list[tuple[int, int, float]]]],
    quantity: QualityWords,
    height: float,
    label: str,
    kind: str,
) -> str:
    """Curves of (epochs so far, round, value); a line does not cross from one round to the next."""
    finite = [(k, name, [row for row in rows if math.isfinite(row[2])]) for k, name, rows in curves]
    values = [value for _, _, rows in finite for _, _, value in rows]
    last = max((place for _, _, rows in finite for place, _, _ in rows), default=0)
    if last < 2:
        return ""
    axes = Axes.around(values, [last], height=height, counts=EPOCHS, quality=quantity)
    body, radius = axes.grid(), 4 if last <= 40 else 2
    for style, name, rows in finite:
        line = "curve" if style == "kept" else "second"
        for start, end in itertools.pairwise(rows):
            if start[1] == end[1]:
                body.append(svg.line(*axes.at(start[0], start[2]), *axes.at(end[0], end[2]), line))
        for place, number, value in rows:
            title = f"round {number}, epoch {place} in all: {name} {'loss ' if quantity is LOSS else ''}{value:.4g}"
            body.append(svg.dot(*axes.at(place, value), style, title, radius))
    return svg.chart(body, axes.height, label, kind)
