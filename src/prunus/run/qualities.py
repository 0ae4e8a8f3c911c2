"""Quality at the end of a run: on the test images, of each class, of each image, and in 8-bit integers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from prunus.errors import FileError, PrunusError
from prunus.plots.run_pictures import draw_boxes
from prunus.run.context import RunContext, class_names
from prunus.run.folder import CLASSES
from prunus.run.round import repair_images
from prunus.tasks.evaluate import ClassFigures, Evaluation, evaluate_by_class
from prunus.tasks.paired import ByImage, ImageValues
from prunus.timing.engines import ENGINES, NUM_CALIBRATION
from prunus.timing.onnx_export import QuantisedNetwork, one_by_one
from prunus.util.files import write_atomically
from prunus.util.typed_json import to_data
from prunus.util.user_code import failure

CLASSES_FORMAT = "prunus-classes"
BOXES = "boxes.png"  # a few images with their boxes, before and after
TestFigures = tuple[Evaluation, ClassFigures | None, ImageValues | None]  # of all images, of classes, of each image


@dataclass(frozen=True)
class ClassSide:
    values: tuple[float | None, ...]  # None for a class that does not occur
    confused: tuple[tuple[int, int, int], ...] | None  # class, what it was taken for, how often; the most frequent
    complete: bool  # whether `confused` lists all pairs


@dataclass(frozen=True)
class ClassTable:
    """The quality of each class before and after."""

    part: str  # test or holdout
    quality: str  # accuracy, IoU, F1
    of: str  # images or pixels
    names: tuple[str, ...] | None
    sizes: tuple[int, ...]
    before: ClassSide
    after: ClassSide

    def __post_init__(self) -> None:
        for side in (self.before, self.after):
            if len(side.values) != len(self.sizes):
                raise ValueError(f"{len(side.values)} values for {len(self.sizes)} classes")

    def worst_first(self) -> list[int]:
        """The classes that occur, the lowest quality after pruning first."""
        known = [(value, place) for place, value in enumerate(self.after.values) if value is not None]
        return [place for _, place in sorted(known)]

    def name(self, number: int) -> str:
        return f"class {number}" if self.names is None else self.names[number]


def quality_on_test(context: RunContext, models: Mapping[str, nn.Module]) -> dict[str, Evaluation | None]:
    """Quality of the networks "before" and "after" on the test images, None without them.

    Writes classes.json and predictions.safetensors. Classes and images are measured in the pass that also measures the
    quality; without test images, on the held-out ones. A user-provided evaluation knows neither.
    """
    test, provided, by_class = context.data.test, context.settings.evaluate, context.task.by_class
    if test is None and provided is not None:
        return dict.fromkeys(models)
    loader, part, phase = (context.data.holdout, "holdout", "classes") if test is None else (test, "test", "test")
    # Of the unpruned network, the same for all runs of one `SharedNetwork`.
    known: dict[str, TestFigures] = context.shared.tests
    figures: dict[str, TestFigures] = {}
    for done, (name, model) in enumerate(models.items()):
        context.say(phase, done, len(models))
        if name in known:
            figures[name] = known[name]
        elif provided is not None:
            figures[name] = context.evaluate(model, loader), None, None
        else:
            images = ByImage(context.task)
            figures[name] = *evaluate_by_class(model, loader, context.task, images.add), images.result()
    known["before"] = figures["before"]
    context.say(phase, len(models), len(models))
    if context.task.label_kind == "boxes" and provided is None and context.folder.writes:
        drawn = draw_boxes(models, loader, context.task, getattr(loader, "classes", None))
        if drawn is not None:
            write_atomically(context.folder.path / BOXES, drawn[0])
    by_image = {name: values for name, (_, _, values) in figures.items() if values is not None}
    if by_image and context.folder.writes:
        predictions = Predictions(by_image, part, context.quality.name)
        write_predictions(context.folder.path / PREDICTIONS, predictions)
    before, after = (figures[name][1] for name in ("before", "after"))
    if by_class is not None and before is not None and after is not None:
        table = ClassTable(
            part=part,
            quality=by_class.name,
            of=by_class.of,
            names=class_names(loader, len(before.sizes)),
            sizes=before.sizes,
            before=ClassSide(before.values, before.confused, before.complete),
            after=ClassSide(after.values, after.confused, after.complete),
        )
        context.folder.write(CLASSES, {"format": CLASSES_FORMAT, "version": 1, **to_data(table)})
    return {name: None if test is None else evaluation for name, (evaluation, _, _) in figures.items()}


# -- predictions.safetensors: what each test image adds to the quality, before and after, for paired tests

PREDICTIONS = "predictions.safetensors"
NOTES = "prunus"  # key in the metadata of the tensors


@dataclass(frozen=True)
class Predictions:
    """What each image adds to the quality of some networks ("before", "after")."""

    of: Mapping[str, ImageValues]
    part: str
    quality: str


def write_predictions(path: Path, predictions: Predictions) -> None:
    """Write a safetensors file: a tensor for each network, with a byte for each image if answers are right or wrong."""
    labels = {name: each.labels for name, each in predictions.of.items()}
    notes = {"part": predictions.part, "quality": predictions.quality, "labels": labels}
    tensors = {name: each.values.contiguous() for name, each in predictions.of.items()}
    write_atomically(path, save(tensors, {NOTES: json.dumps(notes)}))


def read_predictions(path: Path) -> Predictions | None:
    """What `write_predictions` wrote; None if there is no such file: the run is older, or values were not known."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            notes = json.loads(file.metadata()[NOTES])
            of = {name: ImageValues(file.get_tensor(name), str(notes["labels"][name])) for name in file.keys()}  # noqa: SIM118
        return Predictions(of, str(notes["part"]), str(notes["quality"]))
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path} is not a file of predictions that prunus wrote: {error}") from error


# -- 8-bit integers of the engine: what is shipped, and how good it is


@dataclass(frozen=True)
class Int8Quality:
    """The quality of a network in 8-bit integers, calibrated on images of the repair."""

    holdout: Evaluation
    test: Evaluation | None


@dataclass(frozen=True)
class InIntegers:
    """The networks before and after in 8-bit integers; nothing if the engine computes in 32-bit numbers."""

    networks: Mapping[str, QuantisedNetwork]
    quality: Mapping[str, Int8Quality]
    notes: tuple[str, ...] = ()


def in_integers(context: RunContext, models: Mapping[str, nn.Module]) -> InIntegers:
    """Quantise both networks and measure them. What fails is a note, because the run is done."""
    settings, data = context.settings, context.data
    if settings.engine is None or ENGINES.find(settings.engine).quantise is None:
        return InIntegers({}, {})
    networks, quality = {}, {}
    try:
        for done, (name, model) in enumerate(models.items()):
            context.say("8-bit integers", done, len(models))
            images = (inputs for (inputs,) in repair_images(context, most=NUM_CALIBRATION))
            example = context.graph.example
            made = QuantisedNetwork(model, example, settings.engine, one_by_one(images), settings.threads)
            test = None if data.test is None else context.evaluate(made, data.test)
            networks[name], quality[name] = made, Int8Quality(context.evaluate(made, data.holdout), test)
        context.say("8-bit integers", len(models), len(models))
    except Exception as error:  # noqa: BLE001  (the tool and user-provided evaluations raise anything)
        why = error if isinstance(error, PrunusError) else failure(error)
        return InIntegers({}, {}, (f"The {context.quality.name} in {settings.engine} is not known: {why}",))
    return InIntegers(networks, quality)
