"""Stratified samples of a loader, and passes that leave everything of the caller as it was."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import prunus as pr
from prunus.scoring.collect import collect
from prunus.scoring.passes import Sample, quotas, sampled
from prunus.scoring.score import score
from tests import nets
from tests.scoring.toys import batches, graph_of

LABELS = torch.tensor([0] * 40 + [1] * 20 + [2] * 10)


IMAGES = torch.arange(70.0).view(-1, 1)


def read(loader: Any) -> tuple[list[float], list[int]]:
    pairs = [(x, y) for x, y in loader]
    return torch.cat([x for x, _ in pairs])[:, 0].tolist(), torch.cat([y for _, y in pairs]).tolist()


def as_list() -> list[tuple[Tensor, Tensor]]:
    order = torch.randperm(70, generator=torch.Generator().manual_seed(1))
    return [(IMAGES[order[i : i + 9]], LABELS[order[i : i + 9]]) for i in range(0, 70, 9)]


def test_quotas_by_share_and_by_balance() -> None:
    sizes = np.array([40, 20, 10])
    assert quotas(sizes, 14).tolist() == [8, 4, 2]
    assert quotas(sizes, 15).tolist() == [9, 4, 2]  # 8.57, 4.29, 2.14
    assert quotas(sizes, 100).tolist() == [40, 20, 10]
    assert quotas(sizes, 30, balanced=True).tolist() == [10, 10, 10]
    assert quotas(sizes, 50, balanced=True).tolist() == [20, 20, 10]
    assert quotas(sizes, 31, balanced=True).tolist() == [11, 10, 10]
    assert quotas(np.array([3, 0, 5]), 4, balanced=True).tolist() == [2, 0, 2]


class Counting(Dataset[tuple[Tensor, Tensor]]):
    """Knows its labels without reading images, and which images were read."""

    def __init__(self) -> None:
        self.targets = LABELS.tolist()
        self.read: list[int] = []

    def __len__(self) -> int:
        return 70

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        self.read.append(i)
        return IMAGES[i], LABELS[i]


LOADERS = {
    "list": as_list,
    "shuffled DataLoader": lambda: DataLoader(TensorDataset(IMAGES, LABELS), batch_size=8, shuffle=True),
    "DataLoader without labels": lambda: DataLoader(
        [(x, y) for x, y in zip(IMAGES, LABELS, strict=True)], batch_size=8
    ),
    "Subset": lambda: DataLoader(Subset(Counting(), list(range(70))), batch_size=8),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_every_class_keeps_its_share_and_no_image_comes_twice(kind: str) -> None:
    loader = LOADERS[kind]()
    draws = []
    for _ in range(3):
        images, labels = read(sampled(loader, 14))
        assert np.bincount(labels).tolist() == [8, 4, 2]
        assert len(set(images)) == 14
        assert [int(LABELS[int(i)]) for i in images] == labels
        draws.append(frozenset(images))
    assert len(set(draws)) > 1  # fresh each time
    assert read(sampled(loader, None))[1].count(2) == 10


def test_all_subsets_are_equally_likely() -> None:
    """2 of 4 images of one class, picked while reading: each of the 6 pairs about 100 times in 600."""
    loader = [(torch.arange(4.0).view(-1, 1), torch.zeros(4, dtype=torch.int64))]
    seen: dict[frozenset[float], int] = {}
    for seed in range(600):
        pair = frozenset(read(sampled(loader, 2, seed=seed))[0])
        seen[pair] = seen.get(pair, 0) + 1
    assert len(seen) == 6
    assert sum((n - 100) ** 2 / 100 for n in seen.values()) < 20.5  # chi-square with 5 degrees, p = 0.001


def test_a_seed_gives_the_same_sample_and_only_chosen_images_are_read_where_labels_are_known() -> None:
    for kind in ("list", "Subset"):
        loader = LOADERS[kind]()
        assert read(sampled(loader, 14, seed=3)) == read(sampled(loader, 14, seed=3))
        sample = Sample(loader, 14)
        again = sample.batches()
        assert read(sample.batches()) == read(again) == read(again)
    data = Counting()
    images, _ = read(sampled(DataLoader(data, batch_size=8), 14))
    assert len(data.read) == 14 and sorted(data.read) == sorted(map(int, images))


def test_a_sharded_loader_is_sampled_within_its_share() -> None:
    sampler = torch.utils.data.distributed.DistributedSampler(
        TensorDataset(IMAGES, LABELS), num_replicas=2, rank=1, shuffle=False
    )
    images, _ = read(sampled(DataLoader(TensorDataset(IMAGES, LABELS), batch_size=5, sampler=sampler), 10))
    assert all(int(i) % 2 == 1 for i in images)


def boxed(sizes: tuple[int, ...]) -> list[tuple[Tensor, list[dict[str, Tensor]]]]:
    """Images with their number as pixels; each has its number of boxes, plus one, labelled by it."""
    batches, start = [], 0
    for size in sizes:
        numbers = range(start, start + size)
        images = torch.tensor(numbers, dtype=torch.float32).reshape(-1, 1, 1, 1)
        batches.append((images, [{"boxes": torch.full((n + 1, 4), float(n))} for n in numbers]))
        start += size
    return batches


def test_a_list_with_the_labels_of_each_image_is_sampled_with_its_images() -> None:
    task = pr.Task(loss=lambda outputs, labels: outputs.mean(), quality=lambda outputs, labels: outputs)
    seen = []
    for images, labels in sampled(boxed((2, 5, 3)), 6, seed=0, task=task):
        assert len(images) == len(labels)
        for image, label in zip(images, labels, strict=True):
            seen.append(int(image))
            assert torch.equal(label["boxes"], torch.full((int(image) + 1, 4), float(image)))
    assert len(set(seen)) == len(seen) == 6


def test_batches_whose_labels_cannot_be_divided_stay_whole() -> None:
    """As YOLO's: the boxes of all images in one tensor, and the image that each belongs to in another."""
    batches = [{"images": torch.zeros(4, 1, 2, 2), "boxes": torch.zeros(7, 4), "of": torch.zeros(7)} for _ in range(2)]
    task = pr.Task(inputs=lambda b: (b["images"], b), loss=lambda o, y: o.mean(), quality=lambda o, y: o)
    found = list(sampled(batches, 4, seed=0, task=task))
    assert found and all(batch["images"].shape[0] == 4 and len(batch["boxes"]) == 7 for batch in found)


