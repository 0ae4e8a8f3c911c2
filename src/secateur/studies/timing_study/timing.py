"""How long it takes to score each layer by each metric (the paper's Fig. 6), feature maps given and not."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from secateur.base.batches import Batches
from secateur.channels.graph import ChannelGraph
from secateur.errors import ScoreError
from secateur.scoring.channel_sums import image_sums
from secateur.scoring.data_pass import Progress, walk
from secateur.scoring.evidence import Bare, Channels, Filters, Maps
from secateur.scoring.map_pass import GIB, MapsAt, Request, collect_maps
from secateur.scoring.metrics import METRICS, Metric
from secateur.scoring.moments import empty, update
from secateur.scoring.sampling import Sample
from secateur.scoring.tap_location import find_places, watched
from secateur.scoring.weights import filters, reader_norms, scales

if TYPE_CHECKING:
    from secateur.studies.folder import StudyFolder

Row = dict[str, Any]
INVERSE = "di_inverse"  # DI as the paper writes it down: a d x d matrix is inverted
READ_WEIGHTS = ("reader_energy", "gsd_reader")  # moment metrics that also look at the readers' weights
CLOCKS: Mapping[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
REPEATS, ENOUGH = 5, 1.0  # a measurement is the median of so many, or of as many as fit into so many seconds

COLUMNS: Mapping[str, str] = {
    "layer": "layer",
    "metric": "metric",
    "channels": "channels",
    "pixels": "pixels of a map",
    "images": "images",
    "classes": "classes",
    "seconds": "seconds, maps given",
    "maps_seconds": "seconds for the maps",
    "total_seconds": "seconds, maps included",
    "timed_channels": "channels timed",
}


@dataclass(frozen=True)
class Timed:
    """Rows with the keys of COLUMNS, unit by unit, and what to know about them."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    threads: int
    clock: str = "wall"


def timing(
    graph: ChannelGraph,
    loader: Batches,
    metrics: Sequence[str] = ("gsd", "di"),
    *,
    images: int = 200,
    memory: int = 2 * GIB,
    inverse_channels: int = 1,
    clock: str = "wall",
    seed: int = 0,
    folder: StudyFolder | None = None,
    progress: Progress | None = None,
) -> Timed:
    """Wall time to score all channels of each unit, whose maps of `images` images are in memory.

    The maps are the tensors that enter the unit's readers. How long they take is measured by itself: the time from
    the start of a forward pass until the reader is reached, over all images.
    di is measured in secateur's form (Cholesky of the smaller of Gram matrix and scatter, channels in chunks) and, as
    `di_inverse`, as the paper defines it: with d x d matrices, one of them inverted. Of that only `inverse_channels`
    channels are timed, and the time is multiplied up; 0 leaves it out, and so does a matrix that does not fit.
    memory: bytes for maps, and once more for matrices. folder: keeps what is finished, and goes on from it.
    clock: "wall", or "cpu" for the processor time of this process, which a machine that is busy with other things does
        not lengthen.
    """
    chosen = [_metric(name) for name in metrics]
    if clock not in CLOCKS:
        raise ScoreError(f"the clock should be one of {', '.join(CLOCKS)}, not {clock!r}")
    taken, units = collect_maps(graph, loader, Request(images, memory, True, "reader", seed, progress))
    names = [metric.name for metric in chosen]
    if "di" in names and inverse_channels:
        names.insert(names.index("di") + 1, INVERSE)
    kept = {} if folder is None else {k: r for k in _keys(graph, names) if (r := folder.row("/".join(k))) is not None}
    if kept.keys() != set(_keys(graph, names)):
        forward = map_seconds(graph, Sample(loader, taken, seed, balanced=True).batches(), clock)
        for unit, parts in units:
            for name in names:
                if (unit, name) not in kept:
                    kept[unit, name] = _row(graph, unit, parts, name, forward[unit], inverse_channels, clock)
                    if folder is not None:
                        folder.keep(f"{unit}/{name}", kept[unit, name])
    rows = tuple(row for key in _keys(graph, names) if (row := kept[key])["seconds"] is not None)
    return Timed(rows, _notes([kept[key] for key in _keys(graph, names)], clock), torch.get_num_threads(), clock)


