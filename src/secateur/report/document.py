"""The frame of every page: its head, what it may reach (nothing), and its one script."""

from __future__ import annotations

from html import escape

from secateur.report.style import CSS, JAVASCRIPT

REPORT = "report.html"
# The page may run and show what is inside it, and reach nothing else.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def document(title: str, body: str) -> str:
    """A whole page; `body` is HTML, `title` plain words."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">
<title>{escape(title)}</title>
<style>{CSS}</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
{body}
</main>
<script>{JAVASCRIPT}</script>
</body>
</html>
"""
