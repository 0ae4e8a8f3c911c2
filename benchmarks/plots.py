"""The pictures of the documentation that are drawn from files in docs/results.

    python benchmarks/plots.py [NAME ...] [--folder docs/results]

NAME is a picture without its ending; all of them by default. Pictures of channels and of their separation need a
network and images: docs/pictures.md has their commands. report-demo.png is a photograph of the demo's report.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import ROOT, Row, read, read_file
from prunus.plots.style import COLOURS, INK, PAGE, figure, legend, save
from prunus.studies.effectiveness_tables import draw_effectiveness, write_correlations
from prunus.studies.sensitivity_study import draw_sensitivity
from prunus.studies.structure_study import TOTAL, draw_structure
from prunus.studies.timing_study import ScoringTimes, draw_timing

Draw = Callable[[Path], str]  # draws into a folder and returns the file's name


def speedup(folder: Path) -> str:
    """Accuracy over measured speed-up, without labels."""
    where = "onnxruntime, batch 64"
    rows = [row for row in read("speedup") if row["network"] == "resnet56" and where in row.get("speedup", {})]
    series: dict[str, tuple[str, str, Callable[[Row], bool]]] = {
        "ours, by time": ("C0", "o-", lambda row: row["goal"].startswith("speedup=")),
        "ours, by MACs": ("C1", "s-", lambda row: row["goal"].startswith("macs=")),
        "torch-pruning's channels, our repair": ("C2", "^", lambda row: row["goal"][:5] == "ratio" and repaired(row)),
        "torch-pruning, no repair": ("C3", "v", lambda row: row["goal"][:5] == "ratio" and not repaired(row)),
    }
    drawing, axes = figure(6.4, 4.6)
    for label, (colour, style, belongs) in series.items():
        points = sorted((row["speedup"][where]["ratio"], row["after"]["test"]) for row in rows if belongs(row))
        axes.plot([x for x, _ in points], [y for _, y in points], style, color=colour, label=label)
    # `margin` is that of the test of rates: rows of the first one are in the file for comparison.
    mimicked = [row for row in read("mimic") if row["settings"].get("batch") == 64 and row.get("margin") == 0.5]
    points = sorted((row["speed"]["ratio"], row["after"]["test"]) for row in mimicked)
    axes.plot(*zip(*points, strict=True), "D-", color="C4", label="ours, by time, then 600 steps without labels")
    axes.plot([1], [rows[0]["before"]["test"]], "k*", markersize=10, label="original network")
    axes.set(xlabel=f"measured speed-up, {where}, one thread", ylabel="test accuracy, %")
    axes.set_title("ResNet-56 on CIFAR-10 without labels and epochs")
    legend(drawing, axes, where="below", columns=2)
    return save(drawing, folder, "picture")


def repaired(row: Row) -> bool:
    """Whether the row's network was repaired by `solve`."""
    return bool(row["repair"] == "solve")


def retrained(folder: Path) -> str:
    """Test accuracy after retraining: all seeds, and their mean."""
    groups: dict[str, list[float]] = {}
    for row in read("retrained"):
        if row["epochs"]:
            groups.setdefault(row["label"], []).append(row["after"]["test"])
    groups = dict(sorted(groups.items(), key=lambda each: -statistics.mean(each[1])))
    drawing, axes = figure(PAGE, 0.9 + 0.3 * len(groups))
    for place, values in enumerate(groups.values()):
        axes.plot(values, [place] * len(values), "o", color=COLOURS[0], alpha=0.5)
        axes.plot([statistics.mean(values)], [place], "|", color=INK, markersize=14)
    axes.set_yticks(range(len(groups)), list(groups))
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_xlabel("test accuracy after retraining, %; a point for each seed, a bar for their mean")
    return save(drawing, folder, "picture")


def schedule(folder: Path) -> str:
    """Held-out accuracy after the last epoch of each choice of settings."""
    found = [row for row in read("schedule") if row["network"] == "resnet20"]
    rows = sorted((row["history"][-1], _settings(row["label"])) for row in found)
    drawing, axes = figure(PAGE, 0.8 + 0.21 * len(rows))
    axes.plot([best for best, _ in rows], range(len(rows)), "o", color=COLOURS[0])
    start = found[0]["start"]["holdout"]
    axes.axvline(start, color=COLOURS[3], linestyle="--", label="repaired, before the first epoch")
    axes.set_yticks(range(len(rows)), [title for _, title in rows])
    axes.set_xlabel("held-out accuracy after the last epoch, %")
    axes.legend(loc="lower right")
    return save(drawing, folder, "picture")


