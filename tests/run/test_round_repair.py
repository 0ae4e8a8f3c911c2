"""Repair in runs: what it aims at, what it is judged by, and that a resumed run ends with the same bits."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import prunus as sc
from prunus.errors import DecideError
from prunus.graph.plan import Plan
from prunus.run.compress import Compressed
from prunus.run.settings import Settings, check_settings, fill_defaults, recovery
from prunus.score.passes import sampled
from tests.proof import assert_accuracy
from tests.run.toys import CLASSES, HOLDOUT, TRAIN, contents, run, trained
from tests.train.toys import same_tensors, state_of

SOLVE: dict[str, Any] = {"repair": "solve", "num_repair_images": 64, "epochs": 0}
EXAMPLE = torch.zeros(1, 3, 6, 6)


def images(count: int = 64) -> list[Any]:
    return list(sampled(TRAIN, count, 0))


def test_without_retraining_all_rounds_are_repaired_from_the_original_at_once(tmp_path: Path) -> None:
    result = run(tmp_path, **SOLVE)
    assert len(result.rounds) == 2
    graph = sc.trace(trained(), EXAMPLE)
    for number in (1, 2):
        plan = Plan.load(tmp_path / f"round-{number:02d}" / "plan.json")
        want = sc.repair(graph, plan, images())
        assert same_tensors(state_of(sc.load(tmp_path / f"round-{number:02d}", trained())), state_of(want))
    # The other way, from round to round, is another network.
    first = sc.trace(sc.load(tmp_path / "round-01", trained()), EXAMPLE)
    step = Plan.load(tmp_path / "round-02" / "step-plan.json")
    assert not same_tensors(state_of(result.model), state_of(sc.repair(first, step, images())))


def test_a_run_tells_what_the_repair_brought_back(tmp_path: Path) -> None:
    result = run(tmp_path, **{**SOLVE, "target": 0.5, "rounds": None})
    (outcome,) = result.rounds
    graph = sc.trace(trained(), EXAMPLE)
    cut = sc.evaluate(sc.prune(graph, result.plan), HOLDOUT)
    assert outcome.cut is not None and outcome.cut.quality == pytest.approx(cut.quality)
    assert outcome.layer_errors and all(after <= before for before, after in outcome.layer_errors.values())
    written = json.loads((tmp_path / "round-01" / "round.json").read_text())
    assert written["cut"]["top1"] == outcome.cut.quality and written["layer_errors"] == outcome.layer_errors
    if cut.quality < outcome.pruned.quality:
        back = 100 * (outcome.pruned.quality - cut.quality)
        assert any(f"the repair brought back {back:.2f} points" in note for note in result.summary["notes"])


@pytest.mark.parametrize(
    "given, repair, epochs, split",
    [
        ({}, "solve", 0, "least_error"),
        ({"epochs": 2}, "solve", 2, "least_error"),
        ({"epochs": 2, "metric": "gsd"}, "solve", 2, "algorithm1"),  # its scores are no errors
        ({"epochs": 2, "rounds": 2}, "solve", 2, "algorithm1"),
        ({"lr": 0.01}, "solve", None, "least_error"),  # whoever gives a rate wants to train
        ({"distill": True}, "solve", None, "least_error"),
        ({"repair": "none"}, "none", None, "algorithm1"),
        ({"repair": "bn"}, "bn", None, "algorithm1"),
    ],
)
def test_the_repair_is_the_default_and_enough_unless_training_is_asked_for(
    given: dict[str, Any], repair: str, epochs: int | None, split: str
) -> None:
    filled = fill_defaults(recovery(Settings(target=0.3, **given)), sc.trace(trained(), EXAMPLE))
    assert (filled.repair, filled.epochs, filled.split) == (repair, epochs, split)


def test_compress_repairs_and_does_not_train_by_default(tmp_path: Path) -> None:
    result = sc.compress(trained(), TRAIN, HOLDOUT, target=0.4, folder=tmp_path)
    assert (result.summary["settings"]["repair"], result.summary["settings"]["epochs"]) == ("solve", 0)
    want = sc.repair(sc.trace(trained(), EXAMPLE), result.plan, TRAIN)
    assert same_tensors(state_of(result.model), state_of(want))


@pytest.mark.parametrize("repair", ["none", "solve"])
def test_settings_of_an_earlier_version_stay_as_they_were(repair: str) -> None:
    """Such a run trained unless told not to: with "epochs": null in its config.json also after a solve."""
    given = Settings(target=0.3, repair=None if repair == "none" else repair)
    begun = {"repair": repair, "epochs": None, "distill": False, "split": "algorithm1", "metric": "gsd_reader"}
    found = recovery(given, begun)
    assert (found.repair, found.epochs, found.distill) == (repair, None, False)
    assert (found.split, found.metric) == ("algorithm1", "gsd_reader")
    assert recovery(given, {**begun, "metric": "l1"}).split is None  # that was asked for, and must be again


def test_a_run_of_an_earlier_version_continues_as_it_began(tmp_path: Path) -> None:
    first = run(tmp_path, repair="none", rounds=1, target=0.3)
    shutil.rmtree(tmp_path / "round-01")
    (tmp_path / "summary.json").unlink()
    again = run(tmp_path, repair=None, rounds=1, target=0.3)
    assert again.summary["settings"]["repair"] == "none"
    assert same_tensors(state_of(again.model), state_of(first.model))


def test_a_retrained_network_is_what_the_next_repair_aims_at(tmp_path: Path) -> None:
    """The user's own fit moves every weight a little: the second repair must start from there."""

    def moved(model: torch.nn.Module, *_: object) -> torch.nn.Module:
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1.01)
        return model

    result = run(tmp_path, fit=moved, **SOLVE)
    first = sc.trace(sc.load(tmp_path / "round-01", trained()), EXAMPLE)
    step = Plan.load(tmp_path / "round-02" / "step-plan.json")
    assert same_tensors(state_of(result.model), state_of(moved(sc.repair(first, step, images()))))


