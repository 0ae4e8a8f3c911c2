"""What is read from the folder of a run, against its files."""

from __future__ import annotations

from pathlib import Path

from prunus.report.read import read_run
from tests.report.runs import read


def test_channels_keep_their_original_numbers(run: Path) -> None:
    first, second = read_run(run).rounds
    after_one = read(run / "round-01" / "plan.json")["units"]
    for unit, words in after_one.items():
        assert first.numbers[unit] == tuple(range(words["width"]))
        assert second.numbers[unit] == tuple(words["keep"])
        assert len(second.scores.values[unit]) == len(words["keep"])
