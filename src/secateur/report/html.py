"""Pieces of HTML that all parts of the page use. Whatever is said is escaped here."""

from __future__ import annotations

from html import escape


def section(title: str, *parts: str) -> str:
    """A part of the page under its heading; empty pieces are left out."""
    inside = "\n".join(part for part in parts if part)
    return f"<section>\n<h2>{escape(title)}</h2>\n{inside}\n</section>"


def paragraph(words: str, kind: str = "") -> str:
    """A paragraph of plain words."""
    return f'<p class="{kind}">{escape(words)}</p>' if kind else f"<p>{escape(words)}</p>"


def key(*rows: tuple[str, str]) -> str:
    """What the colours of a chart stand for."""
    return '<ul class="key">' + "".join(f'<li class="{kind}">{escape(words)}</li>' for kind, words in rows) + "</ul>"


def folded(title: str, inside: str, unfolded: bool) -> str:
    """Something that opens when its title is pressed."""
    return f"<details{' open' if unfolded else ''}><summary>{escape(title)}</summary>\n{inside}\n</details>"
