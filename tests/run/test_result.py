"""What `compress` returns: saved, exported, reported, and shown in a terminal and a notebook."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

import prunus as pr
from prunus.errors import RunError
from tests.run.toys import EXAMPLE, TEST, fresh, run


@pytest.fixture(scope="module")
def result() -> Any:
    """Of a run without a folder."""
    return run(target=0.3, rounds=1, epochs=0, timing=True)


def test_it_is_saved_exported_and_reported(result: Any, tmp_path: Path) -> None:
    assert result.folder is None and result.reached
    images = TEST[0][0][:1]
    with torch.no_grad():
        answer = result.model.eval()(images)
    result.save(tmp_path / "saved")
    with torch.no_grad():
        assert torch.equal(pr.load(tmp_path / "saved", fresh()).eval()(images), answer)
    result.export(tmp_path / "small.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "small.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    assert np.allclose(found, answer.numpy(), atol=1e-5) and images.shape[1:] == EXAMPLE.shape[1:]
    page = result.report(tmp_path / "page.html")
    assert page == tmp_path / "page.html" and result.summary["goal"]["text"] in page.read_text()
    with pytest.raises(RunError, match=r"the run has no folder: give report\(path\)"):
        result.report()


def test_a_terminal_and_a_notebook_show_the_same(result: Any) -> None:
    lines, html = repr(result).splitlines(), result._repr_html_()
    speed = result.summary["speeds"][0]
    where = f"in {speed['engine']} at batch 1"
    assert result.speedup == speed["ratio"] and where in lines[0] and lines[1] == result.summary["goal"]["text"]
    assert lines[0].replace("->", "-&gt;") in html and lines[1] in html
    for each in result.summary["speeds"]:
        assert f"<td style='text-align:left'>ms in {each['engine']} at batch 1</td>" in html
    assert html.count("<tr>") == len(lines) - 2  # the table, with its heading


def test_a_temporary_folder_goes_with_the_result_and_a_run_without_timing_says_so() -> None:
    alone = run(ratio=0.3, epochs=0)
    files = alone.files
    assert alone.folder is None and (files / "summary.json").exists()
    assert alone.speedup is None and "speed not measured" in repr(alone).splitlines()[0] and "ms in" not in repr(alone)
    del alone
    gc.collect()
    assert not files.exists()
