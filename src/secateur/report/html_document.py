"""The HTML document around every page: its head, content policy, style and script."""

from __future__ import annotations

from html import escape

from secateur.report.style import CSS, JAVASCRIPT

REPORT = "report.html"
# The page may use only what it contains: nothing is loaded from elsewhere.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def document(title: str, body: str, refresh: int | None = None) -> str:
    """A complete page; `body` is HTML, `title` is plain text. refresh: seconds until the browser loads it again."""
    again = "" if refresh is None else f'<meta http-equiv="refresh" content="{refresh}">\n'
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">
{again}<title>{escape(title)}</title>
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
