"""Which images a run reads, in a few numbers, so that a run is not continued with others.

Loaders shuffle and augment, so their first batches differ from call to call. What counts is the data set behind a
loader: its number of images, and the labels and pixel statistics of a few images at fixed positions. What a loader
does not reveal is not compared.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from prunus.errors import DataError, RunError
from prunus.run.context import RunData
from prunus.run.folder import ANSWERS, CONFIG, DATA, RunFolder
from prunus.tasks import Task, task_of
from prunus.tasks.evaluate import unpack_for
from prunus.util.batches import Batch, Batches, call, count_images, logits_of, unpack_any
from prunus.util.processes import processes
from prunus.util.state import evaluating, generators_kept
from prunus.zoo.loader import Loader

Facts = dict[str, Any]

PROBES = 8  # images that are looked at, evenly spread
READS = 3  # an image that is the same this often is taken as fixed, not random
CLOSE = 1e-4  # relative: the same image on another machine, or decoded by another version

WORDS = {
    "train": "training images",
    "score_on": "images to score on",
    "holdout": "held-out images",
    "test": "test images",
}


def describe(data: RunData) -> Facts:
    """Plain values for JSON that tell data sets apart: the number of processes, and facts of each loader."""
    facts: Facts = {"processes": processes()}
    seen: dict[int, Facts | None] = {}
    for field in fields(data):
        loader = getattr(data, field.name)
        if id(loader) not in seen:
            seen[id(loader)] = None if loader is None else loader_facts(loader)
        facts[field.name] = seen[id(loader)]
    return facts


def refuse_other_data(folder: RunFolder, now: Facts, data: RunData) -> None:
    """RunError if the run in the folder was started with other images than those of `data`, which `now` describes."""
    stored = folder.read(CONFIG).get(DATA)
    if not isinstance(stored, Mapping):  # a folder of an older version
        return
    for name, words in WORDS.items():
        old, new, loader = stored.get(name), now.get(name), getattr(data, name)
        shares = stored.get("processes") != now["processes"] and not isinstance(loader, Loader)
        if name not in stored or shares:  # with another number of processes, each may have another share of the images
            continue
        found = _difference(old, new, words, loader)
        if found is not None:
            raise RunError(
                f"{folder.path} holds a run on other data: {found}. Use another folder, or the same data to continue "
                "that run"
            )


def loader_facts(loader: Batches) -> Facts:
    """Number of images, and shape, labels, and [mean, deviation] of a few images, as far as the loader reveals them."""
    count = images_in(loader)
    return {} if count is None else {"images": count, **_read(loader, count, 1)[0]}


def _read(loader: Batches, count: int, times: int) -> list[Facts]:
    """Facts of the same few images, read several times; empty if they cannot be read."""
    found = _unless_it_fails(lambda: [_batch_facts(batch) for batch in _probe(loader, count, times)])
    return found or [{}]


def _unless_it_fails(look: Callable[[], Any]) -> Any:
    """What `look` returns; None if the data set cannot be read in this way. A run reports its errors itself."""
    try:
        with generators_kept(0):
            return look()
    except Exception:  # noqa: BLE001  (any code of the user's may run here)
        return None


def images_in(loader: Batches) -> int | None:
    """Images of an epoch of a loader; None if it does not reveal them without being read."""
    found: int | None = _unless_it_fails(lambda: _count(loader))
    return found


def _count(loader: Any) -> int | None:
    """Images of an epoch, whatever the size of its batches and the share of this process."""
    if isinstance(loader, Loader):
        return loader.order.total
    if isinstance(loader, list | tuple):
        return sum(count_images(unpack_any(batch, number)[0]) for number, batch in enumerate(loader))
    if not isinstance(loader, DataLoader):
        count = getattr(loader, "num_images", None)
        return count if isinstance(count, int) else None
    chosen = _chosen(loader)
    return len(loader.dataset) if chosen is None else len(chosen)  # type: ignore[arg-type]


def _chosen(loader: DataLoader[Any]) -> list[int] | None:
    """Positions in the data set, if the loader's sampler chooses some of them."""
    batches = loader.batch_sampler
    sampler = batches.sampler if isinstance(batches, BatchSampler) else loader.sampler
    chosen = getattr(sampler, "indices", None)
    return None if chosen is None else sorted(int(position) for position in chosen)


