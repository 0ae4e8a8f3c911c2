"""`compress`: every kind of goal, user-provided functions, and what is left as found."""

from __future__ import annotations

import copy
import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import prunus as pr
from prunus.errors import DataError, DecideError, RunError
from prunus.run.checkup import quality_doubts
from prunus.run.compress import compress
from prunus.scoring.evidence import Channels
from prunus.tasks import task_of
from prunus.tasks.evaluate import Evaluation, evaluate
from prunus.util.typed_json import from_data, to_data
from tests.proof import assert_accuracy, counted_macs, same_state
from tests.run.toys import EXAMPLE, HOLDOUT, MACS, PARAMS, QUICK, STEP, TEST, TRAIN, fresh, run, trained


def weights(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.dim() > 1)


def test_the_main_job(tmp_path: Path) -> None:
    model = trained()
    before = copy.deepcopy(model)
    state, legacy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    result = run(tmp_path / "run", model, test=TEST)
    assert same_state(model, before) and not model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], legacy)  # noqa: NPY002

    left = counted_macs(result.model.eval(), EXAMPLE)
    assert 0.6 - STEP <= left / MACS <= 0.6
    assert len(result.rounds) == 2 and result.rounds[0].macs > result.rounds[1].macs == left
    assert result.rounds[0].macs <= 0.8 * MACS
    again = pr.load(tmp_path / "run", fresh())
    with torch.no_grad():
        assert torch.equal(again.eval()(TEST[0][0]), result.model(TEST[0][0]))
    assert pr.Plan.load(tmp_path / "run" / "plan.json") == result.plan

    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["before"]["macs"] == MACS and summary["before"]["params"] == PARAMS
    assert (summary["after"]["macs"], summary["after"]["params"]) == (left, weights(result.model))
    for part, loader in (("holdout", HOLDOUT), ("test", TEST)):
        assert_accuracy(summary["before"][part]["quality"], model, loader)
        assert_accuracy(summary["after"][part]["quality"], result.model, loader)
    assert summary["speeds"] == []  # timing=False
    assert summary["after"]["bytes"] == sum(t.numel() * t.element_size() for t in result.model.state_dict().values())
    assert {"score", "sensitivity", "decide", "prune", "retrain"} <= summary["seconds"].keys()
    assert summary["layers"]["conv1"]["outputs"] == [24, result.model.conv1.out_channels]
    files = {"scores.json", "scores.safetensors", "sensitivity.json", "step-plan.json", "plan.json", "round.json"}
    for number in (1, 2):
        found = {path.name for path in (tmp_path / "run" / f"round-{number:02d}").iterdir()}
        assert found == files | {"model.safetensors"} | ({"pictures.safetensors"} if number == 1 else set())


def test_macs_and_params_to_be_left() -> None:
    result = run(macs=100_000, epochs=0)  # without a folder
    assert result.folder is None and all(p.requires_grad for p in result.model.parameters())
    assert 100_000 - STEP * MACS <= counted_macs(result.model, EXAMPLE) <= 100_000 + 0.005 * MACS
    assert len(result.rounds) > 1  # as many as alpha needs
    result = run(params=4000, rounds=1, epochs=0)
    assert 4000 - 144 <= weights(result.model) <= 4000 and len(result.rounds) == 1


def test_one_shot_by_ratio(tmp_path: Path) -> None:
    result = run(tmp_path, ratio=0.25, round_to=1)
    assert len(result.rounds) == 1
    kept = {"conv1:in": 6, "conv1:out": 18, "wide:in": 6, "wide:out": 12}
    assert {n: len(k) for n, k in result.plan.keep.items()} == kept
    assert not (tmp_path / "round-01" / "sensitivity.json").exists()


class Falling:
    """Accuracy as a function of the MACs that are left: what a run does about it can be foretold."""

    def __init__(self, points: float) -> None:
        self.points = points  # lost when half of the MACs are gone

    def __call__(self, model: nn.Module, loader: Any) -> Evaluation:
        gone = 1 - counted_macs(model.eval(), EXAMPLE) / MACS
        return Evaluation(0.9 - 2 * gone * self.points, 0.5, 10)


