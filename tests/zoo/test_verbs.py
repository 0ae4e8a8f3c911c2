"""`secateur models` and `secateur data`: exact lines and exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from secateur.cli import data as data_verb
from secateur.cli import models as models_verb
from secateur.zoo.data import download
from tests.zoo.formats import TinyCifar, write_tar
from tests.zoo.test_download import tiny_source


def run(*words: str) -> Result:
    app = typer.Typer()
    app.command("models")(models_verb.command)
    app.add_typer(data_verb.app, name="data")
    return CliRunner().invoke(app, list(words))


def test_models_are_listed_with_their_cost() -> None:
    done = run("models")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["name", "input", "classes", "MACs", "weights", "params", "what"]
    by_name = {line.split()[0]: line.split() for line in lines}
    assert by_name["resnet56"][1:9] == ["3x32x32", "10", "125.49", "M", "0.85", "M", "0.85", "M"]
    assert by_name["vgg16_imagenet"][1:9] == ["3x224x224", "1000", "15.47", "G", "138.34", "M", "138.36", "M"]
    assert len(lines) == 1 + 20 + 2


def test_one_model_for_other_classes() -> None:
    done = run("models", "resnet20", "--classes", "100")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[1].split()[:5] == ["resnet20", "3x32x32", "100", "40.56", "M"]


def test_an_unknown_model_is_one_line_and_exit_code_1() -> None:
    done = run("models", "resnet21")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: no model is called 'resnet21'; did you mean ")


def test_data_list_says_what_is_here(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "cifar.tgz", TinyCifar().png())
    download.get(tiny_source(), tmp_path, archive)
    done = run("data", "list", "--root", str(tmp_path))
    assert done.exit_code == 0, done.output
    by_name = {line.split()[0]: line.split()[-1] for line in done.stdout.splitlines()}
    assert by_name["digits"] == "yes"
    assert by_name["mnist"] == by_name["cifar100"] == "no"
    assert by_name["cifar10"] == str(tmp_path / "cifar10.safetensors")
    assert done.stdout.splitlines()[-1] == f"looked in: {tmp_path}"


def test_data_get_from_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = write_tar(tmp_path / "cifar.tgz", TinyCifar().png())
    monkeypatch.setattr(download, "SOURCES", {"cifar10": tiny_source()})
    done = run("data", "get", "cifar10", "--to", str(tmp_path / "there"), "--from", str(archive))
    assert done.exit_code == 0, done.output
    path = tmp_path / "there" / "cifar10.safetensors"
    size = path.stat().st_size / 1e6
    expected = f"cifar10: 20 training and 4 test images, SHA-256 right, {size:.1f} MB in {path}\n"
    assert done.stdout == expected


def test_data_get_with_a_wrong_checksum_or_name(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "cifar.tgz", TinyCifar().png())
    done = run("data", "get", "cifar10", "--to", str(tmp_path), "--from", str(archive))
    assert done.exit_code == 1
    assert f"error: {archive}: SHA-256 of the decoded images and labels should be" in done.stderr
    assert not (tmp_path / "cifar10.safetensors").exists()
    done = run("data", "get", "roses")
    assert done.exit_code == 1
    assert done.stderr == "error: 'roses' is not a data set that can be fetched; these are: cifar10, cifar100, mnist\n"