def test_a_run_that_goes_on_ends_with_the_same_bits(tmp_path: Path) -> None:
    """After a kill in the second round: its scores are there, or nothing of it is."""
    run(tmp_path / "whole", **SOLVE)
    want = contents(tmp_path / "whole")
    for left in ((), ("scores.json", "scores.safetensors")):
        broken = tmp_path / f"broken-{len(left)}"
        shutil.copytree(tmp_path / "whole", broken)
        for name in ("summary.json", "model.safetensors", "plan.json"):
            (broken / name).unlink()
        for path in (broken / "round-02").iterdir():
            if path.name not in left:
                path.unlink()
        run(broken, **SOLVE)
        found = contents(broken)
        for name in ("model.safetensors", "plan.json", "round-02/sensitivity.json", "round-02/scores.safetensors"):
            assert found[name] == want[name], name


def test_channels_and_units_are_judged_by_the_repair(tmp_path: Path) -> None:
    run(tmp_path, rounds=1, target=0.4, exact=True, **SOLVE)
    graph = sc.trace(trained(), EXAMPLE)
    scores = sc.score(graph, sc.repair_each(graph, images()), metric="rebuilt")
    found = json.loads((tmp_path / "round-01" / "sensitivity.json").read_text())
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["settings"]["metric"], summary["settings"]["trials"], found["repair"]) == (
        "rebuilt",
        "repaired",
        "solve",
    )
    for name, row in found["tried"].items():
        kept = sorted(scores.order(name)[row["channels"] :].tolist())
        model = sc.repair(graph, Plan.of(graph, {name: kept}), images(), layers="cut")
        # Solved from one large Gram matrix there, and from the unit's own here: weights agree to about 1e-5.
        assert_accuracy(row["accuracy"], model, HOLDOUT, rounding=1e-4)
        assert row["loss"] == pytest.approx(sc.evaluate(model, HOLDOUT).loss, rel=1e-4)
    assert found["base_accuracy"] * CLASSES > 2


