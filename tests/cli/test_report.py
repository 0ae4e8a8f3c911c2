"""`prunus report` and `prune --watch`: pages of runs at work, finished, and beside each other."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from prunus.report import live
from prunus.zoo.models import create
from tests.cli.command_line import lines, prunus


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], list[str]]:
    """A run with --watch: its folder, what it printed, and the pages that were written while it was at work."""
    folder = tmp_path_factory.mktemp("live")
    save_file(create("lenet5", num_classes=10, in_channels=1).state_dict(), folder / "w.safetensors")
    pages: list[str] = []
    render = live.render_progress

    def rendered(*given: Any) -> str:
        pages.append(render(*given))
        return pages[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "render_progress", rendered)
        patch.setattr(live, "EVERY", 0.05)
        words = ["--data", "digits", "--num-images", "50", "--metric", "l1", "--repair", "none", "--target", "0.4"]
        words += ["--rounds", "2", "--epochs", "0", "--device", "cpu", "--watch"]
        said = lines(prunus("prune", "lenet5", "--weights", folder / "w.safetensors", *words, "--out", folder / "run"))
    return folder / "run", said, pages


def test_a_run_can_be_watched(done: tuple[Path, list[str], list[str]]) -> None:
    folder, said, pages = done
    assert f"watch it: {(folder / 'report.html').as_uri()} (open it in a browser)" in said
    assert any("No round is finished yet" in page for page in pages)
    assert any("1 round so far" in page and "lenet5 on digits: round 2 is at work" in page for page in pages)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "What was removed:" in page and 'http-equiv="refresh"' not in page  # the report came last
    assert not (folder / "progress.json").exists() and "--watch" not in (folder / "config.json").read_text()


def test_pages_of_a_run_at_work_and_of_several(done: tuple[Path, list[str], list[str]], tmp_path: Path) -> None:
    folder = done[0]
    (said,) = lines(prunus("report", folder, "--out", tmp_path / "page.html", columns=400))
    assert said == f"written: {tmp_path / 'page.html'}" and "What was removed:" in (tmp_path / "page.html").read_text()
    at_work = tmp_path / "at-work"
    shutil.copytree(folder, at_work)
    (at_work / "summary.json").unlink()
    (said,) = lines(prunus("report", at_work, columns=400))
    assert said == f"the run is not finished; written: {at_work / 'report.html'}"
    assert "is at work" in (at_work / "report.html").read_text()
    said = lines(prunus("report", folder, at_work, "--out", tmp_path / "both", columns=400))
    assert said[0].split()[:5] == ["run", "name", "test", "accuracy", "change"] and "MACs per image" in said[0]
    assert "B at-work: not finished" in said
    assert (tmp_path / "both" / "compare.html").exists() and (tmp_path / "both" / "compare.json").exists()


def test_tables_and_citations_for_a_paper(done: tuple[Path, list[str], list[str]], tmp_path: Path) -> None:
    """Only the table is printed, so that it can go into a file; the metric of the run is l1."""
    folder = done[0]
    copy = shutil.copytree(folder, tmp_path / "copy_2")
    said = lines(prunus("report", folder, copy, "--format", "latex", columns=400))
    assert said[0] == r"% preamble: \usepackage{booktabs}" and said[-1] == r"\end{table}"
    (row,) = (line for line in said if r"copy\_2" in line)
    assert "& 1.000 &" in row  # the same network on the same images
    assert not (Path("runs") / "comparison").exists()
    said = lines(prunus("report", folder, "--format", "markdown", columns=400))
    assert said[1].startswith("| --- |") and len(said) == 3 and "p against" not in said[0]
    said = lines(prunus("report", folder, "--format", "bibtex", columns=400))
    keys = [line.partition("{")[2].rstrip(",") for line in said if line.startswith("@")]
    assert keys == ["liu2020rethinking", "prunus", "li2017pruning"]
    result = prunus("report", folder, "--format", "latex", "--out", tmp_path / "x.html")
    assert result.exit_code == 1 and "prints, and writes no page" in result.stderr


def test_a_run_says_how_it_differs_from_the_paper(done: tuple[Path, list[str], list[str]]) -> None:
    said = (done[0] / "differences.md").read_text(encoding="utf-8").splitlines()
    assert said[0] == "# How this run differs from the paper"
    assert "- `metric` is l1: the paper has the metric gsd" in said
    assert "- `rounds` is 2: the paper has no given number of rounds" in said
    assert "- epochs 200 -> 0 (the paper -> this run)" in said and "lr" not in "".join(said[5:16])
