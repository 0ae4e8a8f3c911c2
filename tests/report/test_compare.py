"""Several runs on one page: figures, front, differences, classes, and what cannot be compared."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import binomtest, sem
from sklearn.metrics import confusion_matrix

import prunus as pr
from prunus.report.compare import DATA, PAGE, Side, compare, render
from prunus.run.qualities import PREDICTIONS, Predictions, read_predictions, write_predictions
from prunus.tasks.paired import ImageValues
from tests.report.runs import Page, batches, charts, read


def costing(macs: float, top1: float) -> Callable[[Any], None]:
    """A run that ends with this share of the MACs and this test accuracy."""

    def change(summary: dict[str, Any]) -> None:
        summary["after"]["macs"] = int(macs * summary["before"]["macs"])
        summary["before"]["test"]["quality"], summary["after"]["test"]["quality"] = 0.9, top1

    return change


def test_classes_and_single_images_are_those_that_scikit_learn_counts(compressed: Any) -> None:
    found = read(compressed.folder / "classes.json")
    images, labels = (torch.cat(parts) for parts in zip(*batches(3, seed=2), strict=True))
    with torch.no_grad():
        answers = compressed.model.eval()(images).argmax(1)
    matrix = confusion_matrix(labels.numpy(), answers.numpy(), labels=[0, 1, 2])
    assert found["part"] == "test" and found["quality"] == "accuracy" and found["sizes"] == [15, 15, 15]
    assert found["after"]["values"] == pytest.approx([matrix[i, i] / 15 for i in range(3)])
    assert {(a, b): n for a, b, n in found["after"]["confused"]} == {
        (a, b): matrix[a, b] for a in range(3) for b in range(3) if a != b and matrix[a, b]
    }
    kept = read_predictions(compressed.folder / PREDICTIONS)
    assert kept is not None and kept.part == "test"
    assert kept.of["after"].values.bool().tolist() == (answers == labels).tolist()
    mean = read(compressed.folder / "summary.json")["after"]["test"]["quality"]
    assert mean == pytest.approx(sum(found["after"]["values"]) / 3) == float((answers == labels).double().mean())


def test_the_front_by_hand(another: Callable[..., Path]) -> None:
    figures = [(0.3, 0.7), (0.5, 0.85), (0.6, 0.8), (0.5, 0.85), (1.0, 0.88)]  # share of the MACs, accuracy
    compared = compare([another(f"run-{n}", summary=costing(*each)) for n, each in enumerate(figures)])
    quality = compared.results()[0].run.summary.quality
    assert compared.front("MACs per image", quality) == {"A", "B", "D"}  # the original beats the last one
    front = [run["letter"] for run in compared.to_dict()["runs"] if "MACs per image" in run["front"]]
    assert front == ["A", "B", "D"]
    side = Side(0.9, {"x": 1})
    assert side.beats(Side(0.9, {"x": 2}), "x") and side.beats(Side(0.8, {"x": 1}), "x")
    assert not side.beats(Side(0.9, {"x": 1}), "x") and not side.beats(Side(0.8, {"y": 1}), "x")


def test_page_and_data(another: Callable[..., Path], tmp_path: Path) -> None:
    first = another("first")
    second = another(
        "second <b>",
        summary=costing(0.5, 0.6),
        config=lambda config: config["settings"].update(metric="l1", target=0.5),
    )
    compared = pr.compare([first, second], out=tmp_path / "both")
    assert "2 runs" in repr(compared) and "second" in repr(compared)
    page, data = (tmp_path / "both" / PAGE).read_text(encoding="utf-8"), read(tmp_path / "both" / DATA)
    text = Page(page).text
    rest = re.sub(r'src="data:[^"]*"', "", page)
    assert not re.search(r"https?:|//\w|url\((?!#)|@import|fetch\(", rest) and "second &lt;b&gt;" in page
    summary = read(first / "summary.json")
    assert data["runs"][0]["after"]["costs"]["MACs per image"] == summary["after"]["macs"]
    assert data["runs"][0]["after"]["quality"] == summary["after"]["test"]["quality"]
    assert data["differing_settings"] == {"target": [0.4, 0.5], "metric": ["gsd", "l1"]}
    assert "Settings that differ" in text and "gsd" in text
    assert len(charts(page, "costs")) == 3 + len(summary["speeds"]) > 3  # MACs, weights, bytes, and speed-ups
    assert f"{100 * summary['after']['test']['quality']:.2f}%" in text
    for name, unit in summary["units"].items():
        assert f'title="{name}: {unit["kept"]} of {unit["width"]} channels"' in page
    assert "Accuracy of each class on the test images" in text
    assert not compared.notes


def test_what_makes_a_comparison_unfair_is_said(another: Callable[..., Path]) -> None:
    first = another("first")
    for name, change, note in (
        ("b", lambda config: config.update(original="x"), "different networks"),
        ("c", lambda config: config.update(weights="x"), "different weights"),
        ("d", lambda config: config["command"].update(data="folder:other"), "different data"),
        ("e", lambda config: config["data"]["test"].update(images=7), "not evaluated on the same images"),
    ):
        assert note in compare([first, another(name, config=change)]).notes[0]


def test_runs_that_cannot_be_compared_are_shown_as_such(another: Callable[..., Path], tmp_path: Path) -> None:
    """Unfinished, without classes, and judged by another quality."""
    people = {"name": "minus count error", "unit": "people"}
    done, halfway = another("done"), another("halfway")
    other = another("other", summary=lambda summary: summary.update(quality=people))
    (halfway / "summary.json").unlink()
    (other / "classes.json").unlink()
    compared = compare([done, halfway, other])
    assert "different qualities" in compared.notes[0]
    text = Page(compared.write(tmp_path / "page").read_text(encoding="utf-8")).text
    rounds = len(read(done / "summary.json")["rounds"])
    assert "Not finished" in text and f"B halfway {rounds} rounds done" in text
    assert "Without figures of classes: C" in text
    assert "Runs, by minus count error" in text and "Minus count error against cost" in text and "people" in text
    assert read(tmp_path / "page" / DATA)["runs"][1]["finished"] is False
    assert "Not finished" in Page(render(compare([halfway]))).text


def test_published_rows_join_where_network_and_data_are_those_of_the_paper(another: Callable[..., Path]) -> None:
    like = another("like", config=lambda c: c["command"].update(model="resnet56", data="cifar10"))
    compared = compare([like])
    (group,) = compared.published
    assert group.data == "cifar10" and "resnet56" in group.models
    *times, macs, weights, _ = charts(render(compared), "costs")
    known = [row for row in group.rows if row.macs is not None and row.top1 is not None]
    assert macs.count("as published") == len(known) > 3
    assert "as published" in weights and not any("as published" in chart for chart in times)
    assert compare([another("unlike")]).published == ()


def answers_of(run: Path, part: str, right: list[int], labels: str = "x") -> None:
    """Write which of 20 images a run's networks recognise."""
    before = ImageValues(torch.ones(20, dtype=torch.uint8), labels)
    after = ImageValues(torch.tensor([int(n in right) for n in range(20)], dtype=torch.uint8), labels)
    write_predictions(run / PREDICTIONS, Predictions({"before": before, "after": after}, part, "accuracy"))


