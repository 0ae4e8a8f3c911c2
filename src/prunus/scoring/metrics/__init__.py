"""Metrics by name, in files by the evidence that they need. A new one is a function under `@metric` in any of them.

Importing this package imports no metric and not torch (see `prunus.util.registry`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from prunus.errors import ScoreError
from prunus.tasks import Task, task_of
from prunus.tasks.quality import task_option
from prunus.util.options import maps_memory, option
from prunus.util.registry import Entry, Registry

if TYPE_CHECKING:
    from torch import Tensor

Need = Literal[  # the evidence that a metric's function takes, see `prunus.scoring.evidence`
    "moments",  # Channels, at each tap; a unit's score is the maximum over its taps
    "maps",  # Maps of a sample of images, at each tap; the maximum over taps as well
    "filters",  # Filters of the whole unit
    "gradients",  # Gradients of the whole unit, from a pass with backward
    "reader_inputs",  # ReaderInputs of the whole unit, from a pass that needs no labels
    "contributions",  # Contributions of the whole unit, from the same kind of pass
    "importance",  # a tensor [n], the importance that is propagated back from the features that the classifier reads
    "discrimination",  # a tensor [n, everything], gradients of losses at inner layers for the readers' weights
    "nothing",  # the Unit
]
# Evidence that several processes cannot merge.
UNMERGED = ("maps", "reader_inputs", "contributions", "importance", "discrimination")

# The default of `score`, `sensitivity` and Algorithm 1: best in our tests on CIFAR-10 for small cuts (docs/results.md).
DEFAULT_METRIC = "gsd_reader"
WITHOUT_CLASSES = "reader_energy"  # instead of it, for tasks whose labels are no classes


@dataclass(frozen=True, kw_only=True)
class Metric(Entry):
    """A named way to score channels.

    Attributes:
        needs: The evidence that it takes.
        score: (evidence, **options) -> one number per channel; higher means keep.
        needs_classes: With moments or maps, of each class; False: of all images together.
        saturates: With maps, fewer images than pixels give all channels nearly the same score.
        adds_up: Scores are errors that add up when channels are removed from the lowest score upwards.
        cites: What to cite: keys of src/prunus/scoring/references.bib.
    """

    needs: Need
    score: Callable[..., Tensor]
    needs_classes: bool = True
    saturates: bool = False
    adds_up: bool = False
    cites: tuple[str, ...] = ()


Scorer = TypeVar("Scorer", bound=Callable[..., Any])


def metric(help: str, *, needs: Need, **about: Any) -> Callable[[Scorer], Scorer]:
    """Declare that a function is the metric of its name. `about` are other fields of `Metric`."""

    def declare(score: Scorer) -> Scorer:
        score.entry = Metric(name=score.__name__, help=help, needs=needs, score=score, **about)  # type: ignore[attr-defined]
        return score

    return declare


def function_metric(function: Callable[..., Any]) -> Metric:
    """The metric that a user-provided function is: it takes `Channels` and returns one number for each."""
    name = getattr(function, "__name__", type(function).__name__)
    return Metric(name=name, help="User-provided", needs="moments", score=function)


METRICS: Registry[Metric] = Registry("metric", "prunus.scoring.metrics", ScoreError, function_metric)


def metric_of(metric: str) -> Metric:
    """The metric of this name, or of `module:function`; options may follow it, as in gsd:ridge=0."""
    return METRICS.find(METRICS.split_options(metric)[0])


def check_metric(name: str) -> None:
    """Raise ScoreError unless this is a metric, perhaps with options."""
    METRICS.check(METRICS.split_options(name)[0])
    check_metric_options(name)


def check_metric_options(metric: Any) -> None:
    """Raise ScoreError if the options behind a metric's name are wrong. Nothing is imported for a name alone."""
    if isinstance(metric, str) and ":" in metric:
        from prunus.scoring.choice import choose_metrics

        choose_metrics([metric])


