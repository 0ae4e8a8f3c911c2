"""What to cite for a metric: BibTeX entries of references.bib."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from prunus.errors import ScoreError
from prunus.scoring.metrics import METRICS, metric_of

FILE = Path(__file__).with_name("references.bib")


@cache
def references() -> dict[str, str]:
    """Key -> BibTeX entry of everything that can be cited."""
    entries = FILE.read_text(encoding="utf-8").strip().split("\n\n")
    return {re.findall(r"^@\w+\{([^,]+),", entry)[0]: entry for entry in entries}


def bibtex(metrics: Iterable[str]) -> str:
    """The BibTeX entries of metrics, each once: the paper and Prunus first, then in the order of the metrics.

        print(prunus.bibtex(["gsd", "l1"]))

    Args:
        metrics: Names, with options or without. A user-provided metric has nothing to cite.
    """
    keys = ["liu2020rethinking", "prunus"]
    for name in metrics:
        if not isinstance(name, str):
            raise ScoreError(f"bibtex takes names of metrics, got {type(name).__name__}")
        short = METRICS.split_options(name)[0]
        keys += METRICS[short].cites if short in METRICS else metric_of(name).cites
    return "\n\n".join(references()[key] for key in dict.fromkeys(keys)) + "\n"