def _probe(loader: Any, count: int, times: int) -> Iterable[Batch]:
    """A batch of a few images at fixed positions of the data set behind the loader, several times."""
    positions = [int(p) for p in np.linspace(0, count - 1, min(PROBES, count)).round()]
    if isinstance(loader, Loader):
        return [loader.images_at(positions) for _ in range(times)]
    if isinstance(loader, list | tuple):
        return [_from_batches(loader, positions) for _ in range(times)]
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return []
    chosen = _chosen(loader)
    if chosen is not None:
        positions = [chosen[position] for position in positions]
    whole = loader.batch_size is not None or loader.batch_sampler is not None  # else an item is a batch already
    return DataLoader(
        _Seeded(loader.dataset),  # type: ignore[arg-type]
        batch_size=len(positions) if whole else None,
        sampler=(positions if whole else positions[:1]) * times,
        collate_fn=_SeededCall(loader.collate_fn),
        # If the user reads in workers, files must not be opened here first: forked processes would share them.
        # It is one worker for all times: a new one would begin with the same state of the data set's own generator.
        num_workers=min(1, loader.num_workers),
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
    )


def _from_batches(batches: Any, positions: list[int]) -> Batch:
    """The images at these positions, counted through all batches."""
    images, labels, start = [], [], 0
    for number, batch in enumerate(batches):
        x, y = unpack_any(batch, number)
        count = count_images(x)
        for position in positions:
            if start <= position < start + count:
                images.append([leaf[position - start] for leaf in tree_leaves(x)])
                labels += [y[position - start]] if isinstance(y, Tensor) else []
        start += count
    return [torch.stack(leaves) for leaves in zip(*images, strict=True)], torch.stack(labels) if labels else None


class _Seeded:
    """A data set whose random transforms draw the same numbers each time, in any process."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, position: int) -> Any:
        with generators_kept(position):
            return self.dataset[position]


class _SeededCall:
    """A function that draws the same random numbers each time."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, items: Any) -> Any:
        with generators_kept(0):
            return self.function(items)


def _batch_facts(batch: Batch) -> Facts:
    images, labels = unpack_any(batch, 0)
    leaves = [leaf for leaf in tree_leaves(images) if isinstance(leaf, Tensor)]
    rows = [
        torch.cat([leaf[i].flatten().double() for leaf in leaves]) for i in range(min(PROBES, count_images(images)))
    ]
    shapes = [list(leaf.shape[1:]) for leaf in leaves]
    return {
        "shape": shapes[0] if len(shapes) == 1 else shapes,
        **_label_facts(labels),
        "pixels": [[float(f"{row.mean():.6g}"), float(f"{row.std(correction=0):.6g}")] for row in rows],
    }


def _label_facts(labels: Any) -> Facts:
    """Class indices as they are; of other tensors, such as masks, a mean for each image; nothing of other labels."""
    if not isinstance(labels, Tensor) or not labels.ndim:
        return {}
    few = labels[:PROBES]
    if few.ndim == 1 and not few.is_floating_point():
        return {"labels": few.tolist()}
    return {"labels": [float(f"{row.double().mean():.6g}") for row in few]}


def _difference(old: Facts | None, new: Facts | None, words: str, loader: Batches) -> str | None:
    """What differs, in words; None if nothing does."""
    if old is None or new is None:
        if old is new:
            return None
        return f"it was started {'without' if old is None else 'with'} {words}, and now " + (
            "there are some" if old is None else "there are none"
        )
    if _known(old, new, "images") and old["images"] != new["images"]:
        return f"there were {old['images']:,} {words}, and now there are {new['images']:,}"
    for key, same in (("shape", _equal), ("labels", _mostly_equal), ("pixels", _mostly_close)):
        if _known(old, new, key) and not same(old[key], new[key]) and _is_fixed(loader, new, key):
            return f"the {_what(key)} of the {words} {_shown(key, old[key])}, and now {_shown(key, new[key], now=True)}"
    return None


def _known(old: Facts, new: Facts, key: str) -> bool:
    return key in old and key in new


