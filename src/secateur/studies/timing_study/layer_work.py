"""The work of scoring one layer by one metric, given its feature maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from secateur.channels.graph import ChannelGraph
from secateur.scoring.channel_sums import image_sums
from secateur.scoring.evidence import Bare, Channels, Filters, Maps
from secateur.scoring.map_pass import MapsAt
from secateur.scoring.metric_choice import choose_metrics
from secateur.scoring.moments import empty, update
from secateur.scoring.weights import filters, reader_norms, scales

INVERSE = "di_inverse"  # DI as the paper defines it: a d x d matrix is inverted
READ_WEIGHTS = ("reader_energy", "gsd_reader")  # moment metrics that also use the readers' weights


def layer_work(
    graph: ChannelGraph, unit: str, parts: Sequence[MapsAt], name: str, channels: int
) -> Iterator[Callable[[], Any] | None]:
    """The work to time, one function for each place where the unit is read; None if an inverse does not fit."""
    found = graph.units[unit]
    if name == INVERSE:
        for part in parts:
            pixels = part.maps.maps.shape[2]  # type: ignore[union-attr]
            fits = inverse_bytes(pixels) <= part.maps.memory
            yield partial(di_by_inverse, part.maps, channels) if fits else None
        return
    (metric,) = choose_metrics([name])
    needs, score = metric.metric.needs, partial(metric.metric.score, **metric.options)
    if needs == "filters":
        yield lambda: score(Filters(unit, filters(graph, found), scales(graph, found)))
    elif needs == "nothing":
        yield lambda: score(Bare(unit, found.width))
    elif needs == "maps":
        yield from (partial(score, part.maps) for part in parts)
    else:
        reads = metric.metric.name in READ_WEIGHTS
        yield from (partial(_by_moments, graph, unit, part, score, reads) for part in parts)


def _by_moments(
    graph: ChannelGraph, unit: str, part: MapsAt, score: Callable[[Channels], Tensor], reads: bool
) -> Tensor:
    """A metric computed from the moments of the maps, as a scoring pass does batch by batch.

    reads: it uses the readers' weights as well.
    """
    maps, labels = part.maps.maps, part.maps.labels
    assert maps is not None
    moments = update(empty(int(labels.max()) + 1, maps.shape[1]), image_sums(maps), labels)
    norms = torch.zeros(maps.shape[1], dtype=torch.float64)
    if reads:
        found = graph.units[unit]
        norms = reader_norms(graph, found.readers, found.width)[part.channels]
    return score(Channels(unit, moments, norms))


def di_by_inverse(maps: Maps, channels: int, rho: float = 1e-4) -> Tensor:
    """DI of the first `channels` channels as in Eqns. 9 to 11 of the paper: tr([S + rho I]^-1 S_B)."""
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


def inverse_bytes(pixels: int) -> int:
    """Bytes for an explicit inverse: scatter, its factors, the inverse and the between-class scatter, float64."""
    return 4 * 8 * pixels**2
