"""The documentation builds strictly, asks for nothing from outside, and lists what the code has."""

from __future__ import annotations

import html
import re
from pathlib import Path

from typer.core import TyperGroup

import prunus
from docs_build.generated import REGISTRIES, verbs

ROOT = Path(__file__).parents[1]
LOOKED_AT = "looked-at-"  # copies of pages that other tests make for a moment
ASSET = re.compile(
    r"<(?:script|img|link|iframe|source|video|audio|object|embed)\b[^>]*?\b(?:src|href|data)=\"([^\"]+)\""
)
STYLE = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def pages_of(site: Path) -> list[Path]:
    return sorted(page for page in site.rglob("*.html") if not page.name.startswith(LOOKED_AT))


def test_nothing_is_fetched_from_outside(site: Path) -> None:
    pages = pages_of(site)
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
    for page in pages_of(site):
        for asset in ASSET.findall(read(page)):
            if page.name != "404.html" and not asset.startswith("data:"):
                path = page.parent / asset.partition("#")[0].partition("?")[0]
                missing += [] if path.exists() else [(page.name, asset)]
    assert missing == []
    assert (site / "assets" / "mathjax.js").stat().st_size > 1_000_000


def test_every_verb_and_option_is_listed(site: Path) -> None:
    page = html.unescape(read(site / "reference" / "command-line.html"))
    found = list(verbs())
    assert len(found) >= 16
    for path, command in found:
        section = page.partition(f'id="prunus-{"-".join(path)}"')[2].partition("<h2")[0]
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
    missing = [name for name in prunus.__all__ if f'id="prunus.{name}"' not in page]
    assert missing == []


def test_every_example_is_shown(site: Path) -> None:
    page = read(site / "tutorials" / "examples.html")
    scripts = [path.name for path in (ROOT / "examples").glob("*.py")]
    assert len(scripts) >= 10
    assert [name for name in scripts if f'">{name}<' not in page] == []


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
