"""fit() against a loop written out by hand, bit for bit, and what it must leave alone and refuse."""

from __future__ import annotations

import copy
import importlib
import json
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from prunus import Plan, prune, trace
from prunus.errors import DataError, RunError
from prunus.tasks.evaluate import Evaluation, evaluate
from prunus.train.checkpoint import Epoch
from prunus.train.fit import StepReport, fit
from prunus.train.settings import Preset
from prunus.zoo.models import create
from tests.processes import python
from tests.proof import same_state
from tests.train.toys import CLASSES, batches, network, same_tensors, shuffled, state_of

STEPS = Preset("steps", epochs=5, lr=0.1, batch_size=8)  # 0.1, 0.1, 0.02, 0.02, 0.004


def by_hand(
    model: nn.Module, data: list[tuple[Tensor, Tensor]], rates: list[float], teacher: nn.Module | None = None
) -> tuple[nn.Module, list[float], list[float]]:
    """Plain PyTorch: the network after an epoch at each rate, mean losses, accuracies."""
    model = copy.deepcopy(model).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, nesterov=True, weight_decay=1e-4)
    losses, accuracies = [], []
    for rate in rates:
        optimizer.param_groups[0]["lr"] = rate
        total, hits = 0.0, 0
        for images, labels in data:
            logits = model(images)
            loss = F.cross_entropy(logits, labels)
            if teacher is not None:
                with torch.no_grad():
                    target = F.softmax(teacher(images) / 3, dim=1)
                soft = F.kl_div(F.log_softmax(logits / 3, dim=1), target, reduction="batchmean")
                loss = 0.25 * loss + 0.75 * 9 * soft
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(labels)
            hits += int((logits.argmax(1) == labels).sum())
        losses.append(total / (len(data) * len(data[0][1])))
        accuracies.append(hits / (len(data) * len(data[0][1])))
    return model, losses, accuracies


def test_equals_a_loop_by_hand_bit_for_bit() -> None:
    model, data, held = network(), batches(6), batches(3, seed=5)
    expected, losses, accuracies = by_hand(model, data, [0.1, 0.1, 0.02, 0.02, 0.004])
    fitted = fit(model, data, held, preset=STEPS, channels_last=False, device="cpu")
    assert same_state(fitted.model, expected)
    assert [epoch.number for epoch in fitted.history] == [1, 2, 3, 4, 5]
    assert [epoch.lr for epoch in fitted.history] == pytest.approx([0.1, 0.1, 0.02, 0.02, 0.004])
    assert [epoch.loss for epoch in fitted.history] == pytest.approx(losses, rel=1e-6)
    assert [epoch.quality for epoch in fitted.history] == pytest.approx(accuracies)
    assert fitted.history[-1].holdout == evaluate(expected, held)
    assert losses[-1] < 0.5 * losses[0]  # and it does learn
    ordered = fit(model, data, preset=STEPS, channels_last=True).model
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(ordered.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)
    assert all(parameter.is_contiguous() for parameter in ordered.parameters())


def test_distillation_equals_a_loop_by_hand() -> None:
    model, data, teacher = network(), batches(4), by_hand(network(), batches(8), [0.1] * 3)[0].eval()
    expected, _, _ = by_hand(model, data, [0.1, 0.1, 0.02, 0.02, 0.004], teacher)
    soft = {"temperature": 3.0, "distill_weight": 0.75}
    fitted = fit(model, data, preset=STEPS, channels_last=False, teacher=teacher.train(), **soft)
    for name, tensor in state_of(expected).items():
        torch.testing.assert_close(fitted.model.state_dict()[name], tensor, rtol=1e-5, atol=1e-6)
    assert teacher.training  # as found, though it taught in eval mode
    assert not same_state(fitted.model, fit(model, data, preset=STEPS, channels_last=False).model)


