"""Settings for networks that are good already, each against plain PyTorch or a figure worked out by hand."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunus.errors import RunError
from prunus.tasks.evaluate import squared_distance
from prunus.train import setup
from prunus.train.distillation import common_maps
from prunus.train.fit import fit
from prunus.train.settings import Preset
from prunus.train.setup import AveragedWeights, SomeBatches
from prunus.util.batches import batch_digest
from prunus.zoo.models import create
from tests.train.toys import batches, network, shuffled, state_of

SHORT = Preset("short", epochs=4, lr=0.05, batch_size=8)


class Counting(nn.Module):
    """Counts its forward passes, also those of its copies."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.count = network(), [0]

    def __deepcopy__(self, memo: dict[int, Any]) -> Counting:
        twin = Counting()
        twin.network, twin.count = copy.deepcopy(self.network, memo), self.count
        return twin

    def forward(self, images: Tensor) -> Tensor:
        self.count[0] += 1
        return self.network(images)  # type: ignore[no-any-return]


def test_kept_answers_give_the_loss_of_a_teacher_that_answers_each_time() -> None:
    live, kept = Counting(), Counting()
    expected = fit(network(), batches(5), preset=SHORT, teacher=live)  # a list: the same batches in every epoch
    found = fit(network(), batches(5), preset=SHORT, teacher=kept, views=1)
    assert [epoch.loss for epoch in found.history] == pytest.approx(
        [epoch.loss for epoch in expected.history], rel=1e-6
    )
    for name, tensor in expected.model.state_dict().items():
        torch.testing.assert_close(found.model.state_dict()[name], tensor)
    assert (live.count[0], kept.count[0]) == (4 * 5, 5)
    teacher = Counting()
    fit(network(0.4), shuffled(), preset=SHORT, teacher=teacher, views=2)
    assert teacher.count[0] == 2 * 5  # of 4 epochs of 5 batches; the last two repeat the first two


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "MEMORY", 2 * 8 * 4 * 4)  # two answers: 8 images, 4 classes, 4 bytes
    teacher = Counting()
    expected = fit(network(), batches(5), preset=SHORT, teacher=Counting())
    found = fit(network(), batches(5), preset=SHORT, teacher=teacher, views=1)
    assert teacher.count[0] == 5 + 3 * (5 - 2)
    assert [epoch.loss for epoch in found.history] == pytest.approx(
        [epoch.loss for epoch in expected.history], rel=1e-6
    )


def test_digests_tell_batches_apart() -> None:
    images = batches(1)[0][0]
    changed = images.clone()
    changed[3, 1, 2, 0] += 1e-6
    assert batch_digest(images) == batch_digest(images.clone(memory_format=torch.channels_last))
    others = [changed, images.flip(0), images.double(), images[:7], images.reshape(8, 3, 4, 9), (images, images)]
    assert len({batch_digest(each) for each in (images, *others)}) == 1 + len(others)


def test_frozen_statistics_stay_and_scales_train() -> None:
    model, data = fit(network(), batches(5), preset=SHORT).model, batches(5, seed=1)
    before = state_of(model)
    expected = copy.deepcopy(model).train()
    expected[1].eval()  # type: ignore[operator]
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    for images, labels in data:
        optimizer.zero_grad()
        F.cross_entropy(expected(images), labels).backward()
        optimizer.step()
    preset = Preset("one", epochs=1, lr=0.05, batch_size=8, milestones=())
    found = fit(model, data, preset=preset, batch_norm="frozen", channels_last=False).model.state_dict()
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(found[name], tensor)
    assert torch.equal(found["1.running_mean"], before["1.running_mean"])
    assert not torch.equal(found["1.weight"], before["1.weight"])


def test_averages_by_hand() -> None:
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
        average = AveragedWeights(model, decay=0.15)
        for steps, value in enumerate((2.0, 4.0)):
            model.weight.fill_(value)
            average.step(steps)
    # decays min(0.15, 1/10) and min(0.15, 2/11): 0.1 x 1 + 0.9 x 2 = 1.9, then 0.15 x 1.9 + 0.85 x 4 = 3.685
    assert average.model.weight.item() == pytest.approx(3.685)


