"""`prunus latency` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prunus.timing import engines
from prunus.timing.latency_table import LatencyTable
from prunus.util.typed_json import to_data
from tests.cli.command_line import lines, prunus

QUICK = "--batch", "1", "--threads", "1"


def test_a_table_and_its_picture(tmp_path: Path) -> None:
    out = tmp_path / "table.json"
    shown = lines(prunus("latency", "lenet5", *QUICK, "--out", out))
    assert all(len(line) <= 80 for line in shown[1:-1])
    assert shown[0].startswith("eager ") and "batch 1, 1 thread" in shown[0]
    assert {line.split()[0] for line in shown[2:7]} == {"conv1", "conv2", "conv3", "fc1", "fc2"}
    assert any(line.startswith("what is not a layer") for line in shown)
    table = LatencyTable.load(out)
    assert set(table.layers) == {"conv1", "conv2", "conv3", "fc1", "fc2"}
    assert out.with_suffix(".png").stat().st_size > 10_000 and "conv1" in out.with_suffix(".svg").read_text()
    printed = json.loads("".join(lines(prunus("latency", "lenet5", *QUICK, "--json", columns=10_000))))
    assert printed == json.loads(json.dumps(to_data(table)))  # from the cache


@pytest.mark.parametrize(
    "words, message",
    [
        (("lenet5", "--engine", "abacus"), "no engine called 'abacus'"),
        (("lenet5", "--batch", "0"), "batch must be at least 1, got 0"),
        (("no-such-network",), "no-such-network"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_1(words: tuple[str, ...], message: str) -> None:
    found = prunus("latency", *words)
    assert found.exit_code == 1 and message in found.stderr


def test_an_engine_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: None if name == "openvino" else object())
    found = prunus("latency", "lenet5", "--engine", "openvino")
    assert found.exit_code == 1 and "pip install 'prunus[openvino]'" in found.stderr
