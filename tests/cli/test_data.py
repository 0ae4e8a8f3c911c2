"""`prunus data`: exact lines and exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from prunus.zoo import formats, names
from prunus.zoo.data import NAMES
from tests.cli.command_line import lines, prunus
from tests.zoo.formats import TinyCifar, write_tar
from tests.zoo.test_formats import tiny_source


def test_the_list_says_what_is_here(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "cifar.tgz", TinyCifar().png())
    formats.get(tiny_source(), tmp_path, archive)
    said = lines(prunus("data", "--root", tmp_path))
    assert [line.split()[0] for line in said[1:7]] == list(NAMES)
    places = dict(line.split(": ") for line in said[8:12])
    assert places["digits"] == "available"
    assert places["mnist"] == places["cifar100"] == "not found"
    assert places["cifar10"] == str(tmp_path / "cifar10.safetensors")
    assert said[-1] == f"searched: {tmp_path}"
    assert max(map(len, said[:8])) <= 80


def test_getting_one_from_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = write_tar(tmp_path / "cifar.tgz", TinyCifar().png())
    monkeypatch.setitem(names.DATA_SETS, "cifar10", tiny_source())
    done = prunus("data", "cifar10", "--to", tmp_path / "there", "--from", archive)
    assert done.exit_code == 0, done.output
    path = tmp_path / "there" / "cifar10.safetensors"
    size = path.stat().st_size / 1e6
    expected = f"cifar10: 20 training and 4 test images, SHA-256 verified, {size:.1f} MB in {path}\n"
    assert done.stdout == expected


def test_getting_one_with_a_wrong_checksum_or_name(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "cifar.tgz", TinyCifar().png())
    done = prunus("data", "cifar10", "--to", tmp_path, "--from", archive)
    assert done.exit_code == 1
    assert f"error: {archive}: SHA-256 of the decoded images and labels should be" in done.stderr
    assert not (tmp_path / "cifar10.safetensors").exists()
    done = prunus("data", "roses")
    assert done.exit_code == 1
    assert done.stderr == "error: the data set must be one of cifar10, cifar100, mnist; got 'roses'\n"
