"""Accelerate's one global state must not leak out of a call."""

from __future__ import annotations

import sys
import types
import warnings

import accelerate
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from prunus.errors import RunError
from prunus.util.processes import accelerating, best_device, rank_and_world, usable


def test_two_precisions_one_after_the_other_and_nothing_is_left() -> None:
    AcceleratorState._reset_state()
    for precision in ("no", "bf16", "no"):
        with accelerating("cpu", precision) as accelerator:  # type: ignore[arg-type]
            assert accelerator.mixed_precision == precision
            assert accelerator.device == torch.device("cpu")
        assert AcceleratorState._shared_state == {}


def test_a_users_own_accelerator_is_as_it_was() -> None:
    AcceleratorState._reset_state()
    own = Accelerator(cpu=True, mixed_precision="bf16")
    with pytest.raises(ZeroDivisionError), accelerating("cpu", "no") as accelerator:
        assert accelerator.mixed_precision == "no"
        raise ZeroDivisionError
    assert own.mixed_precision == "bf16" and own.device == torch.device("cpu")
    AcceleratorState._reset_state()


def test_what_cannot_be_had_is_said() -> None:
    with pytest.raises(RunError, match="fp16 needs a GPU"), accelerating("cpu", "fp16"):
        pass
    with pytest.raises(RunError, match="no, bf16 or fp16"), accelerating("cpu", "half"):  # type: ignore[arg-type]
        pass
    with pytest.raises(RunError, match="'abacus' cannot be used"):
        usable("abacus")
    assert rank_and_world() == (0, 1) and usable(best_device()) == best_device()


def test_a_notebook_without_widgets_is_not_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """tqdm, which Accelerate imports, warns in a notebook; here a module that warns stands for it."""

    class Warns(types.ModuleType):
        def __getattr__(self, name: str) -> object:
            if name == "Accelerator":
                warnings.warn("IProgress not found. Please update jupyter and ipywidgets.", stacklevel=2)
            return getattr(accelerate, name)

    monkeypatch.setitem(sys.modules, "accelerate", Warns("accelerate"))
    with accelerating("cpu", "no") as accelerator:  # a warning is an error in tests
        assert isinstance(accelerator, Accelerator)
