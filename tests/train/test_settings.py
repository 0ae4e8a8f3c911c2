"""Settings of a training run: given as an object or by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from prunus.errors import RunError
from prunus.run.settings import Settings
from prunus.train.fit import fit
from prunus.train.settings import DEFAULT_PRESET, PRESETS, TrainingSettings
from tests.processes import ENVIRONMENT
from tests.train.toys import batches, network, same_tensors, state_of


def test_an_object_and_names_give_the_same_run() -> None:
    by_name = fit(network(), batches(2), epochs=1, lr=0.01, seed=3)
    settings = TrainingSettings(epochs=1, lr=0.5, seed=3)
    by_object = fit(network(), batches(2), None, settings, lr=0.01)  # a name replaces a field
    assert same_tensors(state_of(by_name.model), state_of(by_object.model)) and by_name.history[0].number == 1


def test_fit_and_compress_share_their_default_preset() -> None:
    assert TrainingSettings().preset == Settings().preset == DEFAULT_PRESET
    assert TrainingSettings(epochs=4, lr=0.2).schedule.epochs == 4
    assert TrainingSettings(lr=0.2).schedule.epochs == PRESETS[DEFAULT_PRESET].epochs


def test_unknown_and_impossible_settings_are_refused() -> None:
    with pytest.raises(RunError, match="no setting called 'epoch': did you mean epochs"):
        fit(network(), batches(1), epoch=3)
    with pytest.raises(RunError, match="mixed_precision must be one of no, bf16, fp16; got 'half'"):
        fit(network(), batches(1), mixed_precision="half")


@pytest.mark.parametrize("module", ["training.settings", "scoring.settings", "scoring.metrics", "repairing.methods"])
def test_settings_and_registries_do_not_import_torch(module: str) -> None:
    code = f"import sys, prunus.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, check=False).returncode == 0