def test_nothing_of_the_callers_is_changed() -> None:
    model, data = network(dropout=0.5).eval(), batches(3)
    model[1].train()
    model[0].weight.requires_grad_(False)
    before, images = state_of(model), [copy.deepcopy(pair) for pair in data]
    torch.manual_seed(11)
    expected = torch.rand(2)
    torch.manual_seed(11)
    fitted = fit(model, data, data, preset=STEPS, epochs=2)
    assert torch.equal(torch.rand(2), expected)
    assert same_tensors(state_of(model), before) and model[0].weight.grad is None
    assert all(
        torch.equal(a, b) for pair, twin in zip(data, images, strict=True) for a, b in zip(pair, twin, strict=True)
    )
    for network_ in (model, fitted.model):  # modes and frozen weights as found, in both
        assert [module.training for module in network_.modules()] == [False, False, True, False, False, False, False]
        assert [parameter.requires_grad for parameter in network_.parameters()] == [False] + [True] * 5
    assert torch.equal(fitted.model[0].weight, model[0].weight)
    assert not torch.equal(fitted.model[5].weight, model[5].weight)
    assert "forward" not in vars(fitted.model)  # Accelerate's patches stay outside


def test_epochs_and_seeds_differ_in_order_and_dropout() -> None:
    seen: list[list[int]] = []

    class Spy(nn.Linear):
        def forward(self, images: Tensor) -> Tensor:
            seen[-1] += images[:, 0].int().tolist()
            return super().forward(images)

    class Loader(DataLoader[tuple[Tensor, ...]]):
        def __iter__(self) -> Any:
            seen.append([])
            return super().__iter__()

    loader = Loader(TensorDataset(torch.arange(40.0).view(20, 2), torch.zeros(20).long()), batch_size=5, shuffle=True)
    fit(Spy(2, 2), loader, preset=STEPS, epochs=3, lr=1e-9)
    assert all(sorted(epoch) == list(range(0, 40, 2)) for epoch in seen)
    assert len({tuple(epoch) for epoch in seen}) == 3
    runs = [state_of(fit(network(0.3), shuffled(), preset=STEPS, epochs=2, seed=seed).model) for seed in (1, 1, 2)]
    assert same_tensors(runs[0], runs[1]) and not same_tensors(runs[0], runs[2])


def test_loaders_are_told_the_epoch_and_dicts_do() -> None:
    class Loader:
        def __init__(self) -> None:
            self.epochs: list[int] = []

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

        def __len__(self) -> int:
            return 2

        def __iter__(self) -> Iterator[dict[str, Tensor]]:
            return iter([{"images": images, "labels": labels} for images, labels in batches(2)])

    loader = Loader()
    fitted = fit(network(), loader, preset=STEPS, epochs=3, channels_last=False)
    assert loader.epochs == [0, 1, 2]
    fit(network(), loader, preset=STEPS, epochs=2, first_epoch=7)
    assert loader.epochs == [0, 1, 2, 7, 8]
    assert same_tensors(
        state_of(fitted.model), state_of(fit(network(), batches(2), preset=STEPS, epochs=3, channels_last=False).model)
    )


