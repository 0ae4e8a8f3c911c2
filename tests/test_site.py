"""The documentation builds strictly, asks for nothing from outside, and lists what the code has."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.core import TyperGroup

import secateur
from docs_build.generated import REGISTRIES, verbs

ROOT = Path(__file__).parents[1]
ASSET = re.compile(
    r"<(?:script|img|link|iframe|source|video|audio|object|embed)\b[^>]*?\b(?:src|href|data)=\"([^\"]+)\""
)
STYLE = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(Path(secateur.__file__).parents[1])}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr  # a warning is an error: a broken link, a page in no menu
    return folder


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def test_nothing_is_fetched_from_outside(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) >= 30
    assets = [(page.name, html.unescape(asset)) for page in pages for asset in ASSET.findall(read(page))]
    assert len(assets) > 100
    outside = [(page, asset) for page, asset in assets if re.match(r"[a-z]+:(?!image/)|//", asset)]
    styles = [(sheet.name, a or b) for sheet in site.rglob("*.css") for a, b in STYLE.findall(read(sheet))]
    outside += [(sheet, asset) for sheet, asset in styles if re.match(r"https?:|//", asset)]
    assert outside == []


def test_every_asset_is_there(site: Path) -> None:
    """A link to another page is checked by the build; scripts, styles and pictures in plain HTML are not."""
    missing = []
    for page in sorted(site.rglob("*.html")):
        for asset in ASSET.findall(read(page)):
            if page.name != "404.html" and not asset.startswith("data:"):
                path = page.parent / asset.partition("#")[0].partition("?")[0]
                missing += [] if path.exists() else [(page.name, asset)]
    assert missing == []
    assert (site / "assets" / "mathjax.js").stat().st_size > 1_000_000


def test_every_verb_and_option_is_listed(site: Path) -> None:
    page = html.unescape(read(site / "reference" / "command-line.html"))
    found = list(verbs())
    assert len(found) >= 20
    for path, command in found:
        section = page.partition(f'id="secateur-{"-".join(path)}"')[2].partition("<h2")[0]
        assert section, path
        options = [name for parameter in command.params for name in parameter.opts if name.startswith("--")]
        missing = [name for name in options if f"<code>{name}</code>" not in section and name != "--help"]
        assert missing == [], path
        assert isinstance(command, TyperGroup) or "<code>" in section  # its examples


def test_every_entry_of_a_registry_is_listed(site: Path) -> None:
    page = html.unescape(re.sub(r"<[^>]+>", "", read(site / "reference" / "choices.html")))
    for registry in REGISTRIES.values():
        for name in registry:
            assert re.search(rf"^{name}$", page, re.MULTILINE), name
            assert registry.help(name).replace("`", "") in page, name


def test_every_public_name_is_described(site: Path) -> None:
    page = read(site / "reference" / "python.html")
    missing = [name for name in secateur.__all__ if f'id="secateur.{name}"' not in page]
    assert missing == []


def test_formulas_are_left_to_mathjax(site: Path) -> None:
    page = read(site / "explanation" / "formulas.html")
    assert page.count('class="arithmatex"') >= 2
    assert "$$" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def test_every_metric_has_a_formula(site: Path) -> None:
    page = read(site / "explanation" / "formulas.html")
    missing = [
        name for name in REGISTRIES["metrics"] if f"<code>{name}</code>" not in page and f"texttt{{{name}}}" not in page
    ]
    assert missing == ["random"]