def test_max_drop_stops_before_it(tmp_path: Path) -> None:
    result = run(tmp_path, max_drop=5, evaluate=Falling(0.1), epochs=0)
    gone = 1 - counted_macs(result.model, EXAMPLE) / MACS
    assert 2 * gone * 0.1 <= 0.05 and len(result.rounds) >= 1
    undone = json.loads((tmp_path / f"round-{len(result.rounds) + 1:02d}" / "round.json").read_text())
    assert 2 * (1 - undone["macs"] / MACS) * 0.1 > 0.05  # the next round would have lost too much
    again = run(tmp_path, max_drop=5, evaluate=Falling(0.1), epochs=0)
    assert same_state(again.model, result.model) and again.rounds == result.rounds
    (tmp_path / "summary.json").unlink()  # as if killed before the last step
    (tmp_path / "model.safetensors").unlink()
    again = run(tmp_path, max_drop=5, evaluate=Falling(0.1), epochs=0)
    assert same_state(again.model, result.model) and again.plan == result.plan


def test_max_drop_that_allows_nothing_and_all(tmp_path: Path) -> None:
    nothing = run(tmp_path, max_drop=0.0, evaluate=Falling(0.1), epochs=0)
    assert nothing.rounds == () and same_state(nothing.model, trained())
    assert not any(nothing.plan.removed().values()) and (tmp_path / "model.safetensors").exists()
    all_ = run(max_drop=90, evaluate=Falling(0.0), epochs=0, alpha=4.0)
    floors = {"conv1:in": 2, "conv1:out": 3, "wide:in": 2, "wide:out": 2}
    assert {n: len(k) for n, k in all_.plan.keep.items()} == floors


def test_a_target_and_max_drop_together() -> None:
    result = run(target=0.8, max_drop=6, evaluate=Falling(0.1), epochs=0)
    assert 0.1 < 1 - counted_macs(result.model, EXAMPLE) / MACS <= 0.3
    result = run(target=0.2, max_drop=6, evaluate=Falling(0.1), epochs=0)
    assert 0.195 <= 1 - counted_macs(result.model, EXAMPLE) / MACS <= 0.2 + STEP


def test_more_rounds_than_granules() -> None:
    """Eight rounds to 6%: single channels overshoot the next aims, and the run still ends where it should."""
    result = run(target=0.06, rounds=8, epochs=0, metric="l1")
    assert 0.055 <= 1 - counted_macs(result.model, EXAMPLE) / MACS <= 0.06 + STEP and len(result.rounds) <= 8


def test_a_users_own_fit_metric_and_evaluate(tmp_path: Path) -> None:
    heard: list[str] = []

    def weakest_last(channels: Channels) -> Tensor:
        heard.append(channels.unit)
        return torch.arange(channels.moments.channels, 0, -1).double()

    def nudge(model: nn.Module, train: Any, holdout: Any) -> nn.Module:
        assert train is TRAIN and holdout is HOLDOUT
        heard.append("fit")
        trained = copy.deepcopy(model)
        with torch.no_grad():
            trained.fc.bias += torch.randn(4)  # from the global generator: the same again after a kill
        return trained

    def judge(model: nn.Module, loader: Any) -> Evaluation:
        heard.append("judge")
        return evaluate(model, loader)

    words: dict[str, Any] = {"metric": weakest_last, "fit": nudge, "evaluate": judge}
    result = run(tmp_path / "a", **words)
    assert heard.count("fit") == 2 and heard.count("judge") >= 5 and "conv1:out" in heard
    assert result.summary["settings"]["metric"] == "weakest_last"
    kept = {n: k for n, k in result.plan.keep.items() if len(k) < result.plan.widths[n]}
    assert kept and all(k == tuple(range(len(k))) for k in kept.values())  # the last ones went
    torch.manual_seed(77)
    assert same_state(run(tmp_path / "b", **words).model, result.model)


