"""The paper's method to the letter: its settings, what a run with them costs, and what the paper leaves open.

G-SD, Algorithm 1 with all held-out images, alpha in [2, 4] as given, the paper's schedule for the data set after each
round, no repair and no distillation (sections 3.2 and 4 of the paper).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from prunus.errors import DecideError
from prunus.run.settings import RARE, Settings
from prunus.tasks import DEFAULT_TASK
from prunus.train.settings import FineTuning, preset_of
from prunus.util.options import as_typed, default_of
from prunus.util.text import count, duration

if TYPE_CHECKING:
    from prunus.graph.channel_graph import ChannelGraph
    from prunus.run.checkup import Speed

NO_TEACHER = "no distillation"
# Settings that may differ, and are named then.
MAY_DIFFER = ("preset", "epochs", "last_epochs", "lr", "num_images", "max_drop", "mixed_precision")
# Setting -> the paper's value, and what the paper has, in words.
FIXED: dict[str, tuple[Any, str]] = {
    "metric": ("gsd", "the metric gsd"),
    "metric_options": ({}, "no option of G-SD but its ridge and its tap"),
    "split": ("algorithm1", "the split algorithm1"),
    "exact": (True, "a ranking on all held-out images"),
    "measure": ("accuracy", "a ranking by accuracy"),
    "cost": ("macs", "layers that are compared at their MACs"),
    "streams": ("select", "a selection of its own for each reader of a stream"),
    "repair": ("none", "no repair"),
    "trials": (None, "no repair before the ranking"),
    "distill": (False, NO_TEACHER),
    **{f.name: (default_of(f), f"no {f.name}") for f in fields(FineTuning) if f.name not in MAY_DIFFER},
    "batch_norm": ("live", "live batch-norm statistics"),
    "ema": (0.0, "no averaged weights"),
    "temperature": (4.0, NO_TEACHER),
    "distill_weight": (0.5, NO_TEACHER),
    "distill_features": (0.0, NO_TEACHER),
    "views": (None, "no epochs that repeat others"),
    "fit": (None, "a retraining of its own"),
    "evaluate": (None, "no evaluation but accuracy"),
    "round_to": (1, "no multiples that widths are rounded to"),
    "rounds": (None, "no given number of rounds"),
    "whole_steps": (True, "all n_l channels of the chosen layers in every round, the last one too"),
    "ratio": (None, "no equal share of every layer"),
    "speedup": (None, "no latency target"),
    "params": (None, "no goal in weights (Algorithm 1 counts MACs)"),
}
THE_SAME: dict[str, Any] = {"trials": "cut"}  # another word for the paper's value
OPTIONS = ("ridge", "tap")  # of G-SD, that may be given: the paper says nothing of them
ALPHAS = (2.0, 4.0)
IMAGENET_IMAGES = 10_000  # that score channels in each round; on CIFAR all training images do


def schedule_for(data: str, model: str = "") -> str:
    """The preset with the paper's schedule for a data set, and for a network on ILSVRC-2012."""
    if data.partition(":")[0] != "imagenet":
        return "cifar"
    return "imagenet-vgg16" if "vgg" in model else "imagenet-resnet50"


def paper_settings(settings: Settings, data: str = "cifar10", model: str = "", given: Collection[str] = ()) -> Settings:
    """`settings` with everything that the paper fixes. Other values that were asked for in its place are refused.

    Args:
        settings: epochs, lr, k, preset and num_images are the paper's unless they are given.
        data, model: Names, which choose the schedule and the number of images.
        given: Settings that the user gave, perhaps with the value of the default.
    """
    defaults = {field.name: default_of(field) for field in fields(Settings)}
    for name in (*FIXED, "alpha"):
        value = getattr(settings, name)
        left_out = value is None or (value == defaults[name] and name not in given)
        reason = None if left_out else contradiction(name, value)
        if reason is not None:
            raise DecideError(f"{reason}: leave out {_typed(name, value)}, or leave out --paper")
    chosen = settings.preset != defaults["preset"] or "preset" in given
    preset = preset_of(settings.preset if chosen else schedule_for(data, model), lr=settings.lr)
    some = IMAGENET_IMAGES if data.partition(":")[0] == "imagenet" else None
    values = {name: value for name, (value, _) in FIXED.items() if name != "metric_options"}
    return replace(
        settings,
        **{**values, "metric": settings.metric or values["metric"]},
        preset=preset.name,
        epochs=settings.epochs if settings.epochs or "epochs" in given else preset.epochs,
        lr=preset.lr,
        num_images=settings.num_images or some,
    )


