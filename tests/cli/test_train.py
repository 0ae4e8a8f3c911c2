"""`prunus train`, and `prunus evaluate` of its result: exit codes, output, files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from prunus.zoo.data import load
from prunus.zoo.models import create
from tests.cli.command_line import lines, prunus
from tests.proof import assert_accuracy

SHORT = ["lenet5", "--data", "digits", "--epochs", "2", "--num-images", "256", "--no-augment", "--device", "cpu"]


def test_lenet_on_digits_passes_97_per_cent_and_evaluate_says_the_same(tmp_path: Path) -> None:
    said = lines(prunus("train", "lenet5", "--data", "digits", "--out", tmp_path))
    assert [line.split()[1] for line in said[:30]] == [f"{number}/30" for number in range(1, 31)]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["holdout"]["quality"] > 0.97 and summary["test"]["quality"] > 0.95
    assert (summary["holdout"]["num_images"], summary["test"]["num_images"]) == (144, 359)
    assert said[-2].startswith(f"test: accuracy {100 * summary['test']['quality']:.2f}%, top-5")

    weights = tmp_path / "model.safetensors"
    heard = lines(prunus("evaluate", "lenet5", "--data", "digits", "--weights", weights))
    assert heard[0] == "lenet5 on digits, test: 359 images"
    network = create("lenet5")
    network.load_state_dict(load_file(weights))
    digits = load("digits", size=32)  # the size of LeNet-5's images
    found = re.fullmatch(r"accuracy  ([\d.]+)%", heard[1])
    assert found is not None
    # `train` and `evaluate` order memory differently and use other batches, so an image on the border may turn.
    assert_accuracy(float(found[1]) / 100, network, digits.loader("test", 359), printed=1e-4)
    assert_accuracy(summary["test"]["quality"], network, digits.loader("test", 359))
    assert re.fullmatch(r"[\d.]+ s, [\d,]+ images/s", heard[4])
    words = ["--part", "holdout", "--json", "--batch-size", "50"]
    held = json.loads(prunus("evaluate", "lenet5", "--data", "digits", "--weights", weights, *words).stdout)
    for quality in (held["quality"]["value"], summary["holdout"]["quality"]):
        assert_accuracy(quality, network, digits.loader("holdout", 144))
    assert held["loss"] == pytest.approx(summary["holdout"]["loss"], rel=1e-4)


def test_the_same_command_goes_on_and_another_one_is_refused(tmp_path: Path) -> None:
    lines(prunus("train", *SHORT, "--out", tmp_path))
    first = load_file(tmp_path / "model.safetensors")
    again = lines(prunus("train", *SHORT, "--out", tmp_path))
    assert [line.split(":")[0] for line in again] == ["held-out", "test", "weights"]  # no epoch was left to train
    assert all(torch.equal(first[name], tensor) for name, tensor in load_file(tmp_path / "model.safetensors").items())
    refused = prunus("train", *SHORT, "--augment", "--out", tmp_path)
    assert refused.exit_code == 1
    assert "belongs to another run: augment was False and is now True" in refused.stderr


def test_distillation_presets_and_own_normalisation(tmp_path: Path) -> None:
    teacher = tmp_path / "teacher"
    lines(prunus("train", *SHORT, "--out", teacher, "--holdout", "none", "--mean", "0.5", "--std", "0.25"))
    words = ["--preset", "cifar", "--teacher", f"lenet5={teacher / 'model.safetensors'}"]
    said = lines(prunus("train", *SHORT, "--out", tmp_path / "student", *words, "--temperature", "4"))
    assert said[0].split()[3] == "0.0100" and said[1].split()[3] == "0.0004"  # 1.75 of 2 epochs is past 80%
    assert not any("held-out" in line for line in (teacher / "metrics.jsonl").read_text().splitlines())


def test_the_folder_of_a_training_is_a_network_for_its_images(tmp_path: Path) -> None:
    """Built for images of one channel, where the network has three by default; also by verbs that read no data."""
    quick = ["--epochs", "1", "--num-images", "128", "--device", "cpu"]
    lines(prunus("train", "resnet8", "--data", "digits", *quick, "--out", tmp_path / "base"))
    assert lines(prunus("inspect", tmp_path / "base"))[0].startswith(
        f"{tmp_path / 'base'} on 1 x 32 x 32: 11.94 M MACs"
    )
