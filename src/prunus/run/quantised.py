"""The networks of a run in the 8-bit integers of its engine: what is shipped, and how good it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from prunus.errors import PrunusError
from prunus.run.context import RunContext
from prunus.run.round import repair_images
from prunus.tasks.evaluate import Evaluation
from prunus.timing.engines import ENGINES, NUM_CALIBRATION
from prunus.timing.int8 import QuantisedNetwork, one_by_one
from prunus.util.user_code import failure


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
