"""The columns and notes of the sensitivity study."""

from __future__ import annotations

from collections.abc import Sequence

from secateur.measuring.quality_words import QualityWords
from secateur.studies.folder import StudyRow

METHODS = {"flops": "FLOP-normalised (Algorithm 1)", "ratio": "Li et al."}


def columns(words: QualityWords) -> dict[str, str]:
    """Column -> its title."""
    unit = f" ({words.unit})" if words.unit else ""
    return {
        "macs_removed": "fraction of MACs removed",
        "params_removed": "fraction of weights removed",
        "units": "units pruned",
        "channels": "channels removed",
        "cut": f"held-out {words.name} before retraining{unit}",
        "holdout": f"held-out {words.name}{unit}",
        "test": f"test {words.name}{unit}",
        "alpha": "alpha of Eqn. 3, solved",
    }


def sentences(rows: Sequence[StudyRow], base: StudyRow, words: QualityWords) -> list[str]:
    """Notes on the quality of both arms at the start and at the end."""
    part = "test" if base["test"] is not None else "holdout"
    name = "test" if part == "test" else "held-out"
    first = rows[0]
    found = [
        f"Unpruned: {words.scaled(base[part])} {name} {words.name}. Both start at {words.scaled(first[part])} with "
        f"{first['macs_removed']:.1%} of the MACs removed."
    ]
    curves = {method: [row for row in rows if row["method"] == method] for method in METHODS}
    for method, title in METHODS.items():
        last = curves[method][-1]
        found.append(
            f"{title}: {words.scaled(last[part])} with {last['macs_removed']:.1%} removed after {last['iteration']} "
            "iterations."
        )
    pairs = list(zip(curves["flops"][1:], curves["ratio"][1:], strict=False))  # one arm may have fewer iterations
    ahead, behind = sum(a[part] > b[part] for a, b in pairs), sum(a[part] < b[part] for a, b in pairs)
    found.append(f"{METHODS['flops']} is ahead in {ahead} and behind in {behind} of {len(pairs)} iterations.")
    return found