def map_seconds(graph: ChannelGraph, batches: Batches, clock: str = "wall") -> dict[str, float]:
    """unit -> seconds of forward passes until the last of its readers is reached, over all batches."""
    places = find_places(graph, "reader")
    spent: dict[str, float] = dict.fromkeys(places.taps, 0.0)
    started = 0.0

    def start(*_: Any) -> None:
        nonlocal started
        started = _now(graph, clock)

    def see(name: str, _: Tensor) -> None:
        spent[name] += _now(graph, clock) - started

    handle = graph.model.register_forward_pre_hook(start)
    try:
        with watched(graph, places, see) as sharing:
            walk(graph, batches, lambda *_: None)
    finally:
        handle.remove()
    seconds = dict.fromkeys(graph.units, 0.0)
    for name, tap in sharing.merged(places.taps).items():
        for slot in tap.slots:
            seconds[slot.unit] = max(seconds[slot.unit], spent[name])
    return seconds


def di_by_inverse(maps: Maps, channels: int, rho: float = 1e-4) -> Tensor:
    """DI of the first `channels` channels exactly as in Eqns. 6 to 8 of the supplement: tr([S + rho I]^-1 S_B)."""
    assert maps.maps is not None
    member = torch.nn.functional.one_hot(maps.labels).double().T  # [K, N]
    counts = member.sum(1, keepdim=True)  # [K, 1]
    values = []
    for x in maps.maps[:, :channels].transpose(0, 1).double():  # [N, d]
        x = x - x.mean(0)
        scatter = (x.T @ x).add_(torch.eye(x.shape[1], dtype=x.dtype), alpha=rho)  # [d, d]
        inverse = torch.linalg.inv(scatter)
        means = member @ x / counts  # [K, d] centred class means
        between = means.T @ (counts * means)  # [d, d]
        values.append((inverse * between).sum())  # the trace of a product of symmetric matrices
    return torch.stack(values)


# ---------------------------------------------------------------------------------------------------------- measuring


def _row(
    graph: ChannelGraph,
    unit: str,
    parts: Sequence[MapsAt],
    name: str,
    forward: float,
    inverse_channels: int,
    clock: str,
) -> Row:
    """Where a matrix does not fit, `seconds` is None."""
    maps = [part.maps for part in parts]
    images, _, pixels = maps[0].maps.shape  # type: ignore[union-attr]
    width = graph.units[unit].width
    timed = min(width, inverse_channels) if name == INVERSE else width
    work = list(_work(graph, unit, parts, name, timed))
    seconds = None if None in work else sum(_seconds(one, clock) for one in work if one is not None) * width / timed
    needs_maps = name == INVERSE or METRICS[name].needs in ("moments", "maps")
    before = forward if needs_maps else 0.0
    row = {
        "layer": unit,
        "metric": name,
        "channels": width,
        "pixels": pixels,
        "images": images,
        "classes": int(maps[0].labels.max()) + 1,
        "seconds": seconds,
        "maps_seconds": before,
        "total_seconds": None if seconds is None else seconds + before,
        "timed_channels": timed,
    }
    return {key: row[key] for key in COLUMNS}


def _work(
    graph: ChannelGraph, unit: str, parts: Sequence[MapsAt], name: str, channels: int
) -> Iterator[Callable[[], Any] | None]:
    """What is to be timed, at each place where the unit is read; None for an inverse that does not fit."""
    found = graph.units[unit]
    if name == INVERSE:
        for part in parts:
            pixels = part.maps.maps.shape[2]  # type: ignore[union-attr]
            fits = inverse_bytes(pixels) <= part.maps.memory
            yield partial(di_by_inverse, part.maps, channels) if fits else None
        return
    metric = METRICS[name]
    if metric.needs == "filters":
        yield lambda: metric.score(Filters(unit, filters(graph, found), scales(graph, found)))
    elif metric.needs == "nothing":
        yield lambda: metric.score(Bare(unit, found.width))
    elif metric.needs == "maps":
        yield from (partial(metric.score, part.maps) for part in parts)
    else:
        yield from (partial(_by_moments, graph, unit, part, metric) for part in parts)