def test_what_is_left_open_depends_on_the_case() -> None:
    graph = sc.trace(trained(), EXAMPLE)
    for words, metric, trials, count in (
        ({"repair": "none"}, "gsd_reader", None, None),
        ({"repair": "solve", "epochs": 0}, "rebuilt", "repaired", 2000),
        ({"repair": "solve"}, "gsd_reader", "cut", 500),
        ({"repair": "solve", "epochs": 0, "last_epochs": 2}, "gsd_reader", "cut", 500),  # retrained in the end
        ({"repair": "bn", "epochs": 0}, "gsd_reader", "cut", 500),
        ({"repair": "solve", "epochs": 0, "metric": "gsd", "trials": "cut", "num_repair_images": 9}, "gsd", "cut", 9),
        ({"repair": "bn", "trials": "repaired"}, "gsd_reader", "repaired", 500),
    ):
        found = fill_defaults(Settings(**words), graph)  # type: ignore[arg-type]
        assert (found.metric, found.trials, found.num_repair_images) == (metric, trials, count), words
    solved = Settings(repair="solve", epochs=0)
    assert [fill_defaults(solved, graph, pixels).num_repair_images for pixels in (32 * 32, 224 * 224)] == [2000, 500]
    with pytest.raises(DecideError, match="trials must be one of cut, repaired; got 'x'"):
        run(trials="x", repair="bn")
    with pytest.raises(DecideError, match='"uniform" needs a target'):
        run(max_drop=10, split="uniform")
    with pytest.raises(DecideError, match="num_repair_images must be at least 1"):
        run(repair="bn", num_repair_images=0)


@pytest.mark.parametrize(
    "asked", [{"cost": "latency"}, {"measure": "loss"}, {"exact": True}, {"k": 2}, {"trials": "cut"}]
)
def test_what_is_asked_of_a_ranking_gets_one(asked: dict[str, Any]) -> None:
    """Where a solve alone would take the split of least error, which ranks nothing; elsewhere it is refused."""
    graph = sc.trace(trained(), EXAMPLE)
    open_ = Settings(target=0.4, repair="solve", epochs=0)
    assert [fill_defaults(s, graph).split for s in (open_, replace(open_, **asked))] == ["least_error", "algorithm1"]
    for way, words in (('split "uniform"', {"target": 0.4, "split": "uniform"}), ("a ratio", {"ratio": 0.3})):
        with pytest.raises(DecideError, match=f"{way} ranks no units, so {next(iter(asked))} would have no effect"):
            check_settings(Settings(**{**words, **asked}))
        check_settings(Settings(**words))


def once(folder: Path, **words: Any) -> Compressed:
    return run(folder, **{"alpha": 4.0, **SOLVE, **words})


def test_where_only_a_solve_helps_the_cut_is_split_by_the_error_that_it_leaves(tmp_path: Path) -> None:
    result = once(tmp_path / "errors", target=0.4)
    assert len(result.rounds) == 1 and not result.summary["settings"]["only"]
    assert 0.395 <= result.summary["removed"]["macs"] <= 0.45
    assert result.summary["settings"]["split"] == "least_error" and result.summary["settings"]["metric"] == "rebuilt"
    far = once(tmp_path / "far", target=0.85, exclude=("wide:out",))
    assert {"conv1:in", "wide:in"} & set(far.rounds[0].chosen)  # readers of the stream are needed too
    chosen = once(tmp_path / "chosen", target=0.3, only=("*:in",))
    assert {name.partition(":")[2] for name in chosen.rounds[0].chosen} == {"in"}
    share = once(tmp_path / "share", ratio=0.5)
    assert "wide:in" in share.rounds[0].chosen  # of every unit means of every unit


def test_scores_that_are_no_errors_take_the_same_share_of_the_units_inside_blocks(tmp_path: Path) -> None:
    """Small: conv1 and wide write channels that no addition sees. Those of conv1 alone can lose 21 of 24, which is 72%
    of the MACs (124,416 of 151,648 are its and its reader's)."""
    even = once(tmp_path / "even", target=0.4, metric="reader_energy")
    assert list(even.summary["settings"]["only"]) == ["conv1:out", "wide:out"]
    assert even.summary["settings"]["split"] == "uniform"
    shares = [even.rounds[0].chosen["conv1:out"] / 24, even.rounds[0].chosen["wide:out"] / 16]
    assert abs(shares[0] - shares[1]) <= 0.5 / 24 + 0.5 / 16 + 1 / 24  # rounded, and one step given back


def test_units_at_their_floor_no_longer_count_among_the_k(tmp_path: Path) -> None:
    """All four units are to lose channels; by the last round one of them has none left to lose."""
    result = run(tmp_path, target=0.8, rounds=3, k=4, epochs=0)
    tried = [len(json.loads(path.read_text())["tried"]) for path in sorted(tmp_path.glob("round-*/sensitivity.json"))]
    assert tried[0] == 4 and tried[-1] < 4
    assert 0.795 <= result.summary["removed"]["macs"] <= 0.83