METRICS = ["gsd", "di", "fisher"]  # one for each kind of pass


def prepared() -> pr.ChannelGraph:
    graph = graph_of(nets.Residual)
    model = graph.model.train()
    model.get_submodule("bn1").eval()
    model.get_submodule("conv1").weight.requires_grad_(False)
    model.get_submodule("fc").weight.grad = torch.ones_like(model.get_submodule("fc").weight)
    return graph


def snapshot(model: nn.Module) -> list[Any]:
    return [
        [(name, module.training) for name, module in model.named_modules()],
        [(name, p.requires_grad, None if p.grad is None else p.grad.clone()) for name, p in model.named_parameters()],
        {name: tensor.clone() for name, tensor in model.state_dict().items()},
        [(name, dict(m._forward_pre_hooks), dict(m._forward_hooks)) for name, m in model.named_modules()],
        [torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()],  # noqa: NPY002
    ]


def same_values(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same_values(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_values(a[k], b[k]) for k in a)
    return bool(a == b)


@pytest.mark.parametrize("tap", ["reader", "before_activation"])
@pytest.mark.parametrize("metric", METRICS)
def test_after_a_pass_everything_is_as_found(metric: str, tap: Any) -> None:
    graph = prepared()
    mine: list[int] = []
    graph.model.get_submodule("conv2").register_forward_pre_hook(lambda *_: mine.append(1))
    before, images = snapshot(graph.model), batches()
    copies = [(x.clone(), y.clone()) for x, y in images]
    score(graph, images, metric, tap=tap)
    assert same_values(snapshot(graph.model), before)
    assert same_values(images, copies)
    assert not any(x.requires_grad for x, _ in images)
    assert mine  # the caller's hook was called all along
    assert torch.is_grad_enabled()


class Failing:
    """Fails in the middle, every time it is read."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from batches()[:2]
        raise RuntimeError("the disk is on fire")


@pytest.mark.parametrize("tap", ["reader", "before_activation"])
@pytest.mark.parametrize("metric", METRICS)
def test_after_an_error_of_the_loader_or_the_network_everything_is_as_found(metric: str, tap: Any) -> None:
    graph = prepared()
    before = snapshot(graph.model)
    wrong = [(torch.zeros(4, 2, 8, 8, dtype=torch.float64), torch.arange(4) % 2)]
    for loader, words in ((Failing(), "the disk is on fire"), (wrong, "channels")):
        with pytest.raises(RuntimeError, match=words):
            score(graph, loader, metric, tap=tap, num_map_images=None)
        assert same_values(snapshot(graph.model), before)


def test_samples_and_inference_mode() -> None:
    graph = prepared()
    plain = score(graph, batches()).values["conv1:out"]
    with torch.inference_mode():
        inside = score(graph, batches()).values["conv1:out"]
    np.testing.assert_array_equal(plain, inside)
    found = collect(graph, batches(60), num_images=20, seed=0)
    assert found.num_images == 20 and found.units["conv1:out"][0].moments.num_images.tolist() == [4] * 5
