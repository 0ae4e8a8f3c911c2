"""The pictures of the timing study: seconds per layer on a log scale, one line per metric."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from secateur.pictures.drawing import PAGE, figure, legend, line, save, styled

if TYPE_CHECKING:
    from secateur.studies.timing_study.timing import LayerTimes

LABELS = {
    "gsd": "G-SD",
    "di": "DI (Cholesky, Gram or scatter)",
    "di_inverse": "DI (explicit inverse)",
    "mmd": "MMD",
}


def draw_timing(found: LayerTimes, network: str, size: str, folder: Path) -> list[dict[str, str]]:
    """Two pictures for `StudyFolder.finish`: without and with the time for the maps. size: of the input, in words."""
    title = f"{network}: time to score, feature maps"
    return [
        _draw(found, "seconds", f"{title} not included", size, folder, "timing"),
        _draw(found, "total_seconds", f"{title} included", size, folder, "timing-maps-included"),
    ]


def _draw(found: LayerTimes, key: str, title: str, size: str, folder: Path, name: str) -> dict[str, str]:
    layers = list(dict.fromkeys(row["layer"] for row in found.rows))
    metrics = list(dict.fromkeys(row["metric"] for row in found.rows))
    first = found.rows[0]
    fig, axes = figure(PAGE, 4.1)
    with styled():
        for number, metric in enumerate(metrics):
            points = [(layers.index(r["layer"]), r[key]) for r in found.rows if r["metric"] == metric]
            x, y = zip(*points, strict=True)
            hollow: dict[str, Any] = {"markerfacecolor": "white"} if metric == "di_inverse" else {}
            axes.plot(x, y, label=LABELS.get(metric, metric), **line(number), **hollow)
        axes.set_yscale("log")
        axes.set_ylabel("seconds (wall time)" if found.clock == "wall" else "seconds (processor time)")
        axes.set_xlabel("unit (the layer that writes it), from input to output")
        step = -(-len(layers) // 28)  # more names would overlap
        axes.set_xticks(range(0, len(layers), step), layers[::step], rotation=60, ha="right", rotation_mode="anchor")
        threads = f"{found.threads} thread{'s' if found.threads > 1 else ''}"
        axes.set_title(f"{title}\n{first['images']} images of {size}, CPU, {threads}\n{_how(found)}", fontsize=8.5)
    legend(fig, axes, where="below", columns=min(3, len(metrics)))
    caption = (
        "Time to score all channels of each unit. The feature maps are in memory."
        if key == "seconds"
        else "The same, with the forward passes that compute the feature maps."
    )
    alt = f"{title}: seconds on a log scale for {len(layers)} units by {', '.join(metrics)}"
    return {"file": save(fig, folder, name), "alt": alt, "caption": caption}


def _how(found: LayerTimes) -> str:
    rows = [row for row in found.rows if row["metric"] == "di_inverse"]
    words = ["DI in Gram form where images are fewer than pixels, channels in chunks"] if _has(found, "di") else []
    if rows and any(row["timed_channels"] < row["channels"] for row in rows):
        timed = max(row["timed_channels"] for row in rows)
        words.append(
            f"\nexplicit inverse: {timed} channel{'s' if timed > 1 else ''} timed, multiplied by the number of channels"
        )
    return ";".join(words) or "each metric separately"


def _has(found: LayerTimes, metric: str) -> bool:
    return any(row["metric"] == metric for row in found.rows)