def _by_moments(graph: ChannelGraph, unit: str, part: MapsAt, metric: Metric) -> Tensor:
    """The moments of the maps, and the metric of them: what a scoring pass does batch by batch."""
    maps, labels = part.maps.maps, part.maps.labels
    assert maps is not None
    moments = update(empty(int(labels.max()) + 1, maps.shape[1]), image_sums(maps), labels)
    norms = torch.zeros(maps.shape[1], dtype=torch.float64)
    if metric.name in READ_WEIGHTS:
        found = graph.units[unit]
        norms = reader_norms(graph, found.readers, found.width)[part.channels]
    return metric.score(Channels(unit, moments, norms))


def inverse_bytes(pixels: int) -> int:
    """Memory of the explicit inverse: scatter, its factors, the inverse and the scatter of class means, float64."""
    return 4 * 8 * pixels**2


def _seconds(work: Callable[[], Any], clock: str) -> float:
    """Median time of a few runs; one that takes long runs once."""
    times: list[float] = []
    while not times or (len(times) < REPEATS and sum(times) < ENOUGH):
        start = CLOCKS[clock]()
        work()
        times.append(CLOCKS[clock]() - start)
    return statistics.median(times)


def _now(graph: ChannelGraph, clock: str) -> float:
    device = next(graph.model.parameters()).device
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return CLOCKS[clock]()


def _metric(name: str) -> Metric:
    if METRICS.find(name).needs in ("gradients", "reader_inputs"):
        raise ScoreError(f"{name} needs a pass through the whole network, so it has no time for a single layer")
    return METRICS[name]


def _keys(graph: ChannelGraph, names: Sequence[str]) -> list[tuple[str, str]]:
    return [(unit, name) for unit in graph.units for name in names]


# -------------------------------------------------------------------------------------------------------------- words


def _notes(rows: Sequence[Row], clock: str) -> tuple[str, ...]:
    """What was measured how, how much faster G-SD was than DI, and which inverses did not fit."""
    first = rows[0]
    threads = torch.get_num_threads()
    notes = [
        f"{first['images']} images of {first['classes']} classes, {threads} thread{'s' if threads > 1 else ''}, "
        f"{'wall time' if clock == 'wall' else 'processor time of the process'}; the paper took 3,000 images of "
        "ILSVRC-2012, wall time, and maps from a GPU.",
        "Maps are the tensors that enter the layers that read a unit: behind pooling, where there is pooling.",
    ]
    by_metric = {name: {r["layer"]: r for r in rows if r["metric"] == name} for name in ("gsd", "di", INVERSE)}
    if by_metric["di"]:
        notes.append(
            "di: Cholesky of the smaller of the Gram matrix (images) and the scatter (pixels), channels in chunks."
        )
    for name, words in (("di", "our DI"), (INVERSE, "DI by explicit inverse")):
        both = [
            (layer, row["seconds"] / by_metric["gsd"][layer]["seconds"])
            for layer, row in by_metric[name].items()
            if layer in by_metric["gsd"] and row["seconds"] is not None
        ]
        if both:
            layer, most = max(both, key=lambda pair: pair[1])
            notes.append(f"G-SD is up to {most:,.0f} times as fast as {words} ({layer}), maps given.")
    return (*notes, *_inverse_notes(list(by_metric[INVERSE].values())))


def _inverse_notes(rows: Sequence[Row]) -> Iterator[str]:
    measured = [row for row in rows if row["seconds"] is not None]
    if any(row["timed_channels"] < row["channels"] for row in measured):
        few = max(row["timed_channels"] for row in measured)
        channels = f"{few} channel{'s' if few > 1 else ''}"
        yield f"{INVERSE}: {channels} of each layer timed, and multiplied by the number of channels."
    for row in rows:
        if row["seconds"] is None:
            need = inverse_bytes(row["pixels"]) / GIB
            words = f"{INVERSE} of {row['layer']} is left out: maps of {row['pixels']:,} pixels need {need:,.1f} GiB."
            if measured:
                largest = max(measured, key=lambda r: r["pixels"])
                each = largest["seconds"] / largest["channels"] * (row["pixels"] / largest["pixels"]) ** 3
                hours = each * row["channels"] / 3600
                words += f" Going by the cube of the pixels from {largest['layer']}: {hours:,.1f} hours (not measured)."
            yield words
