"""The sensitivity study's two curves, and what they say in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from secateur.pictures.drawing import INK, PAGE, figure, legend, line, save
from secateur.studies.folder import Row

METHODS = {"flops": "FLOP-normalised (Algorithm 1)", "ratio": "Li et al."}
COLUMNS = {
    "macs_removed": "share of MACs removed",
    "params_removed": "share of weights removed",
    "units": "units pruned",
    "channels": "channels removed",
    "cut": "held-out accuracy before retraining (%)",
    "holdout": "held-out accuracy (%)",
    "test": "test accuracy (%)",
}


def draw(rows: Sequence[Row], base: Row, folder: Path) -> dict[str, str]:
    """Accuracy against MACs removed: test solid and held-out dotted, a colour per method."""
    fig, axes = figure(PAGE, 3.6)
    parts = [part for part in ("test", "holdout") if base[part] is not None]
    names = {"test": "test", "holdout": "held-out"}
    for number, (method, title) in enumerate(METHODS.items()):
        mine = [row for row in rows if row["method"] == method]
        for part in parts:
            style = line(number)
            if part != parts[0]:
                style |= {"linestyle": ":", "linewidth": 1.0, "markersize": 3.0}
            places = [100 * row["macs_removed"] for row in mine]
            axes.plot(places, [row[part] for row in mine], label=f"{title}, {names[part]}", **style)
    axes.axhline(base[parts[0]], color=INK, linewidth=0.9, linestyle="--", label=f"unpruned, {names[parts[0]]}")
    axes.set_xlabel("MACs removed (%)")
    axes.set_ylabel("accuracy (%)")
    legend(fig, axes, where="below", columns=2)
    return {
        "file": save(fig, folder, "curves"),
        "alt": "Accuracy against MACs removed, iteration by iteration, for two ways of choosing layers.",
        "caption": "Iterations of pruning and retraining from the same network, with the same metric, epochs and MACs "
        "removed in each. Held-out images decide what goes; the test images only report.",
    }


def sentences(rows: Sequence[Row], base: Row) -> list[str]:
    """Where both began and where they ended."""
    part = "test" if base["test"] is not None else "holdout"
    name = "test" if part == "test" else "held-out"
    first = rows[0]
    found = [
        f"Unpruned: {base[part]:.2f}% {name} accuracy. Both begin at {first[part]:.2f}% with "
        f"{first['macs_removed']:.1%} of the MACs removed."
    ]
    curves = {method: [row for row in rows if row["method"] == method] for method in METHODS}
    for method, title in METHODS.items():
        last = curves[method][-1]
        found.append(
            f"{title}: {last[part]:.2f}% with {last['macs_removed']:.1%} removed after {last['iteration']} iterations."
        )
    pairs = list(zip(curves["flops"][1:], curves["ratio"][1:], strict=False))  # one may have had less to take
    ahead, behind = sum(a[part] > b[part] for a, b in pairs), sum(a[part] < b[part] for a, b in pairs)
    found.append(f"{METHODS['flops']} is ahead in {ahead} and behind in {behind} of {len(pairs)} iterations.")
    return found
