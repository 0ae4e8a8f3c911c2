"""Rounds: user-provided functions, repair, retraining, and the pictures that a run keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import prunus as pr
from prunus.errors import FileError
from prunus.graph.plan import Plan
from prunus.plots.run_pictures import load_pictures
from prunus.report.run_page import write_report
from prunus.run import round as rounds
from prunus.run.compress import Compressed, compress
from prunus.run.context import class_names
from prunus.run.folder import RunFolder
from prunus.scoring.passes import sampled
from prunus.scoring.scores import load_scores
from prunus.tasks.evaluate import Evaluation, evaluate
from prunus.train.fit import fit
from prunus.zoo import models
from prunus.zoo.data import load
from tests.plots.test_choices import entering
from tests.proof import assert_accuracy, same_state
from tests.run.toys import CLASSES, EXAMPLE, HOLDOUT, TRAIN, contents, run, trained


def full_conv1(model: nn.Module, loader: Any) -> Evaluation:
    """A quality that only suffers when conv1 loses outputs: the share of channels that reach conv2."""
    seen: list[Tensor] = []
    hook = model.conv2.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        model(loader[0][0])
    hook.remove()
    return Evaluation(float((seen[0].abs().amax((0, 2, 3)) > 0).sum()) / 24, 1.0, 120)


def test_own_evaluation_ranks_the_units(tmp_path: Path) -> None:
    words: dict[str, Any] = {"epochs": 0, "rounds": 1, "target": 0.05, "k": 1}
    result = run(tmp_path / "quality", evaluate=full_conv1, **words)
    found = json.loads((tmp_path / "quality" / "round-01" / "sensitivity.json").read_text())
    assert found["measure"] == "full_conv1" and found["base_value"] == 1.0
    tried = found["tried"]
    assert tried["conv1:out"]["value"] == pytest.approx(1 - tried["conv1:out"]["channels"] / 24)
    assert all(row["value"] == 1.0 for name, row in tried.items() if name != "conv1:out")
    assert not result.plan.removed()["conv1:out"]

    def judge(model: nn.Module, loader: Any) -> Evaluation:
        return Evaluation(0.9, 3.0 - full_conv1(model, loader).quality, 120)

    run(tmp_path / "loss", evaluate=judge, measure="loss", **words)
    found = json.loads((tmp_path / "loss" / "round-01" / "sensitivity.json").read_text())
    assert found["base_value"] == pytest.approx(-2.0)


# -- repair


SOLVE: dict[str, Any] = {"repair": "solve", "num_repair_images": 64, "epochs": 0}


def images(count: int = 64) -> list[Any]:
    return list(sampled(TRAIN, count, 0))


def test_without_retraining_all_rounds_are_repaired_from_the_original_at_once(tmp_path: Path) -> None:
    result = run(tmp_path, **SOLVE)
    assert len(result.rounds) == 2
    graph = pr.trace(trained(), EXAMPLE)
    for number in (1, 2):
        plan = Plan.load(tmp_path / f"round-{number:02d}" / "plan.json")
        want = pr.repair(graph, plan, images())
        assert same_state(pr.load(tmp_path / f"round-{number:02d}", trained()), want)
    # The other way, from round to round, is another network.
    first = pr.trace(pr.load(tmp_path / "round-01", trained()), EXAMPLE)
    step = Plan.load(tmp_path / "round-02" / "step-plan.json")
    assert not same_state(result.model, pr.repair(first, step, images()))


def test_compress_repairs_by_default_and_tells_what_that_brought_back(tmp_path: Path) -> None:
    result = pr.compress(trained(), TRAIN, HOLDOUT, target=0.5, folder=tmp_path, timing=False)
    assert (result.summary["settings"]["repair"], result.summary["settings"]["epochs"]) == ("solve", 0)
    (outcome,) = result.rounds
    graph = pr.trace(trained(), EXAMPLE)
    assert same_state(result.model, pr.repair(graph, result.plan, TRAIN))
    cut = pr.evaluate(pr.prune(graph, result.plan), HOLDOUT)
    assert outcome.cut is not None and outcome.cut.quality == pytest.approx(cut.quality)
    assert outcome.layer_errors and all(after <= before for before, after in outcome.layer_errors.values())
    written = json.loads((tmp_path / "round-01" / "round.json").read_text())
    assert written["cut"]["quality"] == outcome.cut.quality and written["layer_errors"] == outcome.layer_errors
    if cut.quality < outcome.pruned.quality:
        back = 100 * (outcome.pruned.quality - cut.quality)
        assert any(f"the repair brought back {back:.2f} points" in note for note in result.summary["notes"])


def test_a_retrained_network_is_what_the_next_repair_aims_at(tmp_path: Path) -> None:
    """The user's own fit moves every weight a little: the second repair must start from there."""

    def moved(model: torch.nn.Module, *_: object) -> torch.nn.Module:
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1.01)
        return model

    result = run(tmp_path, fit=moved, **SOLVE)
    first = pr.trace(pr.load(tmp_path / "round-01", trained()), EXAMPLE)
    step = Plan.load(tmp_path / "round-02" / "step-plan.json")
    assert same_state(result.model, moved(pr.repair(first, step, images())))