def test_a_pruned_network_with_channel_selection_is_trained_like_any_other() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = create("resnet20", num_classes=CLASSES)
    graph = trace(model, torch.zeros(1, 3, 32, 32))
    assert {unit.kind for unit in graph.units.values()} == {"private", "stream"}
    small = prune(graph, Plan.of(graph, {name: range(unit.width // 2) for name, unit in graph.units.items()}))
    data = [(torch.randn(8, 3, 32, 32), torch.randint(0, CLASSES, (8,)))] * 2
    expected, _, _ = by_hand(small, data, [0.1, 0.02])
    preset = Preset("two", epochs=2, lr=0.1, batch_size=8, milestones=(0.5,))
    fitted = fit(small, data, preset=preset, channels_last=False)
    assert same_state(fitted.model, expected)
    assert not torch.equal(fitted.model(data[0][0]), small(data[0][0]))


def test_progress_and_epochs_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("prunus.train.fit"), "SECONDS_BETWEEN_REPORTS", 0.0)
    news: list[StepReport] = []
    ends: list[Epoch] = []
    fitted = fit(network(), batches(3), preset=STEPS, epochs=2, progress=news.append, on_epoch=ends.append)
    assert [(n.epoch, n.epochs, n.step, n.steps) for n in news] == [(e, 2, s, 3) for e in (1, 2) for s in (1, 2, 3)]
    assert news[-1].seconds_left == 0.0 and all(n.seconds_left > 0 for n in news[:-1])
    assert all(n.images_per_second > 0 for n in news)
    assert (news[2].loss, news[2].quality) == (fitted.history[0].loss, fitted.history[0].quality)
    assert tuple(ends) == fitted.history
    assert repr(fitted) == f"Fitted(Sequential: 2 epochs, loss {ends[1].loss:.4g})"


def test_a_user_provided_evaluation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def own(model: nn.Module, loader: Any) -> Evaluation:
        assert isinstance(model, nn.Sequential) and loader == "their own thing"
        return Evaluation(1.0, math.nan, 1000)

    options: dict[str, Any] = {"preset": STEPS, "epochs": 2, "checkpoint_dir": tmp_path, "evaluate": own}
    with caplog.at_level(logging.WARNING):
        history = fit(network(), batches(1), "their own thing", **options).history  # type: ignore[arg-type]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines] == [epoch.loss for epoch in history]
    assert lines[0]["holdout"] == {"quality": 1.0, "loss": None, "num_images": 1000, "details": {}}  # JSON knows no NaN
    assert "suspiciously perfect" in caplog.text


@pytest.mark.parametrize(
    "loader, error, message",
    [
        ([], DataError, "nothing to train on"),
        ((pair for pair in batches(1)), RunError, "loader with a length.*generator"),
        ([(torch.zeros(2, 3, 6, 6), torch.tensor([0, CLASSES]))], DataError, "labels from 0 to 4"),
        ([(torch.zeros(2, 3, 6, 6), torch.tensor([0.0, 1.0]))], DataError, "integers"),
    ],
)
def test_loaders_that_cannot_be_trained_on(loader: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fit(network(), loader, preset=STEPS)


def test_runs_that_cannot_go_on() -> None:
    with pytest.raises(RunError, match=r"loss became.*epoch 1.*lower learning rate"):
        fit(network(), batches(4), preset=STEPS, lr=1e20)
    with pytest.raises(RunError, match="nothing to train"):
        fit(network().requires_grad_(False), batches(1), preset=STEPS)
    with pytest.raises(RunError, match=r"teacher\'s outputs are \[8, 7\], the network\'s \[8, 4\]"):
        fit(network(), batches(1), preset=STEPS, teacher=nn.Sequential(nn.Flatten(), nn.Linear(108, 7)))


BF16 = """
from prunus.train.fit import fit
from prunus.zoo.models import create
from tests.train.toys import batches, network
runs = [fit(network(), batches(8), preset="cosine", epochs=6, mixed_precision=name) for name in ("no", "bf16")]
full, half = (run.model[5].weight.detach() for run in runs)
print(half.dtype, bool((full == half).all()), float((full - half).norm() / full.norm()), runs[1].history[-1].quality)
"""


def test_bf16_on_the_cpu_in_a_process_of_its_own() -> None:
    """Of its own, because oneDNN must be told before it starts: virtual machines may announce AMX and not have it."""
    said = python("-W", "error", "-c", BF16, DNNL_MAX_CPU_ISA="AVX512_CORE")
    dtype, equal, distance, accuracy = said.split()
    assert (dtype, equal) == ("torch.float32", "False")  # weights stay float32; the arithmetic did not
    assert float(distance) < 0.1 and float(accuracy) > 0.5
