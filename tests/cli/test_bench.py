"""`prunus bench` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.command_line import lines, prunus

SHORT = "--engine", "eager", "--rounds", "1"


def test_a_run_folder_beside_its_original(pruned_lenet: Path) -> None:
    words = "--batch", "1", "--batch", "2", *SHORT
    result = json.loads("".join(lines(prunus("bench", pruned_lenet, *words, "--json", columns=10_000))))
    assert [(r["network"], r["batch"]) for r in result["rows"]] == [
        ("original", 1),
        ("small", 1),
        ("original", 2),
        ("small", 2),
    ]
    # LeNet-5: 6x25x784 + 16x6x25x100 + 120x400 + 84x120 + 10x84; half of the first convolution is removed
    assert result["networks"]["original"]["macs"] == 117_600 + 240_000 + 48_000 + 10_080 + 840
    assert result["networks"]["small"]["macs"] == 58_800 + 120_000 + 48_000 + 10_080 + 840


def test_the_table(pruned_lenet: Path) -> None:
    shown = "\n".join(lines(prunus("bench", "lenet5", pruned_lenet, "--batch", "1", "--threads", "1", *SHORT)))
    assert "1.75x fewer" in shown  # 416,520 / 237,720
    assert "1 thread; ms is the median" in shown