def contradiction(name: str, asked: Any) -> str | None:
    """What the paper has in the place of a setting, in words; None if the setting is the paper's, or may differ."""
    if name == "alpha":
        inside = isinstance(asked, int | float) and ALPHAS[0] <= asked <= ALPHAS[1]
        return None if inside else "the paper has an alpha in [2, 4]"
    if name not in FIXED:
        return None
    value, papers = FIXED[name]
    if name == "metric_options":
        asked = {option: given for option, given in asked.items() if option not in OPTIONS}
    elif name == "metric" and isinstance(asked, str) and asked.startswith(f"{value}:"):
        asked = value if set(_options(asked.split(":")[1:])) <= set(OPTIONS) else asked
    return None if asked in (value, THE_SAME.get(name)) else f"the paper has {papers}"


def departures(
    settings: Settings, data: str, model: str = "", *, exclude: Sequence[str] | None = None, units: int | None = None
) -> list[str]:
    """What differs from the paper's schedule, images, layers and goal, in words.

    Args:
        data, model: Their names.
        exclude: What the paper does not prune of this network; None if the network is not in the paper.
        units: Number of units that take part, to tell whether k is a third of them.
    """
    wanted = paper_settings(Settings(), data, model)
    none = {"lr": "by a short test", "last_epochs": "as before", "num_images": "all", "max_drop": "no limit"}
    lines = []
    for name in MAY_DIFFER:
        values = [getattr(each, name) for each in (wanted, settings)]
        if values[0] != values[1]:
            papers, here = (none.get(name) if value is None else value for value in values)
            lines.append(f"{name} {papers} -> {here}")
    if settings.k is not None and (units is None or settings.k != max(1, round(units / 3))):
        lines.append(f"k a third of the units -> {settings.k}")
    if settings.only:
        lines.append(f"only all units -> {', '.join(settings.only)}")
    elif exclude is not None and set(settings.exclude) != set(exclude):
        lines.append(f"exclude {', '.join(exclude) or 'nothing'} -> {', '.join(settings.exclude) or 'nothing'}")
    task = settings.task if isinstance(settings.task, str | None) else settings.task.name or "of your own"
    return lines if task in (None, DEFAULT_TASK) else [*lines, f"task {DEFAULT_TASK} -> {task}"]


def option_of(settings: Settings, name: str) -> Any:
    """An option that was given to the metric; None if it is the default."""
    named = settings.metric if isinstance(settings.metric, str) else ""
    return {**settings.metric_options, **_options(named.split(":")[1:])}.get(name)


def _options(parts: Sequence[str]) -> dict[str, Any]:
    if not parts:
        return {}
    from prunus.scoring.choice import parse_options

    return parse_options(parts)


def _typed(name: str, asked: Any) -> str:
    """A setting as it is typed on the command line; its name alone if only Python can give it."""
    if callable(asked) or isinstance(asked, dict):
        return name
    return " ".join(as_typed(name, asked, RARE))


# -- what a run costs

PARTIAL = 0.5  # a trial of a unit runs, on average, the half of the network that follows it


def paper_cost(graph: ChannelGraph, settings: Settings, speed: Speed, train_images: int, held_out: int) -> str:
    """What a run by the paper's settings takes on this machine, from its measured speed: lines to print.

    The first round saves the step k x alpha x FLOSS_max. The number of rounds is smallest if every round saves as much.
    But a channel costs less in a thinner network: in proportion to widths, while MACs are in proportion to their
    squares. If all widths shrink alike, a step is step x sqrt(MACs left), which makes 2 (1 - sqrt(left)) / step rounds
    of shares of the network. The time is that of the most rounds, at the speed of the unpruned network.
    """
    from prunus.deciding.goal import TOLERANCE
    from prunus.deciding.splits import SplitInputs, in_order, step_at_alpha_1

    budget = settings.budget(graph)
    inputs = SplitInputs(graph, in_order(graph), budget, settings)
    step, now = settings.alpha * step_at_alpha_1(inputs), inputs.cost({})
    score = speed.forward * min(settings.num_images or train_images, train_images)
    rank = PARTIAL * speed.forward * held_out * len(inputs.names)
    epoch = speed.train * train_images + speed.forward * held_out
    last = settings.epochs if settings.last_epochs is None else settings.last_epochs
    first = f"a round removes {min(step / now, 1.0):.1%} of the network at first, and less as it shrinks"
    measured = (
        f"if nothing else runs (measured now: {1 / speed.forward:,.0f} images/s forward, {1 / speed.train:,.0f} in "
        "training)"
    )
    if budget.left is None:  # max_drop alone ends the run
        each = duration(score + rank + settings.epochs * epoch)
        return f"{first}:\n{count(settings.epochs, 'epoch')} a round, about {each} on this machine\n{measured}"
    left = (budget.left + TOLERANCE * budget.whole) / now  # the run ends within a tolerance of it
    counts = ((1 - left) * now / step, 2 * (1 - math.sqrt(left)) * now / step)
    fewest, most = (max(1, math.ceil(each - 1e-9)) for each in counts)
    epochs = (most - 1) * settings.epochs + last
    rounds = count(fewest, "round") if fewest == most else f"{fewest:,} to {most:,} rounds"
    but = "" if last == settings.epochs else f" (the last of {last:,})"
    return (
        f"{first}:\n{rounds} of {count(settings.epochs, 'epoch')}{but}, at most {count(epochs, 'epoch')} in all,\n"
        f"at most {duration(most * (score + rank) + epochs * epoch)} on this machine {measured}"
    )