def test_paired_tests_by_scipy(another: Callable[..., Path], tmp_path: Path) -> None:
    """A recognises images 0 to 17, B 6 to 19 and 0: 5 only A, 2 only B. The originals recognise all 20."""
    first, second = another("first"), another("second")
    answers_of(first, "test", list(range(18)))
    answers_of(second, "test", [0, *range(6, 20)])
    compared = compare([first, second], out=tmp_path / "both")
    found = {(pair["first"], pair["second"]): pair["result"] for pair in compared.to_dict()["paired_tests"]}
    assert list(found) == [("original", "A"), ("original", "B"), ("A", "B")]
    assert (found["A", "B"]["better"], found["A", "B"]["worse"]) == (2, 5)
    assert found["A", "B"]["p"] == pytest.approx(binomtest(2, 7).pvalue)
    assert found["original", "B"]["p"] == pytest.approx(binomtest(0, 5).pvalue)
    assert compared.against_first("B") == f"{binomtest(2, 7).pvalue:.3f}"
    text = Page((tmp_path / "both" / PAGE).read_text(encoding="utf-8")).text
    assert "Paired tests on the same images" in text and "p against A" in text and "B against its original" in text
    assert "McNemar's exact test" in text and "-15.00" in text.replace("−", "-")


def test_pairs_on_other_images_are_refused(another: Callable[..., Path]) -> None:
    def reason(name: str, part: str = "test", labels: str = "x", config: Callable[[Any], None] = lambda _: None) -> str:
        second = another(name, config=config)
        answers_of(second, part, [1], labels)
        if name == "none":
            (second / PREDICTIONS).unlink()
        return next(pair.reason for pair in compare([first, second]).pairs if (pair.first, pair.second) == ("A", "B"))

    def other_pixels(config: Any) -> None:
        test = config["data"]["test"]
        test["pixels"] = [[mean + 1, spread] for mean, spread in test["pixels"]]

    first = another("first")
    answers_of(first, "test", [1, 2])
    assert "labels of these differ" in reason("labels", labels="y")
    assert reason("part", part="holdout") == "one has test images and the other only held-out images"
    assert "not known" in reason("none")
    assert reason("pixels", config=other_pixels) == "they were measured on different images"


def test_runs_that_differ_in_the_seed_have_a_mean_and_a_standard_error(another: Callable[..., Path]) -> None:
    values = [0.6, 0.7, 0.75]
    runs = [
        another(f"seed-{n}", summary=costing(0.5, value), config=lambda config, n=n: config["settings"].update(seed=n))
        for n, value in enumerate(values)
    ]
    runs.append(another("other", config=lambda config: config["settings"].update(metric="l1", seed=7)))
    compared = compare(runs)
    (group,) = compared.over_seeds
    assert group.letters == ("A", "B", "C") and group.quality == pytest.approx(sum(values) / 3)
    assert group.standard_error == pytest.approx(sem(values)) == pytest.approx(group.change_error)
    assert group.change == pytest.approx(sum(values) / 3 - 0.9)  # the original has 0.9
    assert "68.33% ±4.41" in Page(render(compared)).text
