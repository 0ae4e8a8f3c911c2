"""`prunus check`: a dry run, which says what a run could reach, what it would take, and what looks wrong."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prunus.cli.console import EXIT_ERROR, Answer, console, friendly, say
from prunus.cli.images import DataOptions
from prunus.cli.inspect import frozen_lines
from prunus.cli.network import open_model, open_network, resolve
from prunus.cli.options import DeviceOptions, LayerTimeOptions, Model, Weights
from prunus.deciding.settings import StreamSettings, TimeSettings
from prunus.tasks import task_of
from prunus.tasks.quality import ACCURACY, TaskOptions
from prunus.timing.engines import ENGINES
from prunus.util.options import option
from prunus.util.text import big_number, count, duration

if TYPE_CHECKING:
    from prunus.run.checkup import Checkup

INDENT = 10  # columns
PART_TEXTS = {"train": "for training", "holdout": "held out", "test": "for testing"}


@dataclass(frozen=True)
class SpeedOptions(LayerTimeOptions):
    """The engine whose fastest speed-up is printed."""

    engine: str | None = option(
        None, f"Also print the fastest --speedup in this engine: {', '.join(ENGINES)}", valid=ENGINES.check
    )


@friendly
def command(
    model: Model,
    data: DataOptions,
    timing: SpeedOptions,
    task: TaskOptions,
    device: DeviceOptions,
    units: StreamSettings,
    weights: Weights = None,
) -> Answer:
    """A dry run of `prune`, in under a minute: what can be pruned, which goals can be reached, what a run would take,
    and what looks wrong (labels, normalisation, accuracy).

    Without --data, only the network is checked; a run's own data set is known. Exit code 1: something looks wrong.

    With --engine the layers are timed there, which may take minutes (once; times are kept), and the fastest --speedup
    that `prune` can reach is printed.

    Examples:

        prunus check resnet56

        prunus check resnet56 --data cifar10 --weights w.safetensors

        prunus check resnet56 --engine onnxruntime --threads 1

        prunus check runs/prune-resnet56-cifar10 --json

        prunus check nets:unet --data folder:. --task segmentation
    """
    if timing.engine is not None:
        ENGINES.find(timing.engine).check_installed()
    named = resolve(model, weights)
    known = None if data.data is None and "data" not in named.run_options else data.known_for(named)
    from prunus.run.checkup import checkup

    wanted = task_of(named.task(task.task))
    images = None if known is None else known.open(named, task=wanted)
    if images is not None:
        network, example = open_model(named, images), images.example()
    else:
        opened = open_network(named)
        network, example = opened.model, opened.example()
    result = checkup(
        network.to(device.pick()),
        example,
        images,
        trained=named.has_weights,
        task=wanted,
        streams=units.streams,
        timed_in=None if timing.engine is None else TimeSettings(timing.engine, timing.batch, timing.threads),
    )
    _print(named.label, result)
    record = {"model": model, "data": known and known.name, **result.to_dict()}
    return Answer(record, code=EXIT_ERROR if result.problems else 0)


def _print(name: str, result: Checkup) -> None:
    costs = f"{big_number(result.macs)} MACs, {big_number(result.params)} weights"
    _line("network", f"{name} on {result.inputs}: {costs}")
    private, stream = result.units["private"], result.units["stream"]
    units = f"{private + stream} units ({private} inside blocks or chains, {stream} of residual streams)"
    _line("prunable", f"{result.prunable} of {result.layers} layers, in {units}")
    for line in frozen_lines(result.frozen):
        _line("frozen", line)
    _line(
        "goals",
        f"up to {100 * result.reach['macs']:.1f}% of the MACs and {100 * result.reach['params']:.1f}% of the weights "
        "can be removed: every unit keeps 2 channels and 10% at least",
    )
    if result.speedup is not None:
        fast = result.speedup
        where = f"{fast.engine}, batch {fast.batch}, {count(fast.threads, 'thread')}: {1e3 * fast.whole:.1f} ms now"
        _line(
            "",
            f"up to {fast.fastest:.2f}x as fast ({where}), by the times of single layers; ask for less, the measured "
            "speed decides",
        )
    if result.images:
        counts = ", ".join(f"{number:,} {PART_TEXTS[part]}" for part, number in result.images.items())
        _line("images", f"{counts}; {result.classes} classes" if result.classes else counts)
    if result.accuracy is not None:
        text, measured = result.quality, result.accuracy
        word = "of" if text == ACCURACY else "on"
        shown = f"{text.shown(measured.quality)} {word} {measured.num_images:,} held-out images"
        _line(text.name, shown) if len(text.name) <= INDENT else _line("quality", f"{text.name} {shown}")
    speed = result.speed
    forward, train = (f"{1 / seconds:,.0f} images/s" for seconds in (speed.forward, speed.train))
    _line("speed", f"{forward} forward, {train} in training (batches of {speed.batch_size})")
    if result.run is not None:
        names = {"score": "scores", "repair": "repair", "evaluate": "evaluation", "timing": "timing at most"}
        spent = ", ".join(f"{name} {duration(getattr(result.run, part))}" for part, name in names.items())
        _line("a run", f"about {duration(result.run.whole)} for --target, without retraining: {spent}")
        _line(
            "",
            f"each of --epochs takes {duration(result.run.epoch)} more; a latency target measures the layers too, once",
        )
    for note in result.notes:
        _line("note", note)
    for problem in result.problems:
        _line("wrong?", problem)
    if not result.problems:
        _line("", "nothing looks wrong")


def _line(title: str, text: str) -> None:
    """A titled paragraph, wrapped to the terminal."""
    for number, line in enumerate(textwrap.wrap(text, max(40, min(console.width, 100) - INDENT - 2))):
        say(f"{title if number == 0 else '':<{INDENT}}  {line}")
