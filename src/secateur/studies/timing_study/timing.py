"""The timing study: seconds to score each layer by each metric, with and without the feature maps (Fig. 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from secateur.base.batches import Batches
from secateur.base.options import replaced
from secateur.base.progress import Progress, shown, steps
from secateur.channels.graph import ChannelGraph
from secateur.errors import ScoreError
from secateur.scoring.map_pass import MapRequest, MapsAt, collect_maps
from secateur.scoring.metrics import metric_of
from secateur.scoring.sampling import Sample
from secateur.scoring.settings import GIB
from secateur.studies.folder import StudyFolder, StudyRow
from secateur.studies.timing_study.clocks import map_seconds, median_seconds
from secateur.studies.timing_study.layer_work import INVERSE, layer_work
from secateur.studies.timing_study.notes import timing_notes
from secateur.studies.timing_study.settings import TimingSettings

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
class LayerTimes:
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
) -> LayerTimes:
    """Time to score all channels of each unit, with the feature maps of `num_images` images in memory.

        found = secateur.studies.timing(graph, loader, metrics=("gsd", "di"), num_images=200)

    The maps are the tensors that enter the unit's readers. The time to compute them is measured separately: from the
    start of a forward pass until the reader is reached, over all images.
    di is measured in secateur's form (Cholesky of the smaller of Gram matrix and scatter, channels in chunks) and, as
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
            _time_missing(graph, loader, chosen, keys, kept, folder=folder, progress=report)
    every = [kept[key] for key in keys]
    rows = tuple(row for row in every if row["seconds"] is not None)
    return LayerTimes(rows, timing_notes(every, chosen.clock), torch.get_num_threads(), chosen.clock)


def _time_missing(
    graph: ChannelGraph,
    loader: Batches,
    settings: TimingSettings,
    keys: Sequence[tuple[str, str]],
    kept: dict[tuple[str, str], StudyRow],
    *,
    folder: StudyFolder | None,
    progress: Progress,
) -> None:
    """Add the rows that are missing to `kept` and to the folder."""
    memory = int(settings.memory_gib * GIB)
    request = MapRequest(settings.num_images, memory, seed=settings.seed, progress=progress)
    taken, units = collect_maps(graph, loader, request)
    sample = Sample(loader, taken, settings.seed, balanced=True)
    forward = map_seconds(graph, sample.batches(), settings.clock)
    for unit, parts in units:
        for name in (name for of, name in keys if of == unit and (of, name) not in kept):
            kept[unit, name] = _row(graph, unit, parts, name, forward[unit], settings)
            if folder is not None:
                folder.keep(f"{unit}/{name}", kept[unit, name])


def _row(
    graph: ChannelGraph, unit: str, parts: Sequence[MapsAt], name: str, forward: float, settings: TimingSettings
) -> StudyRow:
    """One row of the table; `seconds` is None where a matrix does not fit in memory."""
    maps = [part.maps for part in parts]
    images, _, pixels = maps[0].maps.shape  # type: ignore[union-attr]
    width = graph.units[unit].width
    timed = min(width, settings.inverse_channels) if name == INVERSE else width
    work = list(layer_work(graph, unit, parts, name, timed))
    seconds = None
    if None not in work:
        seconds = sum(median_seconds(one, settings.clock) for one in work if one is not None) * width / timed
    needs_maps = name == INVERSE or metric_of(name).needs in ("moments", "maps")
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