def metric_option(default: str | None, help: str, **details: Any) -> Any:
    """A setting that is the name of a metric, with options if wanted."""
    return option(
        default, help, group="Channels", choices=METRICS, with_options=True, valid=check_metric_options, **details
    )


def misfit(metric: Metric, task: Task) -> str:
    """Why a metric cannot score images of a task; empty if it can. A user-provided one takes what there is."""
    if metric.name not in METRICS:
        return ""
    separates = metric.needs in ("moments", "maps", "discrimination") and metric.needs_classes
    # The loss, which gradients are taken of, is 0 where a network agrees with itself.
    if task.reference is not None and (separates or metric.needs == "gradients"):
        return "needs labels, and the images have none"
    if separates and metric.needs != "moments" and task.label_kind != "classes":
        return "is only for classification, with one class per image"
    if separates and task.classes is None and task.label_kind != "classes":
        return "separates classes, and the labels of the task are none; prunus.regression(bins=...) makes some"
    return ""


def check_fits(metrics: Iterable[Metric], task: Task) -> None:
    """ScoreError if one of these metrics cannot score images of the task."""
    for metric in metrics:
        if reason := misfit(metric, task):
            others = ", ".join(name for name, each in METRICS.items() if not misfit(each, task))
            raise ScoreError(f"{metric.name} {reason}: use one of {others}")


def suited_metric(metric: str, task: Any) -> str:
    """A default metric, or one without classes in the place of DEFAULT_METRIC if the labels of the task are none."""
    if metric != DEFAULT_METRIC or task_of(task).classes is not None:
        return metric
    return WITHOUT_CLASSES


# -- what to cite

FILE = Path(__file__).parents[1] / "references.bib"


@cache
def references() -> dict[str, str]:
    """Key -> BibTeX entry of everything that can be cited."""
    entries = FILE.read_text(encoding="utf-8").strip().split("\n\n")
    return {re.findall(r"^@\w+\{([^,]+),", entry)[0]: entry for entry in entries}


def bibtex(metrics: Iterable[str]) -> str:
    """The BibTeX entries of metrics, each once: the paper and Prunus first, then in the order of the metrics.

        print(prunus.bibtex(["gsd", "l1"]))

    Args:
        metrics: Names, with options or without. A user-provided metric has nothing to cite.
    """
    keys = ["liu2020rethinking", "prunus"]
    for name in metrics:
        if not isinstance(name, str):
            raise ScoreError(f"bibtex takes names of metrics, got {type(name).__name__}")
        short = METRICS.split_options(name)[0]
        keys += METRICS[short].cites if short in METRICS else metric_of(name).cites
    return "\n\n".join(references()[key] for key in dict.fromkeys(keys)) + "\n"


# -- settings

GIB = 1 << 30
TAPS = ("reader", "before_activation")
Where = Literal["reader", "before_activation"]


@dataclass(frozen=True)
class ScoreSettings:
    """The images that scores are computed on, and the tensors that are scored.

    Metrics that need whole feature maps (di, mmd, hrank, chip), the readers' inputs (rebuilt, thinet, cp) or more than
    one pass (nisp, dcp) use at most `num_map_images` images, because each image costs them time or memory.
    """

    num_images: int | None = option(
        None, "Number of images to score on, a stratified sample; all by default", group="Scoring", least=1
    )
    tap: Where = option(
        "reader", "Tensor to score: the readers' input (reader) or before_activation", group="Scoring", choices=TAPS
    )
    num_map_images: int | None = option(
        2000, "Number of images for metrics that need more than moments of activations", group="Scoring", least=1
    )
    memory: str = option("2G", "Memory for whole feature maps, such as 4G", group="Scoring", valid=maps_memory)
    seed: int | None = option(None, "Seed of the sample; a new sample each time if None", hidden=True)
    task: str | Task | None = task_option("Scoring")

    @property
    def sample_size(self) -> int | None:
        """Number of images for metrics for which an image is costly; None: all."""
        limits = [limit for limit in (self.num_images, self.num_map_images) if limit is not None]
        return min(limits, default=None)
