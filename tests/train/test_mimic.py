"""Mimicking: a few steps without labels, towards what the original network computes."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import prunus as pr
from prunus.tasks import task_of
from prunus.train.mimic import Likeness, _Parts
from tests.proof import same_state
from tests.run.toys import HOLDOUT, TEST, TRAIN, run, trained

IMAGES = [(images,) for images, _ in TRAIN]  # without labels
SHORT: dict[str, Any] = {"mixed_precision": "no", "lr": 0.01}


def disturbed(amount: float = 0.05) -> nn.Module:
    """The network with noise on its weights: something to repair."""
    model, draw = trained(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += amount * parameter.std() * torch.randn(parameter.shape, generator=draw)
    return model


def kl(model: nn.Module, original: nn.Module, images: Tensor) -> float:
    """16 KL(original / 4 || model / 4), by hand."""
    with torch.no_grad():
        mine, its = (net.eval()(images).double() / 4 for net in (model, original))
    p, q = its.softmax(1), mine.softmax(1)
    return float(16 * (p * (p.log() - q.log())).sum(1).mean())


def maps_of(model: nn.Module, name: str, images: Tensor) -> Tensor:
    kept: list[Tensor] = []
    with torch.no_grad():
        hook = model.get_submodule(name).register_forward_hook(lambda *a: kept.append(a[-1]))
        model.eval()(images)
        hook.remove()
    return kept[0].double()


def test_the_loss_is_the_distance_of_outputs_and_of_the_ends_of_stages() -> None:
    model, original = disturbed(), trained()
    likeness = Likeness(model, original, task_of(None), IMAGES)
    assert likeness.names == ["conv2", "bn2"]  # the last map of 6 x 6 and of 4 x 4
    images = HOLDOUT[0][0]
    pairs = [(maps_of(model, name, images), maps_of(original, name, images)) for name in likeness.names]
    apart = sum(float((a - b).square().mean() / b.square().mean()) for a, b in pairs) / 2
    got = likeness.evaluate(model, HOLDOUT[:1])
    assert got.loss == pytest.approx(kl(model, original, images) + apart, rel=1e-4) and got.quality == -got.loss
    assert likeness.evaluate(original, HOLDOUT[:1]).loss == pytest.approx(0, abs=1e-6)


def test_it_comes_closer_without_labels_and_changes_neither_network() -> None:
    model, original = disturbed(0.3), trained()
    before = [copy.deepcopy(net) for net in (model, original)]
    done = pr.mimic(model, original, IMAGES, [(images,) for images, _ in HOLDOUT], steps=60, **SHORT)
    images = torch.cat([images for images, _ in TEST])
    assert kl(done.model, original, images) < 0.7 * kl(model, original, images)
    assert min(done.losses) < done.losses[0] and done.steps > 0 and done.lr == 0.01
    assert repr(done).startswith(f"Mimicked(Small: {done.steps} steps at rate 0.01, held-out loss ")
    for net, copied in zip((model, original), before, strict=True):
        assert same_state(net, copied)
        assert not net._forward_hooks and all(not module._forward_hooks for module in net.modules())


def test_it_never_ends_with_a_larger_loss() -> None:
    """A rate that is far too high: the given network is returned."""
    model = disturbed()
    done = pr.mimic(model, trained(), IMAGES, HOLDOUT, steps=24, mixed_precision="no", lr=0.4)
    assert done.steps == 0 and same_state(done.model, model)


def test_a_short_test_chooses_the_rate() -> None:
    done = pr.mimic(disturbed(), trained(), IMAGES, HOLDOUT, steps=24, mixed_precision="no")
    assert any(math.isclose(done.lr, 0.02 * share) for share in (1.0, 0.3, 0.1, 0.03))


def test_networks_without_a_common_map_compare_their_outputs() -> None:
    def net(width: int) -> nn.Module:
        torch.manual_seed(width)
        return nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * width, 4)).eval()

    small, whole = net(4), net(8)
    done = pr.mimic(small, whole, IMAGES, HOLDOUT, steps=40, **SHORT)
    images = HOLDOUT[0][0]
    assert kl(done.model, whole, images) < kl(small, whole, images)


def test_regression_is_mimicked_too() -> None:
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)).eval()
    other = copy.deepcopy(whole)
    with torch.no_grad():
        other[3].bias += 1
    done = pr.mimic(other, whole, IMAGES, HOLDOUT, steps=60, task="regression", **SHORT)
    with torch.no_grad():
        gap = [(net(HOLDOUT[0][0]) - whole(HOLDOUT[0][0])).square().mean() for net in (other, done.model)]
    assert gap[1] < 0.5 * gap[0]


def test_wrong_numbers_of_steps_no_images_and_nan() -> None:
    for steps in (0, 2.5, True):
        with pytest.raises(pr.RunError, match="steps must be a whole number of at least 1"):
            pr.mimic(disturbed(), trained(), IMAGES, HOLDOUT, steps=steps)  # type: ignore[arg-type]
    with pytest.raises(pr.RunError, match="no images"):
        pr.mimic(disturbed(), trained(), [], HOLDOUT, steps=4)
    with pytest.raises(pr.RunError, match="no held-out images"):
        pr.mimic(disturbed(), trained(), IMAGES, [], steps=4, **SHORT)
    broken = [(torch.full_like(images, float("nan")),) for (images,) in IMAGES]
    with pytest.raises(pr.DataError, match="NaN or infinite"):
        pr.mimic(disturbed(), trained(), broken, HOLDOUT, steps=4, **SHORT)
    with pytest.raises(pr.DataError, match="NaN or infinite"):
        pr.mimic(disturbed(), trained(), IMAGES, broken, steps=4, **SHORT)
    with pytest.raises(pr.DecideError, match="mimic must be at least 0, got -5"):
        run(target=0.6, mimic=-5)


def test_ctrl_c_keeps_the_repaired_network(tmp_path: Path) -> None:
    words = {"target": 0.6, "repair": "solve", "epochs": 0}
    repaired = run(tmp_path / "repaired", **words).model

    def stop(phase: str, done: int, _total: int | None, _note: str) -> None:
        if phase == "round 1: mimic" and done > 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", mimic=24, progress=stop, **words)
    assert same_state(pr.load(tmp_path / "run" / "round-01", trained()), repaired)


def test_parts_go_on_where_the_last_one_ended() -> None:
    parts = _Parts([1, 2, 3, 4, 5], 3)
    seen = []
    for epoch in range(4):
        parts.set_epoch(epoch)
        seen.append(list(parts))
    assert seen == [[1, 2, 3], [4, 5, 1], [2, 3, 4], [5, 1, 2]]


def test_few_images_are_read_again_with_other_crops() -> None:
    """A part of 7 steps of a loader of 3 batches is three epochs of it, and the next part begins with the fourth."""

    class Loader:
        def __init__(self) -> None:
            self.epoch = 0

        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Any:
            return iter([(self.epoch, place) for place in range(3)])

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    parts = _Parts(Loader(), 7)
    for part, first in ((0, 0), (1, 3)):
        parts.set_epoch(part)
        assert list(parts) == [(first + number // 3, number % 3) for number in range(7)]


def test_in_a_run_it_follows_the_repair_and_an_interrupted_one_goes_on(tmp_path: Path) -> None:
    words = {"target": 0.6, "repair": "bn", "split": "uniform", "epochs": 0, "mimic": 24}
    done = run(tmp_path / "run", **words)
    outcome, after = done.rounds[0], done.summary["after"]["holdout"]
    assert outcome.mimicked is not None and outcome.after == outcome.mimicked
    assert outcome.mimicked.quality >= outcome.pruned.quality and len(outcome.mimic_losses) == 2
    with torch.no_grad():
        outputs = torch.cat([done.model.eval()(images) for images, _ in HOLDOUT])
    labels = torch.cat([labels for _, labels in HOLDOUT])
    assert after["quality"] == pytest.approx(float((outputs.argmax(1) == labels).double().mean()), abs=1e-9)
    assert after["loss"] == pytest.approx(float(nn.functional.cross_entropy(outputs, labels)), rel=1e-5)
    assert after["loss"] != pytest.approx(outcome.pruned.loss, rel=1e-4)  # it differs from the repaired network's
    assert any("mimicking the original changed" in note for note in done.summary["notes"])
    for name in ("summary.json", "model.safetensors", "plan.json", "round-01/round.json"):
        (tmp_path / "run" / name).unlink()
    loaded = pr.load(tmp_path / "run" / "round-01", trained())  # also in the middle of mimicking there is a network
    assert loaded.state_dict().keys() == done.model.state_dict().keys()
    assert same_state(run(tmp_path / "run", **words).model, done.model)
