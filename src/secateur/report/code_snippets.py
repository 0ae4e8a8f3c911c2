"""The Python code on the page: the call that repeats the run, and the lines that load the pruned network."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from secateur.base.options import default_of
from secateur.report.finished_run import FinishedRun


def call(run: FinishedRun) -> str:
    """The library call that repeats the run; the caller has the model and the loaders."""
    values = [(field, getattr(run.settings, field.name)) for field in fields(run.settings)]
    changed = [f"{field.name}={value!r}" for field, value in values if value != default_of(field)]
    return f"secateur.compress({', '.join(['model', 'train', 'holdout', *changed, f'folder={str(run.folder)!r}'])})"


def loading(run: FinishedRun) -> str:
    """Three lines of Python that load the pruned network."""
    folder = repr(str(run.folder))
    if run.command is None:
        return (
            "import secateur\n"
            f"original = {run.model}(...)  # a new network of this class; its weights do not matter\n"
            f"small = secateur.load({folder}, original).eval()"
        )
    original = f"create({', '.join(_create_arguments(run))})"
    for earlier in run.earlier:
        original = f"secateur.load({earlier!r}, {original})"
    return (
        f"import secateur\nfrom secateur.zoo.models import create\nsmall = secateur.load({folder}, {original}).eval()"
    )


def _create_arguments(run: FinishedRun) -> list[str]:
    """Arguments of `create` for the original: name, classes, and the input channels if they are not the default."""
    name = str(run.network)
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
