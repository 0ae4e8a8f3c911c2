"""An SVG file as part of a page, so that its tooltips work."""

from __future__ import annotations

import base64
import re
from html import escape

# Our pictures never contain these: they could run code or load something.
FOREIGN = re.compile(
    r"""<script|<foreignObject|\son\w+\s*=|href\s*=\s*["'](?!#|data:image/)|url\((?!#)|@import""", re.I
)


def inline(svg: str, alt: str) -> str:
    """The drawing as an element of the page, with `alt` as its text for screen readers.

    What only a file needs (XML header, namespaces, metadata) is left out. So are ids that nothing refers to, because
    two drawings in one page must not share an id. A drawing with code or links in it becomes an image, in which nothing
    can run.
    """
    start = svg.find("<svg")
    if start < 0 or FOREIGN.search(_without_metadata(svg[start:])):
        return f'<img src="data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}" alt="{escape(alt)}">'
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", _without_metadata(svg[start:]))
    # This rule would apply to the whole page.
    text = re.sub(r"<style[^>]*>\*\{(.*?)\}</style>", r"<style>.plot svg *{\1}</style>", text)
    wanted = set(re.findall(r"#([\w.-]+)", text))
    text = re.sub(r'\sid="([^"]*)"', lambda found: found[0] if found[1] in wanted else "", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(alt)}"', 1).strip()


def _without_metadata(svg: str) -> str:
    return re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
