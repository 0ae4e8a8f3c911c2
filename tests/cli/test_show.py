"""`prunus show`: pictures of paper size, the same bytes each time, and errors that say what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from prunus.zoo.models import create
from tests.cli.command_line import prunus


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "lenet5.safetensors"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        save_file(create("lenet5").state_dict(), path)
    return path


@pytest.mark.parametrize(
    ("verb", "words", "text"),
    [
        ("separation", "--points 12 --each 2", "LDA 1"),
        ("channels", "--classes 3 --metrics l1,gsd --top 4", "by L1 norm"),
    ],
)
def test_the_verbs(verb: str, words: str, text: str, weights: Path, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        options = f"--data digits --num-images 100 --device cpu {words}".split()
        done = prunus("show", verb, "lenet5", "--weights", weights, *options, "--out", tmp_path / folder)
        assert done.exit_code == 0, done.output
        assert f"written: {tmp_path / folder / verb}.png" in done.output and "conv2:out" in done.output
    with Image.open(tmp_path / "one" / f"{verb}.png") as picture:
        assert picture.size[0] == 1400  # 7 inches, both columns of a paper, at 200 dots an inch
    drawing = (tmp_path / "one" / f"{verb}.svg").read_text(encoding="utf-8")
    assert text in drawing and "G-SD" in drawing  # text stays text
    assert json.loads((tmp_path / "one" / f"{verb}.json").read_text())["unit"] == "conv2:out"
    for ending in ("png", "svg", "json"):
        assert (tmp_path / "one" / f"{verb}.{ending}").read_bytes() == (
            tmp_path / "two" / f"{verb}.{ending}"
        ).read_bytes()


def test_without_arguments_the_demos_network(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept = Path("runs/base-resnet8-digits/model.safetensors")
    kept.parent.mkdir(parents=True)
    save_file(create("resnet8", num_classes=10, in_channels=1).state_dict(), kept)
    done = prunus("show", "channels", "--num-images", "40", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "layer2.0.conv1:out: by gsd, channel" in done.output
    assert Path("runs/show-resnet8-digits/channels.png").exists()
