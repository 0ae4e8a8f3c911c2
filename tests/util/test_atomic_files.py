"""Files are written with the permissions that the user's umask leaves, whoever writes them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from torch import zeros

import prunus as sc
from prunus.errors import FileError
from prunus.util.files import atomic, check_writable
from tests.run.toys import TRAIN, trained


@pytest.mark.parametrize("umask, mode", [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_the_umask_decides_for_all_files_of_a_network(tmp_path: Path, umask: int, mode: int) -> None:
    graph = sc.trace(trained(), zeros(1, 3, 6, 6))
    plan = sc.Plan.of(graph, {"conv1:out": range(8)})
    before = os.umask(umask)
    try:
        sc.save(sc.prune(graph, plan), plan, tmp_path / "small")
        sc.export(trained(), zeros(1, 3, 6, 6), tmp_path / "whole.safetensors")
    finally:
        os.umask(before)
    files = [*(tmp_path / "small").iterdir(), tmp_path / "whole.safetensors"]
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in files} == {
        "plan.json": mode,
        "model.safetensors": mode,
        "whole.safetensors": mode,
    }


def test_what_a_killed_process_left_does_not_matter(tmp_path: Path) -> None:
    left = tmp_path / ".a.partial"
    left.write_text("half")
    left.chmod(0o400)
    with atomic(tmp_path / "a") as spare:
        spare.write_text("whole")
    assert (tmp_path / "a").read_text() == "whole" and [path.name for path in tmp_path.iterdir()] == ["a"]


def test_the_previous_file_is_spoken_of_where_there_is_one(tmp_path: Path) -> None:
    for kept in (False, True):
        with pytest.raises(FileError) as caught, atomic(tmp_path / "a"):
            raise OSError("no luck")
        assert str(caught.value) == f"{tmp_path / 'a'} cannot be written: no luck" + (
            "; the previous file is kept" if kept else ""
        )
        (tmp_path / "a").write_text("before")


def test_a_folder_that_cannot_be_written_is_refused_before_training(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "run")
    assert [*(tmp_path / "new" / "run").iterdir()] == []
    (tmp_path / "file").write_text("")
    read: list[int] = []

    class Watched(list[object]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            read.append(1)
            return super().__iter__()

    with pytest.raises(FileError, match=r"nothing can be written to .*file"):
        sc.fit(trained(), Watched(TRAIN), epochs=1, checkpoint_dir=tmp_path / "file", progress=False)
    assert not read
