"""Files are written whole or not at all, as the user's umask says; folders of others are refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from torch import zeros

import prunus as pr
from prunus.errors import FileError, RunError
from prunus.util.files import (
    PRUNED,
    PRUNING,
    STUDY,
    TRAINING,
    atomic,
    check_writable,
    held_by,
    read_object,
    refuse_others,
    refuse_overwriting,
    write_atomically,
)
from tests.run.toys import TRAIN, trained


@pytest.mark.parametrize("umask, mode", [(0o022, 0o644), (0o077, 0o600)])
def test_the_umask_decides_for_all_files_of_a_network(tmp_path: Path, umask: int, mode: int) -> None:
    graph = pr.trace(trained(), zeros(1, 3, 6, 6))
    plan = pr.Plan.of(graph, {"conv1:out": range(8)})
    before = os.umask(umask)
    try:
        pr.save(pr.prune(graph, plan), plan, tmp_path / "small")
        pr.export(trained(), zeros(1, 3, 6, 6), tmp_path / "whole.safetensors")
    finally:
        os.umask(before)
    files = [*(tmp_path / "small").iterdir(), tmp_path / "whole.safetensors"]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in files}
    assert modes == dict.fromkeys(("plan.json", "model.safetensors", "whole.safetensors"), mode)


def test_what_a_killed_process_left_does_not_matter(tmp_path: Path) -> None:
    left = tmp_path / ".a.partial"
    left.write_text("half")
    left.chmod(0o400)
    with atomic(tmp_path / "a") as spare:
        spare.write_text("whole")
    assert (tmp_path / "a").read_text() == "whole" and [path.name for path in tmp_path.iterdir()] == ["a"]
    for name, kept in (("a", "; the previous file is kept"), ("b", "")):
        with pytest.raises(FileError) as caught, atomic(tmp_path / name):
            raise OSError("no luck")
        assert str(caught.value) == f"{tmp_path / name} cannot be written: no luck{kept}"


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
        pr.fit(trained(), Watched(TRAIN), epochs=1, checkpoint_dir=tmp_path / "file", progress=False)
    assert not read


def test_objects_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(FileError, match=r"a\.json is missing; run it again"):
        read_object(path, "; run it again")
    for content, message in ((b"{", "cannot be read"), (b"\xff", "cannot be read"), (b"[1]", "but holds list")):
        path.write_bytes(content)
        with pytest.raises(FileError, match=message):
            read_object(path)
    write_atomically(path, b'{"a": 1}')
    assert read_object(path) == {"a": 1}


def test_folders_of_something_else_are_refused(tmp_path: Path) -> None:
    for name, file, content, what in (
        ("study", "config.json", '{"study": "x", "settings": {}}', STUDY),
        ("run", "config.json", '{"settings": {}}', PRUNING),
        ("training", "metrics.jsonl", "", TRAINING),
        ("pruned", "plan.json", "{}", PRUNED),
        ("other", "config.json", "[]", None),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(content)
        assert held_by(tmp_path / name) == what
    refuse_others(tmp_path / "run", PRUNING)
    refuse_others(tmp_path / "new", PRUNING)
    refuse_others(tmp_path / "run", STUDY, beside=(PRUNING,))
    refuse_overwriting(tmp_path / "run" / "new.json")
    for folder, writes, message in (
        ("run", (), "run holds a pruning run, and a study would overwrite or mix up its files"),
        ("other", ("config.json",), r"other holds config\.json, which is not that of a study"),
        ("pruned/plan.json", (), r"plan\.json is a file; name a folder"),
    ):
        with pytest.raises(RunError, match=message):
            refuse_others(tmp_path / folder, STUDY, *writes)
    with pytest.raises(RunError, match=r"plan\.json belongs to a pruned network; write to another file"):
        refuse_overwriting(tmp_path / "pruned" / "plan.json")