def test_options_reach_the_steps(tmp_path: Path) -> None:
    result = run(tmp_path, exclude=("conv1*",), measure="loss", exact=True, metric="l1", k=1, streams="coupled")
    found = json.loads((tmp_path / "round-01" / "sensitivity.json").read_text())
    assert found["measure"] == "loss" and found["alpha"] > 0.5
    assert all(row["num_images"] == 120 for row in found["tried"].values())
    assert result.plan.streams == "coupled" and "conv1:out" not in found["tried"]
    assert len(result.plan.keep["conv1:out"]) == 24
    by_ratio = run(split="ratio", target=0.3, epochs=0)
    assert 0.295 <= 1 - counted_macs(by_ratio.model, EXAMPLE) / MACS <= 0.3 + STEP


def test_retraining_and_repair_do_good() -> None:
    cut = run(ratio=0.6, metric="random", epochs=0).rounds[0]
    assert cut.after == cut.pruned and cut.before.quality > cut.pruned.quality + 0.05
    result = run(ratio=0.6, metric="random", epochs=4)
    again = result.rounds[0]
    assert again.pruned == cut.pruned and again.after.loss < cut.after.loss and again.after.quality > cut.after.quality
    assert [epoch.number for epoch in again.retraining] == [1, 2, 3, 4] and cut.retraining == ()
    # The best epoch's network is the round's. It is evaluated in channels_last there, and in plain memory afterwards.
    assert again.kept_epoch
    last = again.retraining[again.kept_epoch - 1].holdout
    assert last is not None and last.loss == pytest.approx(again.after.loss, rel=1e-5)
    for accuracy in (last, again.after):
        assert_accuracy(accuracy.quality, result.model, HOLDOUT)
    assert again.seconds["retrain"] >= sum(epoch.seconds for epoch in again.retraining) - 0.001
    assert from_data(type(again), json.loads(json.dumps(to_data(again)))) == again
    repaired = run(ratio=0.6, metric="random", epochs=0, repair="solve").rounds[0]
    assert repaired.pruned == repaired.after and repaired.after.loss < cut.after.loss


def test_a_shuffling_data_loader_gives_the_same_run_again() -> None:
    images, labels = (torch.cat(parts) for parts in zip(*TRAIN, strict=True))
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        loader = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True)
        results.append(compress(trained(), loader, HOLDOUT, target=0.3, rounds=1, **QUICK))
    assert same_state(results[0].model, results[1].model) and results[0].plan == results[1].plan


def test_phases_are_told_and_the_round_that_meets_the_goal_may_train_longer() -> None:
    steps: dict[str, int] = {}

    def hear(phase: str, done: int, total: int, note: str) -> None:
        assert 0 <= done <= total
        steps[phase] = total

    run(rounds=2, last_epochs=3, test=TEST, timing=True, progress=hear)
    parts = ("score", "sensitivity", "evaluate", "retrain")
    words = [f"round {number}: {word}" for number in (1, 2) for word in parts]
    assert list(steps) == ["trace", "evaluate", *words, "test", "timing"]
    assert [steps[f"round {number}: retrain"] for number in (1, 2)] == [len(TRAIN), 3 * len(TRAIN)]
    steps.clear()
    run(rounds=2, epochs=0, last_epochs=2, progress=hear)
    assert {phase: total for phase, total in steps.items() if "retrain" in phase} == {
        "round 2: retrain": 2 * len(TRAIN)
    }


def test_doubts_about_a_held_out_quality(caplog: pytest.LogCaptureFixture) -> None:
    wrong = [(images, torch.full_like(labels, 3)) for images, labels in HOLDOUT]
    model, task = trained(), task_of(None)
    with torch.no_grad():
        model.fc.bias[0] += 100
    compress(model, TRAIN, wrong, target=0.2, rounds=1, **{**QUICK, "epochs": 0})
    assert "the network scores 0.0% on the held-out images, about what guessing among 4 classes gives" in caplog.text
    (words,) = quality_doubts(Evaluation(0.998, 0.01, 1000), model, EXAMPLE, task)
    assert "99.80% on 1000 images, which is suspiciously perfect" in words
    assert not quality_doubts(Evaluation(0.93, 0.2, 1000), model, EXAMPLE, task)
    assert len(quality_doubts(Evaluation(0.36, 0.2, 1000), model, EXAMPLE, task)) == 1  # less than 1.5 times a quarter
    assert not quality_doubts(Evaluation(0.38, 0.2, 1000), model, EXAMPLE, task)
    with pytest.raises(DataError, match="no labelled images"):
        run(evaluate=lambda model, loader: Evaluation(0.0, 0.0, 0))


