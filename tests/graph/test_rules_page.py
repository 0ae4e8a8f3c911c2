"""The page about own rules: its code runs, prints what it says, and prunes exactly."""

from __future__ import annotations

import io
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType

import pytest
import torch

import prunus as sc
from prunus.graph.rules import rulebook

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The code blocks of the page, run in one module."""
    monkeypatch.setattr(rulebook, "_OWN", dict(rulebook._OWN))
    module = ModuleType("rules_page")
    monkeypatch.setitem(sys.modules, "rules_page", module)
    torch.manual_seed(0)
    printed = io.StringIO()
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL):
        with redirect_stdout(printed):
            exec(compile(block, str(PAGE), "exec"), module.__dict__)
    module.printed = printed.getvalue().splitlines()  # type: ignore[attr-defined]
    return module


def test_it_prints_what_it_says(page: ModuleType) -> None:
    said = re.findall(r"print\(.*\)  # (.*)", PAGE.read_text(encoding="utf-8"))
    assert len(said) == 4
    assert all(line.startswith(words) for words, line in zip(said, page.printed, strict=True)), page.printed


def test_the_pruned_network_equals_the_one_with_zeros(page: ModuleType) -> None:
    zeroed, x = page.model, torch.randn(2, 3, 8, 8)
    gone = [channel for channel in range(8) if channel not in (0, 2, 5)]
    with torch.no_grad():
        zeroed[3].weight[:, gone] = 0  # the reader no longer sees them
        assert torch.allclose(page.small(x), zeroed(x), atol=1e-5)


def test_every_rule_is_on_the_page() -> None:
    table = re.findall(r"^\| `(\w+)", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(set(table) - {"prunus"}) == sorted(sc.rules.__all__)
