"""The notebooks of docs/tutorials run, and print what is stored in them."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from docs_build.notebooks import TUTORIALS, as_markdown
from tests.processes import ROOT, python

NOTEBOOKS = sorted(TUTORIALS.glob("*.ipynb"))
# Networks are timed at the end of a run in the first engine only, for a moment.
SHORT = """
from prunus.run import final_timing
final_timing.ROW_SECONDS = final_timing.time_in_engines.__kwdefaults__["seconds"] = 0.05
"""
NUMBER = re.compile(r"[-+]?\d[\d.,]*( [KM]\b)?")
# What a moment of timing says, on a machine that may be busy.
SPEED = re.compile(r"^(?:#x as fast|slower|no measurable difference) in (\w+) at batch #(?:: #x)? ")


def cells(path: Path) -> list[Any]:
    found = nbformat.read(path, as_version=4)
    nbformat.validate(found)
    return [cell for cell in found.cells if cell.cell_type == "code"]


def shape(cell: Any) -> list[str]:
    """What a cell prints and draws: kinds of output, and the first line of a text without numbers and measured speed.

    Further lines may differ between processors, which round differently: a unit more in a plan, a row for top-5.
    """
    found = []
    for output in cell.outputs:
        text = output.get("text") or output["data"]["text/plain"]
        is_picture = "image/png" in output.get("data", {})
        line = " ".join(NUMBER.sub("#", text.splitlines()[0]).split())
        found.append("picture" if is_picture else SPEED.sub(r"speed in \1 ", line))
    return found


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_is_stored(notebook: Path, tmp_path: Path) -> None:
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "short.py").write_text(SHORT)
    python(ROOT / "docs_build" / "notebooks.py", notebook, "--out", tmp_path, IPYTHONDIR=str(tmp_path / "ipython"))
    stored, now = cells(notebook), cells(tmp_path / notebook.name)
    assert [cell.source for cell in stored] == [cell.source for cell in now]
    assert [shape(cell) for cell in stored] == [shape(cell) for cell in now]
    assert sum("image/png" in output.get("data", {}) for cell in now for output in cell.outputs) >= 3


def test_the_notebooks_say_what_is_true() -> None:
    """Claims in their text, as numbers that they printed."""
    assert len(NOTEBOOKS) == 3
    texts = {
        path.stem: "\n".join(
            output.get("text") or output["data"]["text/plain"] for cell in cells(path) for output in cell.outputs
        )
        for path in NOTEBOOKS
    }
    before, after = re.search(r"test accuracy +([\d.]+)% +([\d.]+)%", texts["quickstart"]).groups()  # type: ignore[union-attr]
    assert float(before) > 95 and float(after) > float(before) - 3
    ratio = re.search(r"^([\d.]+)x as fast in onnxruntime at batch 1 ", texts["quickstart"], re.MULTILINE)
    assert ratio and float(ratio[1]) > 1.2 and texts["quickstart"].rstrip().endswith("True")
    assert "\nGoal reached: " in texts["quickstart"]
    rows = re.findall(r"^(unpruned|before repair|repaired) +([\d.]+)%$", texts["choosing-what-to-cut"], re.MULTILINE)
    accuracy = {name: float(value) for name, value in rows}
    assert accuracy["before repair"] <= accuracy["repaired"] <= accuracy["unpruned"]


def test_a_notebook_becomes_a_page(tmp_path: Path) -> None:
    picture = base64.b64encode(b"png").decode()
    code = nbformat.v4.new_code_cell("print(1)")
    code.outputs = [
        nbformat.v4.new_output("stream", name="stdout", text="1\n2\n"),
        nbformat.v4.new_output("display_data", data={"image/png": picture, "text/plain": "<Figure>"}),
    ]
    text = nbformat.v4.new_markdown_cell("# Title\n\nA *bar* for each layer. More. [Next](other.ipynb)")
    nbformat.write(nbformat.v4.new_notebook(cells=[text, code]), tmp_path / "mine.ipynb")
    page, pictures = as_markdown(tmp_path / "mine.ipynb")
    assert pictures == {"mine-1.png": b"png"}
    assert "[Next](other.md)" in page and "```python\nprint(1)\n```\n\n    1\n    2\n" in page
    assert "![A bar for each layer.](mine-1.png)" in page and '<a href="mine.ipynb" download>' in page
