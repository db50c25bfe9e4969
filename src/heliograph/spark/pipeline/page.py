"""Pages for people: HTML in one file that needs no network."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"

_DOCUMENT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font-family: {font}; color: #1f2933; background: #fff; line-height: 1.5; }}
body {{ max-width: 70rem; margin: 0 auto; padding: 2rem 1rem 4rem; }}
h2 {{ margin-top: 2.5rem; }}
.bad {{ color: #a33f00; font-weight: 600; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1rem 0; }}
th, td {{ padding: .3rem .75rem; text-align: left; vertical-align: top; border-bottom: 1px solid #d8dee4; }}
thead th {{ border-bottom-width: 2px; }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def document(title: str, body: str) -> str:
    """A whole page.

    Args:
        title: text.
        body: HTML.
    """
    return _DOCUMENT.format(title=html.escape(title), body=body, font=FONT)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Texts as an HTML table."""
    head = "".join(f"<th>{html.escape(each)}</th>" for each in heads)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
