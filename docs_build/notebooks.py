"""Notebooks and examples as pages of the site; and a command that runs the notebooks.

    python docs_build/notebooks.py                 # runs all of them and writes their outputs into them
    python docs_build/notebooks.py --out FOLDER    # writes to another folder

The site shows the outputs that are stored. A test runs the notebooks and compares.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
INDEX_ROW = re.compile(r"^\| \[(\w+)\.py\]\(\1\.py\) \| (.*) \|$", re.MULTILINE)
SECONDS = 600  # for one cell; a busy machine is no error


def run(notebook: Path, out: Path) -> None:
    """Run a notebook in an empty folder, and write it with its outputs."""
    content = nbformat.read(notebook, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            content, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": folder}}
        ).execute()
    for cell in content.cells:
        cell.metadata.pop("execution", None)  # times, which differ from run to run
        if cell.cell_type == "code":  # progress and warnings depend on the machine and on what is installed
            cell.outputs = _joined([output for output in cell.outputs if output.get("name") != "stderr"])
    content.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(content, out / notebook.name)


def _joined(outputs: list[Any]) -> list[Any]:
    """Printed text arrives in pieces, as the kernel sends it; one output for all that follows one another."""
    whole: list[Any] = []
    for output in outputs:
        if whole and output.output_type == whole[-1].output_type == "stream":
            whole[-1]["text"] += output["text"]
        else:
            whole.append(output)
    return whole


def as_markdown(notebook: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook with its outputs as Markdown, and its pictures by file name."""
    pictures: dict[str, bytes] = {}
    parts = []
    about = ""
    for cell in nbformat.read(notebook, as_version=4).cells:
        if cell.cell_type == "markdown":
            parts.append(re.sub(r"\(([\w-]+)\.ipynb\)", r"(\1.md)", cell.source))
            about = _first_sentence(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            png = output.get("data", {}).get("image/png")
            if png is None:
                parts.append(_indented(output))
            else:
                name = f"{notebook.stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode(png)
                parts.append(f"![{about}]({name})")
    link = f'<a href="{notebook.name}" download>Download this page as a notebook</a>'
    return "\n\n".join([*parts, link]) + "\n", pictures


def _first_sentence(text: str) -> str:
    """The first sentence below the headings, without marks: what a picture shows, for those who cannot see it."""
    words = " ".join(line for line in text.splitlines() if not line.startswith("#")).strip()
    return re.sub(r"[`*\[\]]", "", re.split(r"(?<=[.:?])\s", words)[0])


def _indented(output: Any) -> str:
    text = output["text"] if output.output_type == "stream" else output["data"]["text/plain"]
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines())


def examples_page() -> str:
    """The index of examples/, and every script in its order: what its docstring says, and the code."""
    index = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    parts = [INDEX_ROW.sub(lambda row: f"| [{row[1]}.py](#{row[1]}) | {row[2]} |", index)]
    for name, _ in INDEX_ROW.findall(index):
        _, words, code = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8").split('"""', 2)
        parts += [f"## {name}.py {{ #{name} }}", words, f"```python\n{code.strip()}\n```"]
    return "\n\n".join(parts) + "\n"


def on_files(files: Any, config: Any) -> Any:
    """For MkDocs: a page and its pictures for each notebook, and a page of examples."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "tutorials/examples.md", content=examples_page()))
    for notebook in sorted(TUTORIALS.glob("*.ipynb")):
        page, pictures = as_markdown(notebook)
        files.append(File.generated(config, f"tutorials/{notebook.stem}.md", content=page))
        for name, content in pictures.items():
            files.append(File.generated(config, f"tutorials/{name}", content=content))
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", type=Path, help="all of docs/tutorials by default")
    parser.add_argument("--out", type=Path, default=TUTORIALS)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for notebook in options.notebooks or sorted(TUTORIALS.glob("*.ipynb")):
        run(notebook, options.out)


if __name__ == "__main__":
    main()