# -- the result


class Tokens(nn.Module):
    """Patches, attention and an MLP behind norms, for the images of the toys."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, 8, 2, stride=2), nn.Linear(8, 4)
        self.first, self.qkv, self.proj = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.second, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.heads, self.size = 2, 4

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        qkv = self.qkv(self.first(x)).reshape(len(x), -1, 3, self.heads, self.size)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.proj(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = x + self.down(torch.relu(self.up(self.second(x))))
        return self.head(x.mean(1))


def test_norms_and_attention_lose_channels_on_request(tmp_path: Path) -> None:
    """The stream is cut in front of its norms, and a second run goes on in the same way."""
    torch.manual_seed(0)
    model, how = Tokens().eval(), {"streams": "coupled", "norms": "compensated", "attention": "dims"}
    result = compress(model, TRAIN, HOLDOUT, target=0.7, round_to=1, timing=False, folder=tmp_path / "run", **how)
    assert result.plan.ways == how
    assert result.plan.widths == {"patches:out": 8, "qkv:out": 8, "up:out": 16}
    assert result.plan.removed()["patches:out"] > 0
    small: Any = result.model
    assert small.first.normalized_shape == (len(result.plan.keep["patches:out"]),)
    again = compress(small, TRAIN, HOLDOUT, target=0.2, timing=False)
    assert again.plan.ways == how
    with pytest.raises(DecideError, match=r'pruned with streams="coupled".*leave out streams="select"'):
        compress(small, TRAIN, HOLDOUT, target=0.2, timing=False, streams="select")


@pytest.fixture(scope="module")
def result() -> Any:
    """Of a run without a folder."""
    return run(target=0.3, rounds=1, epochs=0, timing=True)


def test_it_is_saved_exported_and_reported(result: Any, tmp_path: Path) -> None:
    assert result.folder is None and result.reached
    images = TEST[0][0][:1]
    with torch.no_grad():
        answer = result.model.eval()(images)
    result.save(tmp_path / "saved")
    with torch.no_grad():
        assert torch.equal(pr.load(tmp_path / "saved", fresh()).eval()(images), answer)
    result.export(tmp_path / "small.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "small.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    assert np.allclose(found, answer.numpy(), atol=1e-5) and images.shape[1:] == EXAMPLE.shape[1:]
    page = result.report(tmp_path / "page.html")
    assert page == tmp_path / "page.html" and result.summary["goal"]["text"] in page.read_text()
    with pytest.raises(RunError, match=r"the run has no folder: give report\(path\)"):
        result.report()


def test_a_terminal_and_a_notebook_show_the_same(result: Any) -> None:
    lines, html = repr(result).splitlines(), result._repr_html_()
    speed = result.summary["speeds"][0]
    where = f"in {speed['engine']} at batch 1"
    assert result.speedup == speed["ratio"] and where in lines[0] and lines[1] == result.summary["goal"]["text"]
    assert lines[0].replace("->", "-&gt;") in html and lines[1] in html
    for each in result.summary["speeds"]:
        assert f"<td style='text-align:left'>ms in {each['engine']} at batch 1</td>" in html
    assert html.count("<tr>") == len(lines) - 2  # the table, with its heading


def test_a_temporary_folder_goes_with_the_result_and_a_run_without_timing_says_so() -> None:
    alone = run(ratio=0.3, epochs=0)
    files = alone.files
    assert alone.folder is None and (files / "summary.json").exists()
    assert alone.speedup is None and "speed not measured" in repr(alone).splitlines()[0] and "ms in" not in repr(alone)
    del alone
    gc.collect()
    assert not files.exists()