def _settings(label: str) -> str:
    """Settings without what most rows share, and with what these do not."""
    others = {" views=1": ", new crops in each epoch", " mixed_precision=bf16": ", float32"}
    for shared, other in others.items():
        label = label.replace(shared, "") if shared in label else f"{label}{other}"
    return label


def predictors(folder: Path) -> str:
    """Retrained accuracy over each predictor."""
    names = {"none": "before repair", "bn": "after bn", "solve": "after solve", "error": "minus the summed error"}
    correlations = read_file("predictors")["correlations"]
    drawing, every = figure(PAGE, 2.4, 1, len(names), sharey=True)
    for axes, (name, words) in zip(every, names.items(), strict=True):
        sign = -1 if name == "error" else 1
        points = [(sign * row[name], row["retrained"]) for row in read("predictors")]
        axes.plot(*zip(*points, strict=True), "o", color=COLOURS[0], alpha=0.7)
        axes.set_title(f"correlation {correlations[name]:.2f}", fontsize="medium")
        axes.set_xlabel(words)
    every[0].set_ylabel("retrained, %")
    return save(drawing, folder, "picture")


def effectiveness(experiment: str, network: str) -> Draw:
    """Accuracy over the share removed, for each metric."""

    def draw(folder: Path) -> str:
        rows = [row for row in read("effectiveness") if (row["experiment"], row["network"]) == (experiment, network)]
        return draw_effectiveness([{"standard_error": None, **row} for row in rows], folder)["file"]

    return draw


def correlations(network: str) -> Draw:
    """Rank correlations of metrics, as a table of colours."""

    def draw(folder: Path) -> str:
        rows = [row for row in read("correlations") if row["network"] == network]
        table = {row["metric"]: {key: row[key] for key in row if key not in ("network", "metric")} for row in rows}
        return write_correlations({network: table}, folder)[0]["file"]

    return draw


def sensitivity(network: str, before: float) -> Draw:
    """Accuracy over MACs removed by two ways of choosing units; before: test accuracy of the unpruned network."""

    def draw(folder: Path) -> str:
        rows = [row for row in read("sensitivity") if row["network"] == network]
        return draw_sensitivity(rows, dict.fromkeys(("test", "holdout"), before), folder)["file"]

    return draw


def structure(network: str, title: str) -> Draw:
    """MACs and weights of each part, before and after."""

    def draw(folder: Path) -> str:
        rows = [row for row in read("structure") if row["network"] == network and row["part"] != TOTAL]
        return draw_structure(rows, title, folder)["file"]

    return draw


def timing(experiment: str, title: str, size: str, which: int) -> Draw:
    """Seconds to score each layer; which: 0 without and 1 with the time for the maps."""

    def draw(folder: Path) -> str:
        rows = tuple(row for row in read("timing") if row["experiment"] == experiment)
        return draw_timing(ScoringTimes(rows, (), 1, "cpu"), title, size, folder)[which]["file"]

    return draw


PICTURES: dict[str, Draw] = {
    "speedup-resnet56": speedup,
    "retrained": retrained,
    "schedule": schedule,
    "predictors": predictors,
    "effectiveness-resnet56-cifar10-inner": effectiveness("fig4, inner", "resnet56"),
    "effectiveness-resnet56-cifar10": effectiveness("metrics page", "resnet56"),
    "correlations-resnet20-cifar10": correlations("resnet20"),
    "correlations-resnet56-cifar10": correlations("resnet56"),
    "sensitivity-resnet20-cifar10": sensitivity("resnet20", 91.68),
    "sensitivity-resnet56-cifar10": sensitivity("resnet56", 93.62),
    "structure-vgg16-gsd-b": structure("vgg16_imagenet, G-SD-B", "VGG-16, G-SD-B"),
    "structure-resnet50-gsd-b": structure("resnet50, G-SD-B", "ResNet-50, G-SD-B"),
    "timing-resnet56-cifar10": timing("resnet56, 1000 images", "resnet56", "32x32 pixels", 0),
    "timing-vgg16": timing("vgg16_imagenet, 200 images", "vgg16_imagenet", "224x224 pixels", 0),
    "timing-vgg16-maps-included": timing("vgg16_imagenet, 200 images", "vgg16_imagenet", "224x224 pixels", 1),
}


def main() -> None:
    """Draw the pictures that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", nargs="*", metavar="NAME", help=f"{', '.join(PICTURES)}; all by default")
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "results")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in args.pictures or PICTURES:
        if name not in PICTURES:
            parser.error(f"no picture is called {name}; there are {', '.join(PICTURES)}")
        with tempfile.TemporaryDirectory() as spare:
            file = Path(spare) / PICTURES[name](Path(spare))
            shutil.copy(file.with_suffix(".png"), args.folder / f"{name}.png")
        print(args.folder / f"{name}.png", flush=True)


if __name__ == "__main__":
    main()
