"""Accelerate's one global state must not leak out of a call."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from prunus.errors import RunError
from prunus.util.processes import accelerating, best_device, rank_and_world, usable
from tests.processes import PATHS, python


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


LIKE_ACCELERATE = """
import warnings
import torch
warnings.warn("IProgress not found. Please update jupyter and ipywidgets.")  # as tqdm says in a notebook
class PartialState:
    device, num_processes = torch.device("cpu"), 1
    def __init__(self, **_): pass
class Accelerator(PartialState): pass
class AcceleratorState: _shared_state = {}
class GradientState: _shared_state = {}
"""


def test_a_notebook_without_widgets_is_not_warned_of(tmp_path: Path) -> None:
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "__init__.py").write_text(LIKE_ACCELERATE)
    (tmp_path / "accelerate" / "state.py").write_text("from accelerate import AcceleratorState, GradientState")
    use = "from prunus.util.processes import accelerating\nwith accelerating('cpu', 'no') as found: print(type(found))"
    said = python("-W", "error::UserWarning", "-c", use, PYTHONPATH=os.pathsep.join([str(tmp_path), PATHS]))
    assert "accelerate.Accelerator" in said
