"""Which network, data and settings a run or a study is of, so that it is not continued with others.

A network is told by its layers, its calls and its weights. Loaders shuffle and augment, so their first batches differ
from call to call. What counts is the data set behind a loader: its number of images, and the labels and pixel
statistics of a few images at fixed positions. What a loader does not reveal is not compared.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from prunus.errors import RunError
from prunus.util.batches import Batch, Batches, count_images, unpack_any
from prunus.util.processes import processes
from prunus.util.state import generators_kept
from prunus.zoo.loader import Loader

if TYPE_CHECKING:
    from prunus.graph.channel_graph import ChannelGraph

Facts = dict[str, Any]
Loaders = Mapping[str, Batches | None]

DATA = "data"  # facts that are compared with a tolerance
LOADER_NAMES = {  # in messages
    "train": "training images",
    "score_on": "images to score on",
    "holdout": "held-out images",
    "test": "test images",
}


def refuse_other(
    path: Path, what: str, before: Mapping[str, Any], now: Mapping[str, Any], loaders: Loaders | None = None
) -> None:
    """RunError unless the run or study (`what`) in a folder may continue: all facts of `before` are those of `now`.

    Data, which `loaders` have given, may differ within tolerances.
    """
    was, is_now = (_flat({**facts, DATA: None}) for facts in (before, now))
    for key in {**was, **is_now}:
        if was.get(key) != is_now.get(key):
            raise RunError(
                f"{path} holds another {what}: {key} was {was.get(key)!r} there and is {is_now.get(key)!r} now. Use "
                f"another folder, or the same network and settings to continue that {what}."
            )
    stored, facts = before.get(DATA) or {}, now.get(DATA) or {}
    for name, loader in (loaders or {}).items():
        # With another number of processes, each may have another share of the images.
        shares = stored.get("processes") != facts["processes"] and not isinstance(loader, Loader)
        if name not in stored or shares:
            continue
        difference = _data_difference(stored[name], facts[name], LOADER_NAMES.get(name, f"{name} images"), loader)
        if difference is not None:
            raise RunError(
                f"{path} holds a {what} on other data: {difference}. Use another folder, or the same data to continue "
                f"that {what}"
            )


def _flat(facts: Mapping[str, Any], prefix: str = "") -> Facts:
    """{"settings": {"target": 0.5}} -> {"settings.target": 0.5}, to name differences."""
    flat: Facts = {}
    for key, value in facts.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def network_digest(graph: ChannelGraph) -> str:
    """A hash of a network's layers, widths and calls, however its streams are treated."""
    layers = [[x.name, x.kind, x.inputs, x.outputs, x.groups, x.kernel] for x in graph.layers.values()]
    calls = [str(node.format_node()) for node in graph.analysis.traced.graph.nodes]  # its forward may have been changed
    # Addresses of functions differ each time, and the run may go on on another device.
    text = re.sub(r" at 0x\w+|device\([^)]*\)", "", json.dumps([layers, calls]))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


# -- data

PROBES = 8  # images that are looked at, evenly spread
READS = 3  # an image that is the same this often is taken as fixed, not random
PIXEL_TOLERANCE = 1e-4  # relative: the same image on another machine, or decoded by another version


def data_facts(loaders: Loaders) -> Facts:
    """Plain values for JSON that tell data sets apart: the number of processes, and facts of each loader."""
    facts = {id(loader): None if loader is None else loader_facts(loader) for loader in loaders.values()}
    return {"processes": processes(), **{name: facts[id(loader)] for name, loader in loaders.items()}}


def loader_facts(loader: Batches) -> Facts:
    """Number of images, and shape, labels, and [mean, deviation] of a few images, as far as the loader reveals them."""
    count = images_in(loader)
    return {} if count is None else {"images": count, **_read(loader, count, 1)[0]}


def images_in(loader: Any) -> int | None:
    """Images of an epoch of a loader, whatever its batches and the share of this process; None if it hides them."""
    try:
        with generators_kept(0):
            if isinstance(loader, Loader):
                return loader.order.total
            if isinstance(loader, list | tuple):
                return sum(count_images(unpack_any(batch, number)[0]) for number, batch in enumerate(loader))
            if isinstance(loader, DataLoader):
                return len(_positions(loader))
            known = getattr(loader, "num_images", None)
            return known if isinstance(known, int) else None
    except Exception:  # noqa: BLE001  (any user-provided code may run here; a run reports its errors itself)
        return None


def _read(loader: Batches, count: int, times: int) -> list[Facts]:
    """Facts of the same few images, read several times; empty if they cannot be read."""
    try:
        with generators_kept(0):
            return [_batch_facts(batch) for batch in _probe(loader, count, times)] or [{}]
    except Exception:  # noqa: BLE001  (as above)
        return [{}]


