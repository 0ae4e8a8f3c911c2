"""What MkDocs calls while it builds the site: markers become generated text, and MathJax is copied from its package.

A page has a marker, `<!-- prunus: NAME argument -->`, where text is generated from the code, so that it cannot
become stale. `docs_build/generated.py` has one function for each name.
"""

from __future__ import annotations

import re
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import generated
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

MARKER = re.compile(r"^<!-- prunus: (\w+)(?: (\S+))? -->$", re.MULTILINE)
NOTEBOOK = re.compile(r"\]\(([\w./-]+)\.ipynb\)")
EXAMPLES = re.compile(r"\]\(\.\./((?:\.\./)*)examples/README\.md\)")
OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+(?:src|tests|benchmarks|recipes|examples)[^)]*)\)")
DRAWING = re.compile(r"^!\[([^\]]*)\]\((?:\.\./)*(assets/drawings/\w+\.svg)\)$", re.MULTILINE)
MATHJAX = "static/mathjax/tex-svg.js"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """One script of MathJax, with its fonts inside; `docs/assets/formulas.js` loads it where a page has formulas."""
    files.append(File.generated(config, "assets/mathjax.js", abs_src_path=str(_mathjax())))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the markers. Links to files of the repository that are not on the site become plain text.

    Links to notebooks and to the folder of examples lead to their pages on the site. Drawings become part of the page,
    so that they take the colours that the reader has chosen.
    """
    filled = MARKER.sub(lambda found: generated.PARTS[found[1]](found[2] or ""), markdown)
    drawn = DRAWING.sub(lambda found: generated.drawing(found[2], found[1]), filled)
    linked = EXAMPLES.sub(r"](\1tutorials/examples.md)", NOTEBOOK.sub(r"](\1.md)", drawn))
    return OUTSIDE.sub(r"\1", linked)


def _mathjax() -> Path:
    package = distribution("sphinx-mathjax-offline")
    found = next(file for file in package.files or () if str(file).endswith(MATHJAX))
    return Path(str(found.locate()))