# -- what the paper leaves open, and what happens here, in the words of `prune --paper` and the recipes

PAPERS_DATA = ("cifar10", "cifar100", "imagenet")  # that the paper prunes networks on
OPEN = {  # the names by which recipe files call these sentences
    "ridge": "G-SD divides by variances, which are 0 where a channel is dead for a class: its denominators have a "
    "ridge of 0.05, from the first author's later code, unless the metric says another. gsd:ridge=0 leaves it out.",
    "tap": "Whether G-SD sees activations before or after the ReLU is not given: after it, where the next layer reads "
    "them, as in the first author's later code, unless the metric says tap=before_activation.",
    "epochs": "The paper gives one number of fine-tuning epochs: it is used for each round.",
    "best_epoch": "Which epoch of a fine-tuning is taken is not given: the one with the best held-out accuracy here.",
    "floor": "How far a layer may shrink is not given: here it keeps at least 2 channels and 10% of its channels.",
    "k_and_alpha": "k is 'around one-third' of the layers and alpha in [2, 4]: a third and 3 here, unless they are "
    "given, with as many rounds as necessary. For a given number of rounds, alpha is solved.",
    "images": "The layers are chosen by validation accuracy; which images is not given, and CIFAR has no validation "
    "set. Those of --holdout decide here: of the training images, not trained on then (train:SHARE), or of the "
    "test images, which the report then leaves out (test:SHARE).",
}


def left_open(settings: Settings, data: str) -> tuple[str, ...]:
    """The sentences that are true of a run by the paper's settings."""
    without = [] if settings.retrains_at_all else ["epochs", "best_epoch"]
    if option_of(settings, "ridge") == 0:  # as the paper prints it
        without.append("ridge")
    sentences = [sentence for name, sentence in OPEN.items() if name not in without]
    if data.partition(":")[0] not in PAPERS_DATA and settings.preset == schedule_for(data):
        sentences.append(f"The paper has no schedule for {data}: that of its CIFAR experiments is used here.")
    return tuple(sentences)


# -- differences.md, in the run's folder

DIFFERENCES = "differences.md"
PAPER = "Liu, Wentzlaff and Kung, *Rethinking Class-Discrimination Based CNN Channel Pruning*, 2020 (arXiv:2004.14492)"


def differences(settings: Settings, about: Mapping[str, Any]) -> str:
    """What of a run is not as in the paper, as markdown.

    Args:
        settings: Those of the run, filled in.
        about: What the run's config.json says of the command: data set and network have names there.
    """
    command, values = about.get("command") or {}, settings.to_dict()
    data, model = str(command.get("data") or ""), str(command.get("model") or "")
    other: list[str] = []
    same: list[str] = []
    for name in (*FIXED, "alpha"):
        reason, value = contradiction(name, getattr(settings, name)), values.get(name)
        if reason is None:
            same.append(name)
        elif name != "alpha" or settings.ranks:  # alpha is of Algorithm 1
            shown = "not set" if value is None else "on" if value is True else "off" if value is False else value
            other.append(f"`{name}` is {shown}: {reason}")
    by_its_method = not other
    changed = departures(settings, data or "cifar10", model)
    if not settings.retrains_at_all:  # a schedule that nothing follows
        changed = [text for text in changed if text.partition(" ")[0] not in ("preset", "lr", "mixed_precision")]
    other += [f"{text} (the paper -> this run)" for text in changed]
    if not data:
        other.append("the data set has no name: schedule and number of images are compared with those for CIFAR")
    open_here = left_open(settings, data or "cifar10") if by_its_method else ()
    return as_markdown(other, open_here, same)


def as_markdown(other: Sequence[str], left_open: Sequence[str] = (), same: Sequence[str] = ()) -> str:
    """The file: what differs, what the paper leaves open, and which settings are the paper's."""
    lines = ["# How this run differs from the paper", "", f"The paper: {PAPER}.", ""]
    lines += ["## Different", "", *(f"- {text}" for text in other or ["nothing that settings can say"]), ""]
    if left_open:
        lines += ["## Left open in the paper, and what was done here", "", *(f"- {text}" for text in left_open), ""]
    if same:
        lines += ["## As in the paper", "", f"The settings {', '.join(f'`{name}`' for name in same)}.", ""]
    return "\n".join(lines)
