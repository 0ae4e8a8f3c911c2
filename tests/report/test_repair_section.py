"""The picture of each layer's error before and after its repair."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from prunus.report.run_page import write_report
from tests.report.runs import make_run


def test_two_bars_for_each_layer_as_long_as_its_errors(tmp_path: Path) -> None:
    make_run(tmp_path, repair="solve", epochs=0, rounds=1, num_repair_images=32)
    errors = json.loads((tmp_path / "round-01" / "round.json").read_text())["layer_errors"]
    page = write_report(tmp_path).read_text(encoding="utf-8")
    (chart,) = re.findall(r'<svg class="chart errors".*?</svg>', page, flags=re.DOTALL)
    bars = re.findall(r'<rect class="(cut|kept)" x="[\d.]+%" y="[\d.]+" width="([\d.]+)%".*?<title>(.*?):', chart)
    found = {(name, kind): float(width) for kind, width, name in bars}
    assert errors and found.keys() == {(name, kind) for name in errors for kind in ("cut", "kept")}
    longest = max(max(pair) for pair in errors.values())
    full = max(found.values())
    for name, pair in errors.items():
        for kind, value in zip(("cut", "kept"), pair, strict=True):
            assert found[name, kind] == pytest.approx(max(full * value / longest, 0.3), abs=0.02)
    assert "100% is as bad as a constant" in page


def test_without_a_repair_there_is_none(tmp_path: Path) -> None:
    make_run(tmp_path, epochs=0, rounds=1)
    assert "Error of each layer" not in write_report(tmp_path).read_text(encoding="utf-8")
