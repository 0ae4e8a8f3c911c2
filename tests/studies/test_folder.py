"""A study's folder: rows that stay, the same study going on, and another one kept out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from prunus import studies
from prunus.errors import FileError, RunError
from prunus.studies.folder import Provenance, StudyFolder, read_study


def started(path: Path, **asked: object) -> StudyFolder:
    folder = StudyFolder(path, "trial", asked, Provenance(command="prunus study trial"))
    folder.start()
    return folder


def test_rows_come_back_and_odd_keys_do_not_meet(tmp_path: Path) -> None:
    folder = started(tmp_path / "s")
    for number, key in enumerate(("a/b", "a-b", "a b", "x" * 300, "x" * 301, "..", "resnet8,gsd,0.1,0")):
        assert folder.row(key) is None
        folder.keep(key, {"n": number})
        assert folder.row(key) == {"n": number}
    assert folder.row("a/b") == {"n": 0}
    assert len(list((tmp_path / "s" / "rows").iterdir())) == 7


def test_the_same_study_goes_on_and_another_is_refused(tmp_path: Path) -> None:
    started(tmp_path / "s", ratios=(0.1, 0.2), seed=0).keep("k", {"n": 1})
    assert started(tmp_path / "s", ratios=[0.1, 0.2], seed=0).row("k") == {"n": 1}
    with pytest.raises(RunError, match=r"ratios was \[0.1, 0.2\] there and is \[0.1\] now.*Use another folder"):
        started(tmp_path / "s", ratios=[0.1], seed=0)
    with pytest.raises(RunError, match="holds another study: study was 'trial' there and is 'timing' now"):
        StudyFolder(tmp_path / "s", "timing", {}).start()
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(RunError, match="not empty and holds no study"):
        started(tmp_path)


def test_other_data_are_refused_and_more_rows_are_not(tmp_path: Path) -> None:
    """A study has the same identity check as a run."""
    images = [(torch.ones(4, 1, 2, 2), torch.arange(4))]
    folder = StudyFolder(tmp_path / "s", "trial", {"seeds": 1}, only_names_rows=("seeds",))
    folder.start({"train": images})
    StudyFolder(tmp_path / "s", "trial", {"seeds": 2}, only_names_rows=("seeds",)).start({"train": images})
    assert json.loads((tmp_path / "s" / "config.json").read_text())["asked"] == {"seeds": 2}
    with pytest.raises(RunError, match="holds a study on other data: the pixels of the training images had the means"):
        folder.start({"train": [(2 * images[0][0], images[0][1])]})


def test_what_finish_writes(tmp_path: Path) -> None:
    folder = started(tmp_path / "s", seed=3)
    with pytest.raises(FileError, match="not finished"):
        read_study(folder.path)
    rows = [{"metric": "gsd", "top1": 93.5}, {"metric": "l1, l2", "top1": None}]
    pictures = [{"file": "a.svg", "alt": "lines", "caption": "Lines."}]
    folder.finish("A title", rows, pictures, ["A note."], columns={"top1": "accuracy (%)"})
    found = read_study(folder.path)
    assert found["rows"] == rows and found["pictures"] == pictures and found["notes"] == ["A note."]
    assert found["columns"] == {"metric": "metric", "top1": "accuracy (%)"}
    assert (found["study"], found["title"], found["asked"]) == ("trial", "A title", {"seed": 3})
    assert found["command"] == "prunus study trial" and set(found["versions"]) == {"prunus", "python", "torch"}
    assert (folder.path / "table.csv").read_text() == 'metric,top1\ngsd,93.5\n"l1, l2",\n'


def test_rows_of_different_shape_and_broken_files_are_errors(tmp_path: Path) -> None:
    folder = started(tmp_path / "s")
    with pytest.raises(RunError, match="row 1 differs in top5"):
        folder.finish("t", [{"top1": 1}, {"top1": 1, "top5": 1}])
    with pytest.raises(RunError, match="at least one row"):
        folder.finish("t", [])
    folder.keep("k", {"n": 1})
    (folder.path / "rows" / "k.json").write_text(json.dumps({"key": "other", "row": {}}))
    with pytest.raises(FileError, match="to compute it again"):
        folder.row("k")
    (folder.path / "rows" / "k.json").write_text("{")
    with pytest.raises(FileError, match="cannot be read"):
        folder.row("k")


def test_public_names_stay_functions_after_their_modules_are_imported() -> None:
    """A study's package must not have the name of its function, or the package would hide it."""
    assert list(studies.__all__) == sorted(studies.__all__) == dir(studies)
    for name in studies.__all__:
        assert callable(getattr(studies, name)), name
    assert callable(studies.timing) and callable(studies.table)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = studies.nothing