def test_averaged_weights_are_evaluated_and_returned() -> None:
    model, held = network(), batches(3, seed=3)
    plain, averaged = (fit(model, batches(5), held, preset=SHORT, ema=decay) for decay in (0.0, 0.9))
    assert [e.loss for e in plain.history] == [e.loss for e in averaged.history]  # training itself is the same
    assert plain.history[-1].holdout != averaged.history[-1].holdout
    assert averaged.model[1].num_batches_tracked == plain.model[1].num_batches_tracked == 20  # type: ignore[index]
    assert [p.requires_grad for p in averaged.model.parameters()] == [True] * 6
    with pytest.raises(RunError, match="ema and soft_prune cannot be combined"):
        fit(model, batches(2), preset=SHORT, ema=0.9, soft_prune=0.2)


def test_common_feature_maps_are_the_ends_of_the_stages() -> None:
    from prunus import Plan, prune, trace

    torch.manual_seed(0)
    whole = create("resnet20", num_classes=4).eval()
    graph = trace(whole, torch.zeros(1, 3, 32, 32))
    inner = {name: range(unit.width // 2) for name, unit in graph.units.items() if unit.kind == "private"}
    small = prune(graph, Plan.of(graph, inner))
    names = common_maps(small, whole, torch.randn(1, 3, 32, 32))
    sizes = {}
    for name in names:
        handle = dict(small.named_modules())[name].register_forward_hook(
            lambda _module, _inputs, output, name=name: sizes.update({name: tuple(output.shape[1:])})
        )
        small(torch.zeros(1, 3, 32, 32))
        handle.remove()
    assert list(sizes.values()) == [(16, 32, 32), (32, 16, 16), (64, 8, 8)]
    with pytest.raises(RunError, match="no feature map has the same shape"):
        common_maps(nn.Sequential(nn.Conv2d(3, 4, 1)), nn.Sequential(nn.Conv2d(3, 5, 1)), torch.zeros(1, 3, 4, 4))


def test_feature_distillation_adds_the_relative_distance() -> None:
    torch.manual_seed(3)
    teacher, model, data = network(), network(), batches(1)
    with torch.no_grad():
        teacher[0].weight += 0.1 * torch.randn(6, 3, 3, 3)  # type: ignore[operator]
    preset = Preset("one", epochs=1, lr=1e-9, batch_size=8)
    options: dict[str, Any] = {"preset": preset, "batch_norm": "frozen", "teacher": teacher.eval(), "views": 1}
    fitted = [fit(model.eval(), data, distill_features=weight, **options) for weight in (0.0, 0.5)]
    losses = [each.history[0].loss for each in fitted]
    assert not any(module._forward_hooks for module in fitted[1].model.modules())
    with torch.no_grad():
        mine, its = (each[:3](data[0][0]) for each in (model, teacher))  # type: ignore[index]
    distance = ((mine - its).square().mean() / its.square().mean()).item()  # one size of map: the last is behind ReLU
    assert losses[1] - losses[0] == pytest.approx(0.5 * distance, rel=1e-3)
    assert float(squared_distance([mine], [its])) == pytest.approx(distance)


@pytest.mark.parametrize("count", [0, 1, 5, 6])
def test_a_part_of_the_batches(count: int) -> None:
    loader = [(number, number) for number in range(count)]
    for world in (2, 3):
        shares = [SomeBatches(loader, rank, None, world) for rank in range(world)]
        assert [list(share) for share in shares] == [loader[rank::world] for rank in range(world)]
        assert [len(share) for share in shares] == [len(loader[rank::world]) for rank in range(world)]
    first = SomeBatches(loader, 0, 3, 1)
    assert list(first) == loader[:3] and len(first) == len(loader[:3])
