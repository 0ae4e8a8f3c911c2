"""What the paper leaves open, in words."""

from __future__ import annotations

from typing import Any

import pytest

from prunus import Settings
from prunus.errors import DataError
from prunus.run.paper import Choices, left_open, only_drops_ridge, open_points, ridges_in


def said(data: str = "cifar10", holdout: str | None = "train:0.1", **changes: Any) -> list[str]:
    """The sentences for a run by the paper's settings."""
    return list(left_open(Settings.paper(data, **changes), data, holdout))


def test_every_open_point_is_named_once() -> None:
    """Section 4 of the paper leaves six points open; a seventh is the schedule of a data set that it does not have."""
    starts = ["G-SD divides by variances", "The paper gives one number", "Which epoch", "How far a layer may shrink"]
    starts += ["k is 'around one-third'", "The layers are chosen by validation accuracy"]
    for data in ("cifar10", "cifar100", "imagenet:ILSVRC"):
        found = said(data)
        assert [words for words, start in zip(found, starts, strict=True) if words.startswith(start)] == found


def test_the_ridge_of_gsd_may_be_given() -> None:
    """The paper prints the formula without a ridge."""
    assert "a ridge of 0.05, from the first author's later code. gsd:ridge=0 leaves it out." in said()[0]
    for changes in ({"metric": "gsd:ridge=0"}, {"metric_options": {"ridge": 0}}):
        assert not any("ridge" in words for words in said(**changes))
    assert Settings.paper(metric="gsd:ridge=0.5").metric == "gsd:ridge=0.5"
    assert "a ridge of 0.5. gsd" in said(metric="gsd:ridge=0.5")[0]


def test_k_and_alpha_are_those_of_the_run() -> None:
    assert ": a third of the units and alpha 3 here," in said()[4]
    assert ": k = 7 and alpha 2.5 here," in said(k=7, alpha=2.5)[4]
    given = open_points(Choices([], 3.0, 2, "cifar10", "train:0.1", rounds=4))["k_and_alpha"]
    assert given.endswith(": k = 2 here, and the alpha with which 4 rounds reach the goal.")


def test_without_retraining_nothing_is_said_about_epochs() -> None:
    found = said(epochs=0)
    assert len(found) == 4 and not any("epoch" in words for words in found)


@pytest.mark.parametrize(
    ("data", "holdout", "words"),
    [
        ("cifar100", "train:0.1", ", and CIFAR has no validation set: 10% of the training images are held out here"),
        ("cifar10", "test:0.5", ", and CIFAR has no validation set: 50% of the test images decide here"),
        ("imagenet:X", "test:0.2", "; which images is not given: 20% of the validation images decide here"),
        ("digits", "train:0.29", "; which images is not given: 29% of the training images are held out here"),
        ("digits", "none", "; which images is not given: no images are held out here"),
        ("nets:loaders", None, "; which images is not given: those of your held-out loader decide here"),
    ],
)
def test_which_images_decide(data: str, holdout: str | None, words: str) -> None:
    assert said(data, holdout)[5].startswith(f"The layers are chosen by validation accuracy{words}")


def test_the_holdout_is_one_that_can_be_typed() -> None:
    with pytest.raises(DataError, match="holdout must be"):
        said(holdout="half")


@pytest.mark.parametrize("data", ["digits", "mnist", "folder:mine", "nets:loaders"])
def test_the_schedule_of_a_data_set_that_the_paper_does_not_have(data: str) -> None:
    assert said(data)[6:] == [f"The paper has no schedule for {data}: that of its CIFAR experiments is used here."]
    assert len(said(data, preset="cosine")) == 6  # which is named as different from the paper


@pytest.mark.parametrize(
    ("metrics", "ridges"),
    [("gsd", [None]), ("gsd:ridge=0,di, gsd:ridge=0.5", [0.0, 0.5]), ("di,gsd_of_mine", []), ("", [])],
)
def test_ridges_of_metrics_as_typed(metrics: str, ridges: list[Any]) -> None:
    assert ridges_in(metrics) == ridges


@pytest.mark.parametrize(
    ("was", "now", "answer"),
    [
        ("gsd", "gsd:ridge=0", True),
        ("gsd", "gsd:ridge=0.0", True),
        ("gsd,di", "gsd:ridge=0,di", True),
        ("gsd", "gsd", False),
        ("gsd", "gsd:ridge=0.5", False),
        ("gsd", "gsd:ridge=0:tap=reader", False),
        ("gsd,di", "gsd:ridge=0", False),
        ("gsd", "fdr:ridge=0", False),
        (None, "gsd:ridge=0", False),
    ],
)
def test_what_only_leaves_out_the_ridge(was: Any, now: Any, answer: bool) -> None:
    assert only_drops_ridge(was, now) is answer