def test_channels_and_units_are_judged_by_the_repair(tmp_path: Path) -> None:
    run(tmp_path, rounds=1, target=0.4, exact=True, **SOLVE)
    graph = pr.trace(trained(), EXAMPLE)
    scores = pr.score(graph, pr.repair_each(graph, images()), metric="rebuilt")
    found = json.loads((tmp_path / "round-01" / "sensitivity.json").read_text())
    summary = json.loads((tmp_path / "summary.json").read_text())
    chosen = summary["settings"]
    assert (chosen["metric"], chosen["trials"], found["repair"]) == ("rebuilt", "repaired", "solve")
    for name, row in found["tried"].items():
        kept = sorted(scores.order(name)[row["channels"] :].tolist())
        model = pr.repair(graph, Plan.of(graph, {name: kept}), images(), layers="cut")
        # Solved from one large Gram matrix there, and from the unit's own here: weights agree to about 1e-5.
        assert_accuracy(row["accuracy"], model, HOLDOUT, rounding=1e-4)
        assert row["loss"] == pytest.approx(pr.evaluate(model, HOLDOUT).loss, rel=1e-4)
    assert found["base_accuracy"] * CLASSES > 2


def once(folder: Path, **words: Any) -> Compressed:
    return run(folder, **{"alpha": 4.0, **SOLVE, **words})


def test_where_only_a_solve_helps_the_cut_is_split_by_the_error_that_it_leaves(tmp_path: Path) -> None:
    result = once(tmp_path / "errors", target=0.4)
    assert len(result.rounds) == 1 and not result.summary["settings"]["only"]
    assert 0.395 <= result.summary["removed"]["macs"] <= 0.45
    assert result.summary["settings"]["split"] == "least_error" and result.summary["settings"]["metric"] == "rebuilt"
    far = once(tmp_path / "far", target=0.85, exclude=("wide:out",))
    assert {"conv1:in", "wide:in"} & set(far.rounds[0].chosen)  # readers of the stream are needed too
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


# -- retraining


def test_a_destructive_rate_is_undone_and_said(tmp_path: Path) -> None:
    result = run(tmp_path, ratio=0.3, lr=20.0, epochs=2)
    (outcome,) = result.rounds
    assert outcome.kept_epoch == 0 and outcome.after.quality == outcome.pruned.quality
    reached = max(epoch.holdout.quality for epoch in outcome.retraining if epoch.holdout)
    assert reached < outcome.pruned.quality
    (words,) = [note for note in result.summary["notes"] if "Round 1" in note]
    assert f"{100 * outcome.pruned.quality:.2f}%" in words and f"at best {100 * reached:.2f}%" in words
    assert words in write_report(tmp_path).read_text()


def test_the_rate_is_tried_once_and_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    words: dict[str, Any] = {"ratio": 0.3, "epochs": 2, "repair": "none", "timing": False}
    first = compress(trained(), TRAIN, HOLDOUT, folder=whole, **words)

    def stop(phase: str, done: int, _total: int, _note: str) -> None:
        if phase.endswith("retrain") and done > 14:  # in the second epoch of 12 steps
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compress(trained(), TRAIN, HOLDOUT, folder=broken, progress=stop, **words)
    kept = (broken / "round-01" / "rate.json").read_bytes()
    second = compress(trained(), TRAIN, HOLDOUT, folder=broken, **words)
    assert (broken / "round-01" / "rate.json").read_bytes() == kept
    rates = [one["lr"] for one in json.loads(kept)["tries"]]
    assert rates == pytest.approx([0.05, 0.015, 0.005, 0.0015])  # shares of the preset's rate
    assert contents(whole)["model.safetensors"] == contents(broken)["model.safetensors"]
    assert first.rounds[0].kept_epoch == second.rounds[0].kept_epoch