def _positions(loader: DataLoader[Any]) -> Sequence[int]:
    """Positions in the data set that a loader reads: those that its sampler chooses, or all."""
    batches = loader.batch_sampler
    sampler = batches.sampler if isinstance(batches, BatchSampler) else loader.sampler
    chosen = getattr(sampler, "indices", None)
    return range(len(loader.dataset)) if chosen is None else sorted(int(each) for each in chosen)  # type: ignore[arg-type]


def _probe(loader: Any, count: int, times: int) -> Iterable[Batch]:
    """A batch of a few images at fixed positions of the data set behind the loader, several times."""
    positions = [int(p) for p in np.linspace(0, count - 1, min(PROBES, count)).round()]
    if isinstance(loader, Loader):
        return [loader.images_at(positions) for _ in range(times)]
    if isinstance(loader, list | tuple):
        return [_from_batches(loader, positions) for _ in range(times)]
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return []
    read = _positions(loader)
    positions = [read[position] for position in positions]
    whole = loader.batch_size is not None or loader.batch_sampler is not None  # else an item is a batch already
    return DataLoader(
        _Seeded(loader.dataset),  # type: ignore[arg-type]
        batch_size=len(positions) if whole else None,
        sampler=(positions if whole else positions[:1]) * times,
        collate_fn=_Seeded(loader.collate_fn),
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
    """A data set or a function whose random numbers are the same each time, in any process."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getitem__(self, position: int) -> Any:
        with generators_kept(position):
            return self.inner[position]

    def __call__(self, items: Any) -> Any:
        with generators_kept(0):
            return self.inner(items)


def _batch_facts(batch: Batch) -> Facts:
    images, labels = unpack_any(batch, 0)
    leaves = [leaf for leaf in tree_leaves(images) if isinstance(leaf, Tensor)]
    count = min(PROBES, count_images(images))
    rows = [torch.cat([leaf[i].flatten().double() for leaf in leaves]) for i in range(count)]
    shapes = [list(leaf.shape[1:]) for leaf in leaves]
    facts: Facts = {"shape": shapes[0] if len(shapes) == 1 else shapes}
    if isinstance(labels, Tensor) and labels.ndim:
        few, classes = labels[:PROBES], labels.ndim == 1 and not labels.is_floating_point()
        # Of other labels than classes, such as masks, a mean for each image.
        facts["labels"] = few.tolist() if classes else [float(f"{row.double().mean():.6g}") for row in few]
    facts["pixels"] = [[float(f"{row.mean():.6g}"), float(f"{row.std(correction=0):.6g}")] for row in rows]
    return facts


def _data_difference(old: Facts | None, new: Facts | None, name: str, loader: Any) -> str | None:
    """What differs, in words; None if nothing does."""
    if old is None or new is None:
        if old is new:
            return None
        started, there = ("without", "some") if old is None else ("with", "none")
        return f"it was started {started} {name}, and now there are {there}"
    for key in _differing(old, new):
        if key == "images":
            return f"there were {old['images']:,} {name}, and now there are {new['images']:,}"
        # A data set with a random generator of its own gives something else each time, and says nothing.
        if any(again.get(key) != new[key] for again in _read(loader, new["images"], READS)):
            continue
        if key == "pixels":
            means = [", ".join(f"{mean:.3g}" for mean, _ in facts[key][:4]) for facts in (old, new)]
            return f"the pixels of the {name} had the means {means[0]}, and now have the means {means[1]}"
        return f"the {key.rstrip('s')}s of the {name} were {old[key]}, and now are {new[key]}"
    return None


def same_images(one: Facts | None, other: Facts | None) -> bool:
    """Whether what is known of two sets of images agrees, up to the tolerance of pixels; what is not known does."""
    one, other = one or {}, other or {}
    return one.get("images") == other.get("images") and not _differing(one, other)


def _differing(one: Facts, other: Facts) -> list[str]:
    """The facts that both have and that differ. Labels and pixels do if less than half of the images agree: other data
    differ nearly everywhere, a rare random change does not."""
    both = one.keys() & other.keys()
    differing: list[str] = [key for key in ("images", "shape") if key in both and one[key] != other[key]]
    for key, tolerance in (("labels", 0.0), ("pixels", PIXEL_TOLERANCE)):
        pairs = zip(one.get(key, []), other.get(key, []), strict=False)
        same = [np.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in pairs]
        if 2 * sum(same) < len(same):
            differing.append(key)
    return differing
