"""Retraining inside a run: the rate, the best epoch, and words about what it did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from secateur.base.preserve_state import generators_kept
from secateur.channels.origin import same_origin
from secateur.errors import RunError
from secateur.running.run_context import RunContext
from secateur.running.settings import DEFAULT_REPAIR
from secateur.training.fit import fit
from secateur.training.history import Epoch
from secateur.training.meter import steps_of_epochs
from secateur.training.presets import DEFAULT_PRESET, Preset, preset_of
from secateur.training.rate_test import best_rate, try_rates
from secateur.training.trackers import epoch_figures

RATE = "rate.json"
AFTER_REPAIR = 0.01  # highest rate of the test after the repair solve: from 0.03 on, the first epoch undoes the repair


@dataclass(frozen=True)
class Retrained:
    """A retrained network, its training epoch by epoch, and the epoch that was kept."""

    model: nn.Module
    history: tuple[Epoch, ...] = ()
    kept: int | None = (
        None  # 0: the network before retraining; None: it was not retrained, or by the user's own function
    )


def retrain(context: RunContext, number: int, pruned: nn.Module, epochs: int | None) -> Retrained:
    """The network of a round after retraining: its best epoch by held-out quality, where `pruned` is epoch 0.

    epochs: None takes the preset's.
    """
    settings, data = context.settings, context.data
    if settings.fit is not None:
        with generators_kept(settings.seed + number):
            return Retrained(_own_fit(settings.fit(pruned, data.train, data.holdout), pruned))
    if epochs == 0:
        return Retrained(pruned)
    done = context.folder.epochs_before(number)
    shared: dict[str, Any] = {
        "teacher": context.original if settings.has_teacher else None,
        "seed": settings.seed + number,
        "first_epoch": done,  # a loader's order and crops follow the number of the epoch, not this seed
        "task": settings.task,
        **settings.fine_tuning,
    }
    named = preset_of(settings.preset, epochs=epochs, lr=settings.lr)
    fitted = fit(
        pruned,
        data.train,
        data.holdout,
        preset=_schedule(context, number, pruned, named, shared),
        keep_best=True,
        checkpoint_dir=context.folder.round(number) / "checkpoint",
        evaluate=context.evaluate,
        progress=steps_of_epochs(context.say, f"round {number}: retrain"),
        on_epoch=lambda epoch: context.track(epoch_figures(epoch, context.quality), done + epoch.number),
        **shared,
    )
    return Retrained(fitted.model, fitted.history, fitted.kept)


def _own_fit(found: Any, pruned: nn.Module) -> nn.Module:
    """What the user's own retraining returned, if it is a network of the same shape."""
    if not isinstance(found, nn.Module):
        hint = "; if it trains the network in place, end it with `return model`" if found is None else ""
        raise RunError(f"your fit function must return the retrained network, but returned {_kind(found)}{hint}")
    shapes = [{name: tensor.shape for name, tensor in model.state_dict().items()} for model in (found, pruned)]
    if shapes[0] != shapes[1]:
        odd = next(name for name in {**shapes[0], **shapes[1]} if shapes[0].get(name) != shapes[1].get(name))
        raise RunError(
            f"your fit function must return the network that it was given, retrained: {odd} is "
            f"{_size(shapes[0].get(odd))} in the network that it returned, and {_size(shapes[1].get(odd))} in the one "
            "that it was given"
        )
    same_origin(found, pruned)  # it may be a network built anew
    return found


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _size(shape: Any) -> str:
    return "missing" if shape is None else str(list(shape))


def _schedule(
    context: RunContext, number: int, pruned: nn.Module, schedule: Preset, shared: Mapping[str, Any]
) -> Preset:
    """The schedule with the rate that a short test chooses; a rate or preset that the user named is not changed.

    shared: settings of `fit` for the test and the training alike.
    """
    settings, folder = context.settings, context.folder
    if settings.lr is not None or settings.preset != DEFAULT_PRESET:
        return schedule
    if settings.repair == DEFAULT_REPAIR:
        schedule = preset_of(schedule, lr=AFTER_REPAIR)
    name = f"{folder.round(number).name}/{RATE}"
    if not folder.has(name):
        tries = try_rates(
            pruned,
            context.data.train,
            context.data.holdout,
            schedule,
            evaluate=context.evaluate,
            progress=lambda done, total: context.say(f"round {number}: learning rate", done, total),
            **shared,
        )
        folder.write(name, {"lr": best_rate(tries), "tries": [asdict(one) for one in tries]})
        folder.wait_for_writer()
    # Read from the file, also when it was just written: all processes must train at one rate.
    return preset_of(schedule, lr=folder.parse(name, lambda words: float(words["lr"])))