def test_every_round_draws_other_epochs_than_the_rounds_before(tmp_path: Path) -> None:
    """A loader's order and crops follow the number of the epoch alone, whatever the seed of the training."""

    class Counting(list[Any]):
        def __init__(self) -> None:
            super().__init__(TRAIN)
            self.epochs: list[int] = []

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    words: dict[str, Any] = {"target": 0.3, "rounds": 2, "epochs": 2, "lr": 0.02, "repair": "none", "timing": False}
    words |= {"metric": "l1"}
    plain, again, tested = Counting(), Counting(), Counting()
    result = compress(trained(), plain, HOLDOUT, folder=tmp_path, **words)
    assert len(result.rounds) == 2
    assert plain.epochs == [0, 1, 2, 3]
    compress(trained(), again, HOLDOUT, views=1, **words)
    assert again.epochs == [0, 0, 2, 2]
    compress(trained(), tested, HOLDOUT, **{**words, "lr": None})
    assert tested.epochs == [0] * 4 + [0, 1] + [2] * 4 + [2, 3]  # the test of four rates reads the epoch that follows
    # A rate or preset that the user names is not tested.
    run(tmp_path / "preset", ratio=0.3, lr=None, preset="cifar")
    assert not list(tmp_path.rglob("rate.json"))


def test_all_processes_train_at_the_rate_of_the_one_that_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes could round differently, and choose different rates: what counts is in the file."""
    write, rates = RunFolder.write, []

    def of_the_first_process(folder: RunFolder, name: str, content: Any) -> None:
        write(folder, name, {**content, "lr": 0.0125} if name.endswith("rate.json") else content)

    def stop(*_: Any, preset: Any, **__: Any) -> None:
        rates.append(preset.lr)
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "write", of_the_first_process)
    monkeypatch.setattr(rounds, "fit", stop)
    with pytest.raises(KeyboardInterrupt):
        run(ratio=0.3, lr=None, epochs=2)
    assert rates == [0.0125]


def test_defaults_never_end_below_the_start(tmp_path: Path) -> None:
    """Two epochs at the preset's rate took a LeNet-5 from 86.1% to 38.9%. After a repair, rates are lower."""
    images = load("digits", size=32)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = models.create("lenet5", 10)
    network = fit(network, images.loader("train", 64, shuffle=True, seed=0), epochs=4, lr=0.02).model
    train = images.loader("train", 128, augment=True, shuffle=True, seed=0)
    words: dict[str, Any] = {"score_on": images.loader("train", 256), "ratio": 0.3, "epochs": 2, "timing": False}
    (outcome,) = compress(network, train, images.loader("holdout", 256), folder=tmp_path, **words).rounds
    assert outcome.after.quality >= outcome.pruned.quality
    # The rate itself is a sensible one: at 0.05 the loss of an epoch rises by 1.8. (The accuracy on these 144 images
    # moves by 10 points from one processor to another.)
    losses = [epoch.holdout.loss for epoch in outcome.retraining if epoch.holdout is not None]
    assert len(losses) == 2 and max(losses) < outcome.pruned.loss + 0.5
    tries = json.loads((tmp_path / "round-01" / "rate.json").read_text())["tries"]
    assert [one["lr"] for one in tries] == pytest.approx([share * 0.01 for share in (1, 0.3, 0.1, 0.03)])


def test_fine_tuning_reaches_the_training(tmp_path: Path) -> None:
    words: dict[str, Any] = {"ratio": 0.3, "lr": 0.02, "epochs": 2, "distill": True, "views": 1, "batch_norm": "frozen"}
    frozen = run(tmp_path / "frozen", **words)
    live = run(tmp_path / "live", **{**words, "batch_norm": "live"})
    before, now, other = (
        dict(each.named_buffers())["bn1.running_mean"] for each in (trained(), frozen.model, live.model)
    )
    assert frozen.rounds[0].kept_epoch and live.rounds[0].kept_epoch  # trained networks, not those before it
    assert all(value in before for value in now) and not all(value in before for value in other)
    assert json.loads((tmp_path / "frozen" / "config.json").read_text())["settings"]["views"] == 1


# -- pictures


READERS = {"conv1:in": "conv1", "conv1:out": "conv2", "wide:in": "wide", "wide:out": "fc"}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run(tmp_path_factory.mktemp("pictures") / "run")


