"""Check a recorded graph: run node by node, it must compute what the model computes."""

from __future__ import annotations

from typing import Any

from secateur.base.module_state import module_state_kept
from secateur.base.preserve_state import generators_kept
from secateur.channels.runner import GraphRunner, last_uses
from secateur.channels.traced import Example, Traced
from secateur.channels.verifying.comparison import in_mode, outputs_of
from secateur.channels.verifying.inputs import copied, randomised
from secateur.channels.verifying.outputs import distance, flattened
from secateur.channels.verifying.trials import Trial
from secateur.errors import TraceError

_ROUNDING = 1e-3  # both run the same calls: only the code of another path differs by more


def check_recording(traced: Traced, trial: Trial | None, example: Example) -> None:
    """Raise TraceError unless the graph computes what the model computes in a trial, or else on random inputs of the
    shape of the example.

    Code that looks at sizes may be recorded for the sizes of the example only. The example itself would not show that
    something computed from it was recorded as a constant.
    """
    with in_mode(traced.model, "eval"):
        if trial is not None and not traced.guards and _apart(traced, trial.inputs, trial.output) <= _ROUNDING:
            return
        drawn = randomised(example)
        apart = _apart(traced, drawn, outputs_of(traced.model, drawn))
    if apart > _ROUNDING:
        raise TraceError(
            f"the calls recorded from {type(traced.model).__name__} do not compute what the model computes on the "
            f"example (the outputs differ by {apart:.2g} of their size). Its code probably takes another path while it "
            "is recorded, or keeps something from one call to the next. Move that code into a module of its own and "
            "give that class a rule with secateur.register_rule(Class, secateur.rules.unknown)."
        )


def _apart(traced: Traced, inputs: Example, output: list[Any]) -> float:
    """How far the output of the graph is from that of the model."""
    try:
        return distance(_run(traced, inputs), output)
    except Exception:  # noqa: BLE001  whatever the model's own code raises
        return float("inf")


def _run(traced: Traced, inputs: Example) -> list[Any]:
    runner = GraphRunner(traced)
    with module_state_kept(traced.model), generators_kept(0):
        values = runner.bind(copied(inputs))
        return flattened(runner.run(values, free=last_uses(runner.nodes)))
