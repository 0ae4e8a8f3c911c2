"""Tasks: what a batch is, what a network is trained for, and how good it is.

    def count_error(outputs, labels):                     # one value for each image; more is better
        return -(outputs["count"] - labels).abs()

    task = prunus.Task(
        inputs=lambda batch: (batch["photo"], batch["people"]),
        loss=lambda outputs, labels: F.l1_loss(outputs["count"], labels),
        quality=prunus.Quality(count_error, name="minus count error", unit="people"),
    )

Importing this package imports no task and not torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from prunus.errors import RunError
from prunus.util.registry import Entry, Registry
from prunus.util.user_code import call_user_function, is_function_name

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT_TASK = "classification"
UNLABELLED = " without labels"  # ends the name of a task whose quality is agreement with the original network


@dataclass(frozen=True)
class Quality:
    """How good a network is, in one number; more is better.

    Attributes:
        measure: (outputs, labels) -> a value for each image [N], whose mean over all images is the quality. With
            `value`: a tensor of sums that add up over batches, always of the same shape; the quality is value(sums).
            With `collects`: a list with an item for each image; the quality is value(items of all images).
        name: What it is called.
        unit: "%" for fractions of 1, which are shown as per cent; otherwise what to write after the number.
        value: Sums, or the items of all images -> the quality, if it is no mean over images.
        collects: Whether items are collected, for a quality that sums do not give, such as average precision.
        details: Sums, or the items of all images -> further figures by name.
    """

    measure: Callable[[Any, Any], Any]
    name: str = "quality"
    unit: str = ""
    value: Callable[[Any], float] | None = None
    collects: bool = False
    details: Callable[[Any], dict[str, float]] | None = None

    def __post_init__(self) -> None:
        """Refuse items that nothing makes a quality of."""
        if self.collects and self.value is None:
            raise RunError("a quality that collects items needs value=, the quality that all items together have")

    @property
    def is_mean(self) -> bool:
        """Whether it is a mean over images, so that a part of the images gives an estimate."""
        return self.value is None


@dataclass(frozen=True)
class ByClass:
    """The quality of each class, as a fraction of 1.

    Attributes:
        name: What it is called.
        counts: (outputs, labels) -> whole numbers that add up over batches, with C columns for C classes. Where the
            tensor is square, [i, j] counts what belongs to class i and is taken for class j. None where the quality
            collects items: these are what `values` and `sizes` take.
        values: Counts -> the quality of each class [C], NaN where it has none.
        sizes: Counts -> how much there is of each class [C].
        of: What is counted.
    """

    name: str
    counts: Callable[[Any, Any], Tensor] | None
    values: Callable[[Any], Tensor]
    sizes: Callable[[Any], Tensor]
    of: str = "images"


@dataclass(frozen=True, kw_only=True, repr=False)
class Task(Entry):
    """What a network is for. `loss` and `quality` are all that a task of your own needs.

    Attributes:
        loss: (outputs, labels) -> mean loss of the batch, to train with.
        quality: A `Quality`, or a function (outputs, labels) -> one value for each image [N], more is better.
        inputs: Batch -> (inputs of the network, labels); a pair, a dict or inputs alone by default.
        outputs: The network's output -> what loss and quality take; by default all of it.
        check: (outputs, labels, number of the batch) -> None; raises DataError if the two do not fit.
        distil: (outputs, teacher's outputs, temperature) -> the teacher's part of the loss; by default the mean squared
            difference of all tensors of the outputs, each relative to its mean square.
        classes: Labels -> the classes that metrics such as gsd separate: whole numbers [N], one class per image; True
            and False [N, L], L labels of which each is a problem of its own; or whole numbers [N, ...], a class for
            each pixel (a negative one is ignored). By default there are none, and metrics that need them are refused.
        by_class: The quality of each class, for reports.
        label_kind: What the label of an image is: one class ("classes"), several labels ("several"), a class for each
            pixel ("masks"), or boxes with their classes ("boxes"). None: anything. Images with one class each are
            sampled and drawn by class.
        details: (outputs, labels) -> further figures, name -> one value for each image [N]; their means are reported.
        margins: (outputs, labels) -> how safely each image is decided [N], negative for a mistake. Races look at the
            images with the smallest magnitudes first: those change first when channels go.
        chance: Outputs -> the quality that guessing would have.
        reference: Inputs of the network -> what stands in for labels, which are then not read; see `prunus.agreement`.
        as_labels: Outputs of the original network -> the labels that they stand for, such as its boxes. Without labels
            the quality is then this task's own; see `prunus.agreement`.
    """

    loss: Callable[[Any, Any], Tensor]
    quality: Quality | Callable[[Any, Any], Tensor]
    inputs: Callable[[Any], tuple[Any, Any]] | None = None
    outputs: Callable[[Any], Any] | None = None
    check: Callable[[Any, Any, int], None] | None = None
    distil: Callable[[Any, Any, float], Tensor] | None = None
    classes: Callable[[Any], Tensor] | None = None
    by_class: ByClass | None = None
    label_kind: Literal["classes", "several", "masks", "boxes"] | None = None
    details: Callable[[Any, Any], dict[str, Tensor]] | None = None
    margins: Callable[[Any, Any], Tensor] | None = None
    chance: Callable[[Any], float] | None = None
    reference: Callable[[Any], Any] | None = None
    as_labels: Callable[[Any], Any] | None = None

    def __repr__(self) -> str:
        return f"Task({self.name + ': ' if self.name else ''}{self.measured.name})"

    @property
    def measured(self) -> Quality:
        """The quality; that of a plain function has its name."""
        if isinstance(self.quality, Quality):
            return self.quality
        return Quality(self.quality, str(getattr(self.quality, "__name__", "quality")).replace("_", " "))


TASKS: Registry[Task] = Registry("task", "prunus.tasks", RunError)


def check_task(task: Any) -> None:
    """RunError unless `task` is a Task, the name of one, or names a user-provided function that makes one."""
    if isinstance(task, str):
        if not is_function_name(task):
            TASKS.check(task)
    elif task is not None and not isinstance(task, Task):
        raise RunError(f"task must be a name ({', '.join(TASKS)}) or a prunus.Task, got {type(task).__name__}")


def task_of(task: Any) -> Task:
    """The task that a setting means: a Task, a name, or `module:function`, which is called; None: classification."""
    check_task(task)
    if isinstance(task, Task):
        return task
    name = task or DEFAULT_TASK
    if name in TASKS:
        return TASKS[name]
    made = call_user_function(name, RunError)
    if not isinstance(made, Task):
        raise RunError(f"{name!r} must return a prunus.Task, but returned {type(made).__name__}")
    return made
