"""Settings of a training run: given as an object or by name."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from prunus.errors import RunError
from prunus.run.settings import Settings
from prunus.train.fit import fit
from prunus.train.settings import DEFAULT_PRESET, PRESETS, Preset, TrainingSettings, preset_of
from tests.processes import ENVIRONMENT
from tests.proof import same_state
from tests.train.toys import batches, network


def test_an_object_and_names_give_the_same_run() -> None:
    by_name = fit(network(), batches(2), epochs=1, lr=0.01, seed=3)
    settings = TrainingSettings(epochs=1, lr=0.5, seed=3)
    by_object = fit(network(), batches(2), None, settings, lr=0.01)  # a name replaces a field
    assert same_state(by_name.model, by_object.model) and by_name.history[0].number == 1
    assert TrainingSettings().preset == Settings().preset == DEFAULT_PRESET
    assert TrainingSettings(epochs=4, lr=0.2).schedule.epochs == 4
    assert TrainingSettings(lr=0.2).schedule.epochs == PRESETS[DEFAULT_PRESET].epochs


def test_unknown_and_impossible_settings_are_refused() -> None:
    with pytest.raises(RunError, match="no setting called 'epoch': did you mean epochs"):
        fit(network(), batches(1), epoch=3)
    with pytest.raises(RunError, match="mixed_precision must be one of no, bf16, fp16; got 'half'"):
        fit(network(), batches(1), mixed_precision="half")


def test_settings_and_registries_do_not_import_torch() -> None:
    rooms = ("train.settings", "run.settings", "scoring.metrics", "repairing.repair", "deciding.settings")
    modules = ", ".join(f"prunus.{name}" for name in (*rooms, "tasks.quality", "timing.engines"))
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, check=False).returncode == 0


@pytest.mark.parametrize(
    "name, epochs, batch_size, rates",
    [
        ("cifar", 200, 128, {0: 0.01, 79.99: 0.01, 80: 0.002, 159.99: 0.002, 160: 0.0004, 199.99: 0.0004}),
        ("imagenet-vgg16", 30, 256, {0: 3e-4, 11.99: 3e-4, 12: 1.2e-4, 23.99: 1.2e-4, 24: 4.8e-5, 29.9: 4.8e-5}),
        ("imagenet-resnet50", 120, 256, {0: 3e-4, 47.99: 3e-4, 48: 1.2e-4, 95.99: 1.2e-4, 96: 4.8e-5}),
        ("effectiveness", 150, 128, {0: 0.01, 59.99: 0.01, 60: 0.002, 119.99: 0.002, 120: 0.0004}),
    ],
)
def test_schedules_of_the_paper(name: str, epochs: int, batch_size: int, rates: dict[float, float]) -> None:
    preset = preset_of(name)
    assert (preset.epochs, preset.batch_size, preset.momentum, preset.weight_decay) == (epochs, batch_size, 0.9, 1e-4)
    for done, rate in rates.items():
        assert preset.lr_at(done) == pytest.approx(rate, rel=1e-12), done


def test_cosine_climbs_and_falls() -> None:
    preset = Preset("own", epochs=21, lr=0.4, batch_size=8, schedule="cosine", warmup=1)
    assert preset.lr_at(0.25) == pytest.approx(0.1)
    assert preset.lr_at(1) == pytest.approx(0.4)
    assert preset.lr_at(6) == pytest.approx(0.2 * (1 + math.sqrt(0.5)))  # a quarter of the way: cos 45 degrees
    assert preset.lr_at(11) == pytest.approx(0.2)
    assert preset.lr_at(21) == pytest.approx(0.0, abs=1e-12)


def test_warm_ups_and_milestones() -> None:
    preset = preset_of("cosine", epochs=2)  # a short run warms up for a tenth of it
    assert preset.lr_at(0.1) == pytest.approx(preset.lr / 2) and preset.lr_at(0.2) == pytest.approx(preset.lr)
    preset = Preset("p", epochs=10, lr=1.0, batch_size=8, schedule="cosine", warmup=5)
    assert preset.lr_at(0.5) == pytest.approx(0.5)
    preset = Preset("own", epochs=25, lr=1.0, batch_size=8, milestones=(0.28,), factor=0.1)
    assert 0.28 * 25 > 7  # in binary
    assert preset.lr_at(7) == pytest.approx(0.1) and preset.lr_at(6.999) == 1.0


def test_epochs_and_rate_are_replaced_and_the_preset_stays() -> None:
    changed = preset_of("cifar", epochs=10, lr=0.5)
    assert (changed.epochs, changed.lr, changed.lr_at(4), changed.name) == (10, 0.5, pytest.approx(0.1), "cifar")
    assert PRESETS["cifar"].epochs == 200
    assert preset_of(changed) == changed


def test_bad_presets() -> None:
    with pytest.raises(RunError, match="there is no training preset called 'cifra': did you mean cifar"):
        preset_of("cifra")
    for bad in ({"epochs": 0}, {"lr": 0.0}, {"lr": math.nan}, {"batch_size": 0}, {"warmup": -1}, {"schedule": "sine"}):
        with pytest.raises(RunError, match="preset own"):
            Preset(**{"name": "own", "epochs": 1, "lr": 0.1, "batch_size": 1, **bad})  # type: ignore[arg-type]