def test_bytes_are_the_maps(done: Any) -> None:
    folder: Path = done.folder / "round-01"
    found = load_pictures(folder / "pictures.safetensors")
    assert found is not None and found.units
    images, labels = HOLDOUT[0]
    # The first image of each class that is met, in the order of the classes.
    first = [labels.tolist().index(label) for label in sorted(dict.fromkeys(labels.tolist()))]
    assert found.labels == tuple(str(int(labels[i])) for i in first)
    colours = images[first]
    low, high = colours.amin((1, 2, 3), keepdim=True), colours.amax((1, 2, 3), keepdim=True)
    expected = (255 * (colours - low) / (high - low)).permute(0, 2, 3, 1).numpy()
    assert np.abs(found.images - expected).max() <= 0.51
    scores = next(iter(load_scores(folder).values()))
    lost = done.rounds[0].chosen
    for unit in found.units:
        maps = entering(trained(), READERS[unit.unit], images[first])
        maps = maps.reshape(len(first), -1, 4, 4) if unit.unit == "wide:out" else maps
        values = scores.values[unit.unit]
        channels = [shown.channel for shown in unit.shown]
        weak = [shown.channel for shown in unit.shown if shown.removed]
        assert (
            len(weak) == min(2, lost[unit.unit]) and channels[: len(weak)] == np.argsort(values)[: len(weak)].tolist()
        )
        assert channels[len(weak) :] == np.argsort(values)[-2:].tolist()
        assert [shown.score for shown in unit.shown] == pytest.approx(values[channels].tolist())
        mine = maps[:, channels].numpy()  # [N, channels, height, width]
        assert (unit.low, unit.high) == pytest.approx((mine.min(), mine.max()), abs=1e-5)
        levels = 255 * (mine - mine.min()) / (mine.max() - mine.min())
        assert np.abs(unit.maps - levels.transpose(1, 0, 2, 3)).max() <= 0.51
        means = [shown.means for shown in unit.shown]
        assert np.allclose(means, mine.mean((2, 3)).T, atol=1e-5)


def test_batches_that_only_the_users_function_can_read(tmp_path: Path) -> None:
    odd = [(images, labels, "and more") for images, labels in HOLDOUT]

    def own(model: nn.Module, batches: Any) -> Evaluation:
        return evaluate(model, [(images, labels) for images, labels, _ in batches])

    settings: dict[str, Any] = {"ratio": 0.3, "metric": "l1", "timing": False}
    result = compress(trained(), TRAIN, odd, evaluate=own, folder=tmp_path / "run", **settings)
    assert result.rounds[0].chosen and not (tmp_path / "run" / "round-01" / "pictures.safetensors").exists()


class Named(list[Any]):
    """A loader that knows what its classes are called."""

    classes = ("north", "east", "south", "west")


def test_classes_go_by_their_names(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"ratio": 0.3, "metric": "l1", "timing": False}
    compress(trained(), TRAIN, Named(HOLDOUT), folder=tmp_path / "run", **settings)
    found = load_pictures(tmp_path / "run" / "round-01" / "pictures.safetensors")
    assert found is not None and found.labels == Named.classes
    few = Named([(images, labels + 4) for images, labels in HOLDOUT])  # more labels than names: the numbers it is
    assert class_names(few, 8) is None and class_names(few, 4) == Named.classes


def test_a_broken_file_is_named(done: Any, tmp_path: Path) -> None:
    assert load_pictures(tmp_path / "none.safetensors") is None
    content = (done.folder / "round-01" / "pictures.safetensors").read_bytes()
    (tmp_path / "broken.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(FileError, match=r"broken\.safetensors"):
        load_pictures(tmp_path / "broken.safetensors")
    (tmp_path / "other.safetensors").write_bytes(content.replace(b"prunus-pictures", b"prunus-pastries"))
    with pytest.raises(FileError, match="prunus-pictures"):
        load_pictures(tmp_path / "other.safetensors")


@pytest.mark.parametrize(
    ("changes", "steps"), [({"round_to": None}, {24: 4, 16: 4, 8: 4}), ({"round_to": 1}, {24: 1, 16: 1, 8: 1})]
)
def test_a_goal_in_macs_has_widths_that_suit_kernels(changes: dict[str, Any], steps: dict[int, int]) -> None:
    """Units of 8 to 31 channels keep a multiple of 4; any number on request."""
    done = run(target=0.45, repair="solve", epochs=0, **changes)
    widths = {name: (width, len(done.plan.keep[name])) for name, width in done.plan.widths.items()}
    cut = [(width, kept) for width, kept in widths.values() if kept < width]
    assert cut and all(kept % steps[width] == 0 for width, kept in cut)
    assert changes["round_to"] is None or any(kept % 4 for _, kept in cut)
    assert done.summary["removed"]["macs"] >= 0.45
