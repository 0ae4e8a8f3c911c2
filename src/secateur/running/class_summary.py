"""The quality of each class before and after, for the report: classes.json.

It is measured on the test images, in the pass that also measures the test accuracy; without test images, on the
held-out ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from secateur.base.batches import Batches
from secateur.measuring.accuracy import Accuracy
from secateur.measuring.class_figures import ClassFigures, evaluate_by_class
from secateur.running.folder import CLASSES
from secateur.running.run_context import RunContext

FORMAT, VERSION = "secateur-classes", 1


def figures_on_test_images(context: RunContext, models: Mapping[str, nn.Module]) -> dict[str, Any]:
    """Name of a network -> its test accuracy, None without test images; writes the figures of classes.

    The test images are read here, once for each network, and nowhere else.
    """
    test, figures = context.data.test, {}
    found: dict[str, Any] = dict.fromkeys(models)
    loader = test if test is not None else context.data.holdout
    if test is None and context.settings.evaluate is not None:
        return found
    phase = "classes" if test is None else "test"
    for done, (name, model) in enumerate(models.items()):
        context.say(phase, done, len(models))
        accuracy, figures[name] = _measured(context, model, loader)
        if test is not None:
            found[name] = accuracy.__dict__
    context.say(phase, len(models), len(models))
    if all(each is not None for each in figures.values()):
        context.folder.write(CLASSES, _written(context, loader, figures))
    return found


def _measured(context: RunContext, model: nn.Module, loader: Batches) -> tuple[Accuracy, ClassFigures | None]:
    """An evaluation of the user's own knows no classes."""
    if context.settings.evaluate is not None:
        return context.evaluate(model, loader), None
    return evaluate_by_class(model, loader, context.task)


def _written(context: RunContext, loader: Batches, figures: Mapping[str, Any]) -> dict[str, Any]:
    by_class = context.task.by_class
    assert by_class is not None
    first: ClassFigures = figures["before"]
    return {
        "format": FORMAT,
        "version": VERSION,
        "part": "holdout" if context.data.test is None else "test",
        "quality": by_class.name,
        "of": by_class.of,
        "names": class_names(loader, len(first.sizes)),
        "sizes": first.sizes,
        **{name: {"values": f.values, "confused": f.confused, "complete": f.complete} for name, f in figures.items()},
    }


def class_names(loader: Batches, count: int) -> list[str] | None:
    """The loader's names of classes, if it has that many."""
    names = getattr(loader, "classes", None)
    return [str(name) for name in names] if isinstance(names, tuple | list) and len(names) >= count else None
