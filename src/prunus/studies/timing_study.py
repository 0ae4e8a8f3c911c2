"""The timing study: seconds to score each layer by each metric, with and without the feature maps (Fig. 6)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prunus.errors import ScoreError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.runner import GraphRunner, last_uses
from prunus.graph.units import Indices
from prunus.plots.style import PAGE, figure, legend, line, save, styled
from prunus.scoring.choice import choose_metrics
from prunus.scoring.collect import class_moments
from prunus.scoring.evidence import Channels, Filters, Maps, filters, reader_norms, scales
from prunus.scoring.maps import collect_maps
from prunus.scoring.metrics import GIB, metric_of
from prunus.scoring.passes import Sample
from prunus.studies.folder import StudyFolder, StudyRow
from prunus.studies.settings import TimingSettings
from prunus.tasks import task_of
from prunus.tasks.evaluate import unpack_for
from prunus.timing.latency import timed
from prunus.util.batches import Batches, device_of, move
from prunus.util.options import maps_memory, replaced
from prunus.util.progress import Progress, shown, steps
from prunus.util.state import evaluating, generators_kept
from prunus.util.text import count

REPEATS, ENOUGH_SECONDS = 5, 1.0  # a measurement is the median of 5 runs, or of those that fit in one second


def map_seconds(graph: ChannelGraph, batches: Batches, clock: str = "wall") -> dict[str, float]:
    """unit -> seconds from the start of a forward pass until its last reader is reached, over all batches."""
    seconds, home = dict.fromkeys(graph.units, 0.0), device_of(graph.model)
    read_clock = time.process_time if clock == "cpu" else time.perf_counter

    def now() -> float:
        if home.type == "cuda":
            torch.cuda.synchronize(home)
        return read_clock()

    with evaluating(graph.model), generators_kept(), torch.inference_mode(False), torch.no_grad():
        for index, batch in enumerate(batches):
            images, labels = unpack_for(task_of(None), batch, index)
            if not len(labels):
                continue
            runner = GraphRunner(graph.traced_for(images := move(images, home)))
            free = last_uses(runner.nodes)
            calls = {name: runner.calls_of({r.module for r in unit.readers}) for name, unit in graph.units.items()}
            reached = dict.fromkeys((node for nodes in calls.values() for node in nodes), 0.0)
            values = runner.bind(images, copy=True)
            start = now()
            for node in runner.steps(values, free=free):
                if node in reached:
                    reached[node] = now() - start
            for name, nodes in calls.items():
                seconds[name] += max(reached[node] for node in nodes)
    return seconds


def median_seconds(work: Callable[[], Any], clock: str) -> float:
    """Median time of a few runs. Work that takes long runs once."""
    times: list[float] = []
    while not times or (len(times) < REPEATS and sum(times) < ENOUGH_SECONDS):
        times.append(timed(work, torch.device("cpu"), cpu_time=clock == "cpu"))
    return statistics.median(times)


INVERSE = "di_inverse"  # DI as the paper defines it: a d x d matrix is inverted
READ_WEIGHTS = ("reader_energy", "gsd_reader")  # moment metrics that also use the readers' weights


Parts = Sequence[tuple[Indices, Maps]]  # of a unit: the channels that are read at a place, and their maps


def layer_work(
    graph: ChannelGraph, unit: str, parts: Parts, name: str, channels: int
) -> Iterator[Callable[[], Any] | None]:
    """The work to time, one function for each place where the unit is read; None if an inverse does not fit."""
    scored = graph.units[unit]
    if name == INVERSE:
        for _, maps in parts:
            fits = inverse_bytes(maps.maps.shape[2]) <= maps.memory
            yield partial(di_by_inverse, maps, channels) if fits else None
        return
    (metric,) = choose_metrics([name])
    needs, score = metric.metric.needs, partial(metric.metric.score, **metric.options)
    if needs == "filters":
        yield lambda: score(Filters(unit, filters(graph, scored), scales(graph, scored)))
    elif needs == "nothing":
        yield lambda: score(scored)
    elif needs == "maps":
        yield from (partial(score, maps) for _, maps in parts)
    else:
        # From the moments of the maps, as a scoring pass computes them batch by batch.
        def by_moments(channels: Indices, maps: Maps) -> Tensor:
            norms = torch.zeros(maps.maps.shape[1], dtype=torch.float64)
            if metric.metric.name in READ_WEIGHTS:
                norms = reader_norms(graph, scored.readers, scored.width)[channels]
            return score(Channels(unit, class_moments(maps.maps, maps.labels), norms))

        yield from (partial(by_moments, *part) for part in parts)


def di_by_inverse(maps: Maps, channels: int, rho: float = 1e-4) -> Tensor:
    """DI of the first `channels` channels as in Eqns. 9 to 11 of the paper: tr([S + rho I]^-1 S_B)."""
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


def inverse_bytes(pixels: int) -> int:
    """Bytes for an explicit inverse: scatter, its factors, the inverse and the between-class scatter, float64."""
    return 4 * 8 * pixels**2


def timing_notes(rows: Sequence[StudyRow], clock: str) -> tuple[str, ...]:
    """How the times were measured, how much faster G-SD is than DI, and which inverses did not fit."""
    first, threads = rows[0], count(torch.get_num_threads(), "thread")
    notes = [
        f"{first['images']} images of {first['classes']} classes, {threads}, "
        f"{'wall time' if clock == 'wall' else 'processor time of the process'}; the paper used 3,000 images of "
        "ILSVRC-2012, wall time, and feature maps from a GPU.",
        "Feature maps are the tensors that enter the layers that read a unit, after pooling if there is any.",
    ]
    by_metric = {name: {r["layer"]: r for r in rows if r["metric"] == name} for name in ("gsd", "di", INVERSE)}
    if by_metric["di"]:
        notes.append(
            "di: Cholesky of the smaller of the Gram matrix (images) and the scatter (pixels), channels in chunks."
        )
    gsd = {layer: row["seconds"] for layer, row in by_metric["gsd"].items()}
    for name, title in (("di", "prunus's DI"), (INVERSE, "DI with an explicit inverse")):
        others = {
            layer: r["seconds"] for layer, r in by_metric[name].items() if layer in gsd and r["seconds"] is not None
        }
        if others:
            most, layer = max((seconds / gsd[layer], layer) for layer, seconds in others.items())
            notes.append(f"G-SD is up to {most:,.0f} times as fast as {title} ({layer}), feature maps not included.")
    if few := _few_channels(rows):
        notes.append(f"{INVERSE}: {few} per layer timed, and the time multiplied by the number of channels.")
    for row in (row for row in by_metric[INVERSE].values() if row["seconds"] is None):
        need = inverse_bytes(row["pixels"]) / GIB
        notes.append(
            f"{INVERSE} of {row['layer']} was not timed: maps of {row['pixels']:,} pixels need {need:,.1f} GiB."
        )
    return tuple(notes)


def _few_channels(rows: Sequence[StudyRow]) -> str:
    """How many channels of a layer were timed by the explicit inverse, if not all were: '1 channel'."""
    timed = [row for row in rows if row["metric"] == INVERSE and row["seconds"] is not None]
    some = [row["timed_channels"] for row in timed if row["timed_channels"] < row["channels"]]
    return count(max(some), "channel") if some else ""


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
class ScoringTimes:
    """Rows with the keys of COLUMNS, unit by unit, and notes on them."""

    rows: tuple[StudyRow, ...]
    notes: tuple[str, ...]
    threads: int
    clock: str = "wall"


def timing(
    graph: ChannelGraph,
    loader: Batches,
    *,
    settings: TimingSettings | None = None,
    folder: StudyFolder | None = None,
    progress: Progress | bool | None = None,
    **changes: Any,
) -> ScoringTimes:
    """Time to score all channels of each unit, with the feature maps of `num_images` images in memory.

        times = prunus.studies.timing(graph, loader, metrics=("gsd", "di"), num_images=200)

    The maps are the tensors that enter the unit's readers. The time to compute them is measured separately: from the
    start of a forward pass until the reader is reached, over all images.
    di is measured in prunus's form (Cholesky of the smaller of Gram matrix and scatter, channels in chunks) and, as
    `di_inverse`, as the paper defines it: with d x d matrices, one of which is inverted. Only `inverse_channels`
    channels of it are timed, and the time is scaled up. It is left out where a matrix does not fit in memory.
    settings, changes: `TimingSettings`, or its fields by name. folder: stores finished rows, and continues from them.
    """
    chosen: TimingSettings = replaced(settings or TimingSettings(), changes, ScoreError)
    chosen.check()
    names = list(chosen.metrics)
    if "di" in names and chosen.inverse_channels:
        names.insert(names.index("di") + 1, INVERSE)
    keys = [(unit, name) for unit in graph.units for name in names]
    kept = {} if folder is None else {key: row for key in keys if (row := folder.row("/".join(key))) is not None}
    if len(kept) < len(keys):
        with shown(progress, steps("maps and scores")) as report:
            memory = maps_memory(chosen.memory)
            taken, units = collect_maps(graph, loader, chosen.num_images, memory, seed=chosen.seed, progress=report)
            sample = Sample(loader, taken, chosen.seed, balanced=True)
            forward = map_seconds(graph, sample.batches(), chosen.clock)
            for unit, parts in units:
                for name in (name for of, name in keys if of == unit and (of, name) not in kept):
                    kept[unit, name] = _row(graph, unit, parts, name, forward[unit], chosen)
                    if folder is not None:
                        folder.keep(f"{unit}/{name}", kept[unit, name])
    every = [kept[key] for key in keys]
    rows = tuple(row for row in every if row["seconds"] is not None)
    return ScoringTimes(rows, timing_notes(every, chosen.clock), torch.get_num_threads(), chosen.clock)


def _row(graph: ChannelGraph, unit: str, parts: Parts, name: str, forward: float, how: TimingSettings) -> StudyRow:
    """One row of the table; `seconds` is None where a matrix does not fit in memory."""
    maps, width = parts[0][1], graph.units[unit].width
    images, _, pixels = maps.maps.shape
    timed_channels = min(width, how.inverse_channels) if name == INVERSE else width
    work = list(layer_work(graph, unit, parts, name, timed_channels))
    seconds = None
    if None not in work:
        seconds = sum(median_seconds(one, how.clock) for one in work if one is not None) * width / timed_channels
    before = forward if name == INVERSE or metric_of(name).needs in ("moments", "maps") else 0.0
    return {
        "layer": unit,
        "metric": name,
        "channels": width,
        "pixels": pixels,
        "images": images,
        "classes": int(maps.labels.max()) + 1,
        "seconds": seconds,
        "maps_seconds": before,
        "total_seconds": None if seconds is None else seconds + before,
        "timed_channels": timed_channels,
    }


LABELS = {"gsd": "G-SD", "di": "DI (Cholesky, Gram or scatter)", INVERSE: "DI (explicit inverse)", "mmd": "MMD"}


def draw_timing(times: ScoringTimes, network: str, size: str, folder: Path) -> list[dict[str, str]]:
    """Two pictures for `StudyFolder.finish`: without and with the time for the maps. size: of the input, as text."""
    layers, metrics = (list(dict.fromkeys(row[key] for row in times.rows)) for key in ("layer", "metric"))
    how = ["DI in Gram form where images are fewer than pixels, channels in chunks"] if "di" in metrics else []
    if few := _few_channels(times.rows):
        how.append(f"explicit inverse: {few} timed, multiplied by the number of channels")
    measured = f"{times.rows[0]['images']} images of {size}, CPU, {count(times.threads, 'thread')}"
    pictures = []
    plain = "seconds", "timing", "Time to score all channels of each unit. The feature maps are in memory."
    whole = "total_seconds", "timing-maps-included", "The same, with the forward passes that compute the feature maps."
    for key, name, caption in (plain, whole):
        title = f"{network}: time to score, feature maps {'not ' if key == 'seconds' else ''}included"
        fig, axes = figure(PAGE, 4.1)
        with styled():
            for number, metric in enumerate(metrics):
                points = [(layers.index(r["layer"]), r[key]) for r in times.rows if r["metric"] == metric]
                hollow: dict[str, Any] = {"markerfacecolor": "white"} if metric == INVERSE else {}
                axes.plot(*zip(*points, strict=True), label=LABELS.get(metric, metric), **line(number), **hollow)
            axes.set_yscale("log")
            axes.set_ylabel("seconds (wall time)" if times.clock == "wall" else "seconds (processor time)")
            axes.set_xlabel("unit, from input to output")
            step = -(-len(layers) // 28)  # more names would overlap
            ticks: Any = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
            axes.set_xticks(range(0, len(layers), step), layers[::step], **ticks)
            axes.set_title("\n".join([title, measured, ";\n".join(how) or "each metric separately"]), fontsize=8.5)
        legend(fig, axes, where="below", columns=min(3, len(metrics)))
        alt = f"{title}: seconds on a log scale for {len(layers)} units by {', '.join(metrics)}"
        pictures.append({"file": save(fig, folder, name), "alt": alt, "caption": caption})
    return pictures
