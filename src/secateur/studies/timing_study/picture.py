"""The pictures of the timing study: seconds per layer on a log scale, one line per metric."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from secateur.pictures.drawing import PAGE, figure, legend, line, save, styled
from secateur.studies.timing_study.layer_work import INVERSE
from secateur.studies.timing_study.timing import LayerTimes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {
    "gsd": "G-SD",
    "di": "DI (Cholesky, Gram or scatter)",
    INVERSE: "DI (explicit inverse)",
    "mmd": "MMD",
}
PICTURES = (  # key of the rows, file, words of the title, caption
    (
        *("seconds", "timing", "not included"),
        "Time to score all channels of each unit. The feature maps are in memory.",
    ),
    (
        *("total_seconds", "timing-maps-included", "included"),
        "The same, with the forward passes that compute the feature maps.",
    ),
)


def draw_timing(found: LayerTimes, network: str, size: str, folder: Path) -> list[dict[str, str]]:
    """Two pictures for `StudyFolder.finish`: without and with the time for the maps. size: of the input, in words."""
    units = f"seconds on a log scale for {len(_layers(found))} units by {', '.join(_metrics(found))}"
    pictures = []
    for key, name, words, caption in PICTURES:
        title = f"{network}: time to score, feature maps {words}"
        fig = _figure(found, key, title, size)
        pictures.append({"file": save(fig, folder, name), "alt": f"{title}: {units}", "caption": caption})
    return pictures


def _figure(found: LayerTimes, key: str, title: str, size: str) -> Figure:
    layers, first = _layers(found), found.rows[0]
    fig, axes = figure(PAGE, 4.1)
    with styled():
        for number, metric in enumerate(_metrics(found)):
            points = [(layers.index(r["layer"]), r[key]) for r in found.rows if r["metric"] == metric]
            hollow: dict[str, Any] = {"markerfacecolor": "white"} if metric == INVERSE else {}
            axes.plot(*zip(*points, strict=True), label=LABELS.get(metric, metric), **line(number), **hollow)
        axes.set_yscale("log")
        axes.set_ylabel("seconds (wall time)" if found.clock == "wall" else "seconds (processor time)")
        axes.set_xlabel("unit, from input to output")
        step = -(-len(layers) // 28)  # more names would overlap
        axes.set_xticks(range(0, len(layers), step), layers[::step], rotation=60, ha="right", rotation_mode="anchor")
        threads = f"{found.threads} thread{'s' if found.threads > 1 else ''}"
        axes.set_title(f"{title}\n{first['images']} images of {size}, CPU, {threads}\n{_how(found)}", fontsize=8.5)
    legend(fig, axes, where="below", columns=min(3, len(_metrics(found))))
    return fig


def _layers(found: LayerTimes) -> list[str]:
    return list(dict.fromkeys(row["layer"] for row in found.rows))


def _metrics(found: LayerTimes) -> list[str]:
    return list(dict.fromkeys(row["metric"] for row in found.rows))


def _how(found: LayerTimes) -> str:
    lines = []
    if "di" in _metrics(found):
        lines.append("DI in Gram form where images are fewer than pixels, channels in chunks")
    rows = [row for row in found.rows if row["metric"] == INVERSE]
    if any(row["timed_channels"] < row["channels"] for row in rows):
        timed = max(row["timed_channels"] for row in rows)
        channels = f"{timed} channel{'s' if timed > 1 else ''}"
        lines.append(f"explicit inverse: {channels} timed, multiplied by the number of channels")
    return ";\n".join(lines) or "each metric separately"
