"""`prunus check`: a dry run, which says what a run could reach, what it would take, and what looks wrong."""

from __future__ import annotations

import json
import sys
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from prunus.cli.console import EXIT_ERROR, console, friendly, resolve
from prunus.cli.options import (
    DataOptions,
    DeviceOptions,
    LayerTimeOptions,
    Model,
    Streams,
    Weights,
    options_from_settings,
    task_for,
)
from prunus.errors import RunError
from prunus.tasks import task_of
from prunus.tasks.quality import ACCURACY, TaskOptions
from prunus.timing.engines import ENGINES
from prunus.util.options import check, option
from prunus.util.text import big_number

if TYPE_CHECKING:
    from prunus.run.checkup import Checkup, SpeedReach

ROUNDS, EPOCHS = 2, 3  # of the run whose time is told
INDENT = 10  # columns
NAMED = 3  # frozen names that are listed for a reason


@dataclass(frozen=True)
class SpeedOptions(LayerTimeOptions):
    """The engine whose fastest speed-up is told."""

    engine: str | None = option(
        None, f"Also tell the fastest --speedup in this engine: {', '.join(ENGINES)}", valid=ENGINES.check
    )


@friendly
@options_from_settings
def command(
    model: Model,
    data: DataOptions,
    timing: SpeedOptions,
    task: TaskOptions,
    device: DeviceOptions,
    weights: Weights = None,
    streams: Streams = "select",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    """A dry run of `prune`, in under a minute: what can be pruned, which goals can be reached, what a run would take,
    and what looks wrong (labels, normalisation, accuracy).

    Without --data, only the network is checked; a run's own data set is known. Exit code 1: something looks wrong.

    With --engine the layers are timed there, which may take minutes (once; times are kept), and the fastest --speedup
    that `prune` can reach is told.

    Examples:

        prunus check resnet56

        prunus check resnet56 --weights w.safetensors --data cifar10

        prunus check resnet56 --engine onnxruntime --threads 1

        prunus check runs/prune-resnet56-cifar10 --json

        prunus check nets:unet --task segmentation --data folder:street
    """
    check(timing, RunError)
    if timing.engine is not None:
        ENGINES.find(timing.engine).check_installed()
    named = resolve(model)
    known = None if data.data is None and "data" not in named.asked else data.known_for(model)
    from prunus.cli.inputs import open_model, refuse_other_weights
    from prunus.cli.options import open_network
    from prunus.run.checkup import TimedIn, checkup

    refuse_other_weights(named, weights)
    wanted = task_of(task_for(model, task.task))
    images = None if known is None else known.open(model, task=wanted)
    if images is not None:
        network, example = open_model(model, images, weights), images.example()
    else:
        opened = open_network(model if weights is None else f"{model}={weights}")
        network, example = opened.model, opened.example()
    found = checkup(
        network.to(device.pick()),
        example,
        images,
        trained=weights is not None or named.has_weights,
        task=wanted,
        streams=streams,  # type: ignore[arg-type]
        timed_in=None if timing.engine is None else TimedIn(timing.engine, timing.batch, timing.threads),
    )
    if as_json:
        console.print_json(json.dumps({"model": model, "data": known and known.name, **found.to_dict()}))
    else:
        _say(named.label, found)
    if found.problems:
        sys.exit(EXIT_ERROR)


def _say(name: str, found: Checkup) -> None:
    _line("network", f"{name} on {found.inputs}: {big_number(found.macs)} MACs, {big_number(found.params)} weights")
    _line("prunable", f"{found.prunable} of {found.layers} layers, in {_units(found)}")
    for reason, names in found.frozen.items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        _line("frozen", f"{', '.join(names[:NAMED])}{more}: {reason}")
    _line(
        "goals",
        f"up to {100 * found.reach['macs']:.1f}% of the MACs and {100 * found.reach['params']:.1f}% of the weights "
        "can be removed: every unit keeps 2 channels and 10% at least",
    )
    if found.speedup is not None:
        _say_speedup(found.speedup)
    if found.images:
        words = {"train": "for training", "holdout": "held out", "test": "for testing"}
        counts = ", ".join(f"{count:,} {words[part]}" for part, count in found.images.items())
        _line("images", f"{counts}; {found.classes} classes" if found.classes else counts)
    if found.accuracy is not None:
        word = "of" if found.quality == ACCURACY else "on"
        shown = f"{found.quality.shown(found.accuracy.quality)} {word} {found.accuracy.num_images:,} held-out images"
        name = found.quality.name
        _line(name, shown) if len(name) <= INDENT else _line("quality", f"{name} {shown}")
    _say_cost(found)
    for note in found.notes:
        _line("note", note)
    for problem in found.problems:
        _line("wrong?", problem)
    if not found.problems:
        _line("", "nothing looks wrong")


def _say_speedup(found: SpeedReach) -> None:
    where = f"{found.engine}, batch {found.batch}, {found.threads} thread{'s' if found.threads != 1 else ''}"
    _line(
        "",
        f"up to {found.fastest:.2f}x as fast ({where}: {1e3 * found.whole:.1f} ms now), by the times of single layers; "
        "ask for less, the measured speed decides",
    )


def _say_cost(found: Checkup) -> None:
    speed = found.speed
    _line(
        "speed",
        f"{1 / speed.forward:,.0f} images/s forward, {1 / speed.train:,.0f} images/s in training "
        f"(batches of {speed.batch_size})",
    )
    if found.round is not None:
        _line(
            "a round",
            f"score {_time(found.round.score)}, rank the units at most {_time(found.round.rank)}, an epoch of "
            f"retraining {_time(found.round.epoch)}",
        )
        whole = found.round.run(ROUNDS, EPOCHS)
        _line("a run", f"about {_time(whole)} with --rounds {ROUNDS} --epochs {EPOCHS}")
    if speed.memory is not None:
        _line("memory", f"about {speed.memory / 2**20:,.0f} MB, with 128 images in a training step")


def _units(found: Checkup) -> str:
    private, stream = found.units["private"], found.units["stream"]
    return f"{private + stream} units ({private} inside blocks or chains, {stream} of residual streams)"


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _line(title: str, text: str) -> None:
    """A titled paragraph, wrapped to the terminal."""
    lines = textwrap.wrap(text, max(40, min(console.width, 100) - INDENT - 2))
    for number, line in enumerate(lines):
        console.print(f"{title if number == 0 else '':<{INDENT}}  {line}", markup=False, soft_wrap=True)
