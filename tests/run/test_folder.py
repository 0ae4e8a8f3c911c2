"""The run's folder: files that vanish, disks that fill, folders that belong to others, and progress.json."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

import prunus as pr
from prunus.errors import FileError, RunError
from prunus.run import context as run_context
from prunus.run import folder as folder_module
from prunus.run import round as rounds
from prunus.run.folder import RunFolder
from tests.proof import same_state
from tests.run.toys import contents, fresh, run, trained

RESULTS = ("model.safetensors", "plan.json")


def results(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in RESULTS}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Every file of a finished run of two rounds."""
    folder = tmp_path_factory.mktemp("finished")
    run(folder)
    return contents(folder)


def put(files: dict[str, bytes], folder: Path, *, without: tuple[str, ...] = ()) -> Path:
    """The files, written down somewhere else, but for some."""
    for name, content in files.items():
        if not name.startswith(without or ("?",)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    return folder


def test_two_runs_have_the_same_bytes(finished: dict[str, bytes], tmp_path: Path) -> None:
    run(tmp_path)
    again = contents(tmp_path)
    timed = ("summary.json", "round-01/round.json", "round-02/round.json")
    assert again.keys() == finished.keys()
    assert [name for name in again if again[name] != finished[name] and name not in timed] == []


def test_a_finished_run_is_not_done_again(
    finished: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(finished, tmp_path)

    def never(*arguments: Any) -> Any:
        raise AssertionError("the run was finished")

    for module, name in ((rounds, "fit"), (rounds, "score"), (run_context, "each_answer")):
        monkeypatch.setattr(module, name, never)
    result = run(tmp_path)
    assert contents(tmp_path) == finished
    assert same_state(result.model, pr.load(tmp_path, fresh())) and len(result.rounds) == 2


STEPS = ["base.json", "round-02/scores", "round-02/sensitivity.json", "round-02/step-plan.json", "round-02/model"]


@pytest.mark.parametrize("last", [0, 1, 3, 5])
def test_it_goes_on_from_every_step(finished: dict[str, bytes], tmp_path: Path, last: int) -> None:
    """What was written before a kill is used; what came after is done again, to the same bytes."""
    done = ("config.json", "base.json", "round-01", *STEPS[1:last])
    if last:
        put({n: c for n, c in finished.items() if n.startswith(done)}, tmp_path)
    else:
        (tmp_path / ".config.json.partial").write_text('{"settings": {"tar')  # a half-written config is no other run
    result = run(tmp_path)
    assert results(tmp_path) == {name: finished[name] for name in RESULTS}
    assert len(result.rounds) == 2


def test_a_result_that_is_gone_is_written_again(finished: dict[str, bytes], tmp_path: Path) -> None:
    put(finished, tmp_path)
    for name in RESULTS:
        (tmp_path / name).unlink()
    run(tmp_path)
    assert contents(tmp_path) == finished


@pytest.mark.parametrize("name", ["round-02/model.safetensors", "round-02/plan.json", "round-01/round.json"])
def test_a_file_of_a_finished_round_is_missing(finished: dict[str, bytes], tmp_path: Path, name: str) -> None:
    put(finished, tmp_path, without=(name, "summary.json"))
    before = contents(tmp_path)
    with pytest.raises(FileError, match=rf"{name} is missing, though round 2 is finished. Put it back, or delete"):
        run(tmp_path)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "name, content, complaint",
    [
        ("config.json", b"{", "config.json cannot be read"),
        ("config.json", b"[]", "config.json must hold a JSON object, but holds list"),
        ("base.json", b"\xff\xfe", "base.json cannot be read"),
        ("base.json", b"{}", "base.json has unexpected content"),
        ("round-02/round.json", b"", "round.json cannot be read"),
        ("round-02/round.json", b'{"number": 2}', "round.json has unexpected content"),
        ("round-02/model.safetensors", b"short", "model.safetensors is not a complete safetensors file"),
        ("round-02/plan.json", b"{}", "plan.json: not a plan"),
        ("round-02/scores.json", b"{}", "scores.json"),
        ("round-02/sensitivity.json", b"{}", "sensitivity.json has unexpected content"),
    ],
)
def test_damaged_files_are_named(
    finished: dict[str, bytes], tmp_path: Path, name: str, content: bytes, complaint: str
) -> None:
    unfinished = () if name not in ("round-02/scores.json", "round-02/sensitivity.json") else ("round-02/round.json",)
    put({**finished, name: content}, tmp_path, without=("summary.json", *unfinished))
    with pytest.raises(FileError, match=complaint):
        run(tmp_path)


def test_another_runs_folder_is_refused(finished: dict[str, bytes], tmp_path: Path) -> None:
    put(finished, tmp_path)
    with pytest.raises(RunError, match=r"holds another run: settings.round_to was 1 there and is 2 now"):
        run(tmp_path, round_to=2)
    with pytest.raises(RunError, match=r"settings.exclude was \[\] there and is \['fc\*'\] now"):
        run(tmp_path, exclude=("fc*",))
    other = trained()
    with torch.no_grad():
        other.fc.bias[0] += 1e-6
    with pytest.raises(RunError, match="holds another run: weights was"):
        run(tmp_path, other)
    with pytest.raises(RunError, match=r"holds another run: command.model was None there and is 'x' now"):
        run(RunFolder(tmp_path, about={"command": {"model": "x"}}))
    assert contents(tmp_path) == finished


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(RunError, match=r"is not empty and holds no run \(config.json is missing\); use a new folder"):
        run(tmp_path)
    with pytest.raises(RunError, match=r"thesis.txt cannot be used as the folder of a run: Not a directory"):
        run(tmp_path / "thesis.txt")
    assert contents(tmp_path) == {"thesis.txt": b"years of work"}


SHORT: dict[str, Any] = {"ratio": 0.3, "epochs": 0, "metric": "l1"}


def test_a_full_disk_loses_nothing_that_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full at every single file of a run, one after the other: always a clear error, and the run goes on from there."""
    run(tmp_path / "whole", **SHORT)
    broken, complaints, real = tmp_path / "broken", list[str](), os.fsync
    for files in range(40):
        room = [files]  # one more file each time

        def fsync(handle: int, room: list[int] = room) -> None:  # every file is flushed before it takes its place
            room[0] -= 1
            if room[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(handle)

        finished_before = RunFolder(broken).finished_rounds()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            try:
                run(broken, **SHORT)
                break
            except FileError as error:
                complaints.append(str(error))
        assert RunFolder(broken).finished_rounds() >= finished_before
    assert len(complaints) >= 5
    assert all("No space left on device" in text and str(broken) in text for text in complaints), complaints
    assert results(broken) == results(tmp_path / "whole")
    assert [name for name in contents(broken) if name.endswith((".partial", ".part"))] == []


def test_a_full_disk_in_the_middle_of_the_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """safetensors writes by itself, and says so with an error of its own."""

    def full(*arguments: Any, **options: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("prunus.graph.files.save_file", full)
    with pytest.raises(FileError, match=r"model.safetensors cannot be written: .*No space left on device"):
        run(tmp_path, **SHORT)


def test_json_of_the_folder(tmp_path: Path) -> None:
    there = RunFolder(tmp_path)
    there.write("a.json", {"tuple": (1, 2), "path": tmp_path, 3: None})
    assert json.loads((tmp_path / "a.json").read_text()) == {"tuple": [1, 2], "path": str(tmp_path), "3": None}
    RunFolder(tmp_path, writes=False).write("b.json", {})
    assert not (tmp_path / "b.json").exists()
    with pytest.raises(FileError, match=r"b.json is missing; the run in .* cannot continue without it"):
        there.read("b.json")


# -- progress.json


def test_the_last_report_is_there_while_the_run_is_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "SECONDS", 0.0)
    path, seen = tmp_path / "progress.json", []

    def look(phase: str, done: int, total: int, note: str) -> None:
        seen.append((phase, path.exists()))
        if phase == "round 1: retrain":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, progress=look)
    assert seen[0] == ("trace", False) and seen[-1] == ("round 1: retrain", True) and not path.exists()
    folder = RunFolder(tmp_path)
    folder.note_progress("round 1: score", 3, 12, "fast")
    found = json.loads(path.read_text())
    assert {**found, "time": 0} == {"phase": "round 1: score", "done": 3, "total": 12, "note": "fast", "time": 0}


def test_notes_of_others_are_left_alone_and_never_a_reason_to_fail(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.note_progress("score", 1, 2, "")
    assert not (tmp_path / "progress.json").exists()  # a folder that is not a run yet is not touched
    (tmp_path / "progress.json").write_text("of another process")
    folder.close()
    assert (tmp_path / "progress.json").read_text() == "of another process"
    (tmp_path / "progress.json").unlink()
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "progress.json").mkdir()
    folder.note_progress("score", 1, 2, "")
    folder.close()
