"""The quality of each class before and after, for the report: classes.json.

It is measured on the test images, in the pass that also measures the test accuracy; without test images, on the
held-out ones.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx, nn

from prunus.errors import DataError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.plan import Plan
from prunus.plots.choices import some_images
from prunus.plots.run_pictures import NUM_IMAGES, PICTURES, take_pictures, to_bytes
from prunus.run.context import RunContext
from prunus.run.folder import CLASSES
from prunus.score.scores import Scores
from prunus.tasks import is_classification
from prunus.tasks.evaluate import ClassFigures, Evaluation, evaluate_by_class
from prunus.util.batches import Batches
from prunus.util.files import write_atomically

FORMAT, VERSION = "prunus-classes", 1


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


def _measured(context: RunContext, model: nn.Module, loader: Batches) -> tuple[Evaluation, ClassFigures | None]:
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


# Which layer feeds which, for drawings of the network: network.json.

FORMAT_NETWORK_SHAPE, VERSION_NETWORK_SHAPE = "prunus-network", 1
INPUT, LAYER, JOIN, OUTPUT = "input", "layer", "join", "output"


def network_shape(graph: ChannelGraph) -> dict[str, Any]:
    """Nodes in the order of execution; each has its kind, its name, and the numbers of the nodes that it reads."""
    traced = graph.analysis.traced
    nodes: list[dict[str, Any]] = []
    origin: dict[fx.Node, int] = {}  # call -> the node that its value comes from

    def add(kind: str, name: str, sources: list[int]) -> int:
        nodes.append({"kind": kind, "name": name, "from": sources})
        return len(nodes) - 1

    for call in traced.graph.nodes:
        sources = list(dict.fromkeys(origin[each] for each in call.all_input_nodes if each in origin))
        layer = traced.layer_of(call)
        if call.op == "placeholder":
            origin[call] = add(INPUT, call.name, [])
        elif call.op == "output":
            add(OUTPUT, "output", sources)
        elif layer in graph.layers:
            origin[call] = add(LAYER, str(layer), sources)
        elif len(sources) > 1:
            origin[call] = add(JOIN, _operation(call), sources)
        elif sources:
            origin[call] = sources[0]
    return {"format": FORMAT_NETWORK_SHAPE, "version": VERSION_NETWORK_SHAPE, "nodes": nodes}


def _operation(call: fx.Node) -> str:
    """add, cat, mul: the name of a function or method; the last part of a module's name."""
    found = call.target if isinstance(call.target, str) else getattr(call.target, "__name__", str(call.target))
    last = found.rpartition(".")[2].strip("_")
    return {"iadd": "add", "imul": "mul", "concat": "cat"}.get(last, last)


# Writes pictures of a few channels on a few held-out images during a run, for its report.

logger = logging.getLogger(__name__)


def keep_pictures(context: RunContext, number: int, graph: ChannelGraph, scores: Scores, plan: Plan) -> None:
    """Write the pictures of the first round if they do not exist yet. Inputs that are not images have no pictures."""
    path = context.folder.round(number) / PICTURES
    if number != 1 or not context.folder.writes or path.exists():
        return
    try:
        few = some_images(context.data.holdout, context.settings.seed, NUM_IMAGES, context.task)
    except DataError as error:  # batches that only the user's own evaluate function can read
        logger.info("no pictures for the report: %s", error)
        return
    if few is None:
        return
    names: Sequence[str] | None = [f"image {number + 1}" for number in few[1]]
    if is_classification(context.task):
        names = class_names(context.data.holdout, max(few[1]) + 1)
    found = take_pictures(graph, scores, plan, *few, names)
    if found.units:
        write_atomically(path, to_bytes(found))
