"""The code on the page: the command or call that repeats the run, and the lines that load the pruned network."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from secateur.report.finished_run import FinishedRun
from secateur.running.settings import Settings

# Options of `secateur prune` that are not settings of the run, with their defaults; the default of all others is None.
OPTIONS: Mapping[str, Any] = {
    "data": "digits",
    "augment": True,
    "batch_size": 128,
    "holdout": "train:0.1",
    "workers": 0,
}


def command(asked: Mapping[str, Any]) -> str:
    """The command line that repeats the run. Options with their default value are left out."""
    plain = Settings()
    words = ["secateur", "prune", str(asked["model"])]
    for key, value in asked.items():
        default = OPTIONS.get(key, getattr(plain, key, None))
        nothing = value in (None, (), []) and default in (None, (), [])
        # The data set is always written out, because it matters to the reader.
        if key == "model" or ((nothing or value == default) and key != "data"):
            continue
        option = f"--{key.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(option if value else f"--no-{option[2:]}")
        elif isinstance(value, (list, tuple)):
            words += [word for each in value for word in (option, str(each))]
        else:
            words += [option, str(value)]
    return shlex.join(words)


def call(run: FinishedRun) -> str:
    """The library call that repeats the run; the caller has the model and the loaders."""
    changed = [f"{name}={value!r}" for name, value, default in settings_of(run) if value != default]
    return f"secateur.compress({', '.join(['model', 'train', 'holdout', *changed, f'folder={str(run.folder)!r}'])})"


def settings_of(run: FinishedRun) -> list[tuple[str, Any, Any]]:
    """Name, value and default of every setting."""
    plain = Settings()
    return [(f.name, getattr(run.settings, f.name), getattr(plain, f.name)) for f in fields(Settings)]


def loading(run: FinishedRun) -> str:
    """Three lines of Python that load the pruned network."""
    folder = repr(str(run.folder))
    if run.command is None:
        return (
            "import secateur\n"
            f"original = {run.model}(...)  # a new network of this class; its weights do not matter\n"
            f"small = secateur.load({folder}, original)"
        )
    return (
        "import secateur\n"
        "from secateur.zoo.models import create\n"
        f"small = secateur.load({folder}, create({', '.join(_create_arguments(run))}))"
    )


def _create_arguments(run: FinishedRun) -> list[str]:
    """Arguments of `create` for the original: name, classes, and the input channels if they are not the default."""
    name = str((run.command or {})["model"])
    arguments = [repr(name)]
    if run.layers:
        arguments.append(f"num_classes={list(run.layers.values())[-1].outputs[0]}")
    channels = _image_channels(run.plan.example)
    if channels is not None and ":" not in name:
        from secateur.zoo.models import config

        if config(name).shape[0] != channels:
            arguments.append(f"in_channels={channels}")
    elif channels not in (None, 3) and name.startswith("timm:"):
        arguments.append(f"in_chans={channels}")
    return arguments


def _image_channels(example: Any) -> int | None:
    """Number of channels of an image, from the plan's example input; None if that is not one batch of images."""
    shape = example.get("shape") if isinstance(example, dict) else None
    return int(shape[1]) if isinstance(shape, list) and len(shape) == 4 else None