def _is_fixed(loader: Batches, facts: Facts, key: str) -> bool:
    """Whether the data set gives the same when it is read again. One with its own random generator does not."""
    return all(again.get(key) == facts[key] for again in _read(loader, facts["images"], READS))


def _equal(old: Any, new: Any) -> bool:
    return bool(old == new)


def _mostly_equal(old: list[float], new: list[float]) -> bool:
    return _mostly([a == b for a, b in zip(old, new, strict=False)])


def _mostly_close(old: list[list[float]], new: list[list[float]]) -> bool:
    pairs = [zip(a, b, strict=False) for a, b in zip(old, new, strict=False)]
    return _mostly([all(math.isclose(a, b, rel_tol=CLOSE, abs_tol=CLOSE) for a, b in pair) for pair in pairs])


def _mostly(same: list[bool]) -> bool:
    """Other data differ nearly everywhere; a rare random change of an image does not."""
    return 2 * sum(same) >= len(same)


def _what(key: str) -> str:
    return {"shape": "shapes", "labels": "labels", "pixels": "pixels"}[key]


def _shown(key: str, value: Any, now: bool = False) -> str:
    if key == "pixels":
        return f"{'have' if now else 'had'} the means " + ", ".join(f"{mean:.3g}" for mean, _ in value[:4])
    return f"{'are' if now else 'were'} {value}"


# What a network computes, in a few numbers: two networks may have the same layers and weights, and another forward.

NUMBERS = 8  # of the output
CLOSE_NETWORK_IDENTITY = 1e-2  # of the largest: other devices and precisions give other roundings


def network_answers(model: nn.Module, example: Any) -> list[float] | None:
    """A few numbers of the output on noise of the example's shape, the same noise each time.

    None if the network does not accept noise, or gives something else each time.
    """
    try:
        first, again = (_answers(model, example) for _ in range(2))
    except Exception:  # noqa: BLE001  (inputs that may not be random, such as positions)
        return None
    return first if first and _close(first, again) else None


def refuse_other_network(folder: RunFolder, now: list[float] | None) -> None:
    """RunError if the run in the folder is that of a network that computes something else than `now` says."""
    before = folder.read(CONFIG).get(ANSWERS)
    if not isinstance(before, list) or now is None or _close(before, now):
        return
    raise RunError(
        f"{folder.path} holds a run of another network: it has the same layers and weights, but another output on the "
        f"same input ({before[0]:.4g}, ... there and {now[0]:.4g}, ... now). Was its forward changed? Use another "
        "folder, or the same network to continue that run"
    )


@torch.no_grad()
def _answers(model: nn.Module, example: Any) -> list[float]:
    draw = torch.Generator().manual_seed(0)  # on the CPU, so that all devices get the same noise

    def noise(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return torch.randn(value.shape, generator=draw).to(value) if value.is_floating_point() else value.clone()

    with generators_kept(0), evaluating(model):
        output = call(model, tree_map(noise, example))
    numbers = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    flat = numbers[0].flatten().double().cpu()
    places = np.linspace(0, len(flat) - 1, min(NUMBERS, len(flat))).round().astype(int)
    return [float(f"{value:.6g}") for value in flat[places].tolist()]


def _close(a: list[float], b: list[float]) -> bool:
    return len(a) == len(b) and bool(np.allclose(a, b, rtol=0, atol=CLOSE_NETWORK_IDENTITY * max(map(abs, a))))


# An example input of a network, and what it tells.


def first_image(loader: Batches, device: torch.device, task: Task | None = None) -> Any:
    """The first image of a loader, as a batch of one; of several inputs, the first row of each."""
    for number, batch in enumerate(loader):
        images, _ = unpack_for(task_of(task), batch, number, labelled=False)
        return tree_map(lambda part: part[:1].to(device) if isinstance(part, Tensor) else part, images)
    raise DataError("the loader gave no images")


def pixels(example: Any) -> int:
    """Pixels of one image; of the largest of several inputs."""
    return max((math.prod(x.shape[2:]) for x in tree_leaves(example) if isinstance(x, Tensor)), default=0)


@torch.no_grad()
def classes_of(model: nn.Module, example: Any) -> int:
    """The number of classes that a classifier knows."""
    with evaluating(model):
        return int(logits_of(call(model, copy.deepcopy(example))).shape[-1])
