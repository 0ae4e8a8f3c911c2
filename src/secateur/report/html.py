"""HTML elements that all sections use. Text is escaped here."""

from __future__ import annotations

from html import escape


def section(title: str, *parts: str) -> str:
    """A section with its heading; empty parts are left out."""
    inside = "\n".join(part for part in parts if part)
    return f"<section>\n<h2>{escape(title)}</h2>\n{inside}\n</section>"


def paragraph(words: str, kind: str = "") -> str:
    """A paragraph of plain text."""
    return f'<p class="{kind}">{escape(words)}</p>' if kind else f"<p>{escape(words)}</p>"


def key(*rows: tuple[str, str]) -> str:
    """The legend of a chart."""
    return '<ul class="key">' + "".join(f'<li class="{kind}">{escape(words)}</li>' for kind, words in rows) + "</ul>"


def folded(title: str, inside: str, unfolded: bool) -> str:
    """Content that is shown when the reader clicks its title."""
    return f"<details{' open' if unfolded else ''}><summary>{escape(title)}</summary>\n{inside}\n</details>"
