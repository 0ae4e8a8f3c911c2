"""Notes of the timing study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from secateur.scoring.settings import GIB
from secateur.studies.folder import StudyRow
from secateur.studies.timing_study.layer_work import INVERSE, inverse_bytes


def timing_notes(rows: Sequence[StudyRow], clock: str) -> tuple[str, ...]:
    """How the times were measured, how much faster G-SD is than DI, and which inverses did not fit."""
    first = rows[0]
    threads = torch.get_num_threads()
    notes = [
        f"{first['images']} images of {first['classes']} classes, {threads} thread{'s' if threads > 1 else ''}, "
        f"{'wall time' if clock == 'wall' else 'processor time of the process'}; the paper used 3,000 images of "
        "ILSVRC-2012, wall time, and feature maps from a GPU.",
        "Feature maps are the tensors that enter the layers that read a unit, after pooling if there is any.",
    ]
    by_metric = {name: {r["layer"]: r for r in rows if r["metric"] == name} for name in ("gsd", "di", INVERSE)}
    if by_metric["di"]:
        notes.append(
            "di: Cholesky of the smaller of the Gram matrix (images) and the scatter (pixels), channels in chunks."
        )
    for name, words in (("di", "secateur's DI"), (INVERSE, "DI with an explicit inverse")):
        notes += _speed_note(by_metric["gsd"], by_metric[name], words)
    return (*notes, *_inverse_notes(list(by_metric[INVERSE].values())))


def _speed_note(gsd: Mapping[str, StudyRow], others: Mapping[str, StudyRow], words: str) -> Iterator[str]:
    both = [
        (row["seconds"] / gsd[layer]["seconds"], layer)
        for layer, row in others.items()
        if layer in gsd and row["seconds"] is not None
    ]
    if both:
        most, layer = max(both, key=lambda pair: pair[0])
        yield f"G-SD is up to {most:,.0f} times as fast as {words} ({layer}), feature maps not included."


def _inverse_notes(rows: Sequence[StudyRow]) -> Iterator[str]:
    measured = [row for row in rows if row["seconds"] is not None]
    if any(row["timed_channels"] < row["channels"] for row in measured):
        few = max(row["timed_channels"] for row in measured)
        channels = f"{few} channel{'s' if few > 1 else ''}"
        yield f"{INVERSE}: {channels} per layer timed, and the time multiplied by the number of channels."
    for row in rows:
        if row["seconds"] is None:
            need = inverse_bytes(row["pixels"]) / GIB
            words = f"{INVERSE} of {row['layer']} was not timed: maps of {row['pixels']:,} pixels need {need:,.1f} GiB."
            if measured:
                largest = max(measured, key=lambda r: r["pixels"])
                each = largest["seconds"] / largest["channels"] * (row["pixels"] / largest["pixels"]) ** 3
                hours = each * row["channels"] / 3600
                words += f" Estimate from {largest['layer']}, as the cube of the pixels: {hours:,.1f} hours."
            yield words
