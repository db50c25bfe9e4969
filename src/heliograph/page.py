"""Pages for people: HTML in one file that needs no network, and what such pages share: tables, small charts.

Text from elsewhere gets into a page in one way only: through `escape`, which `table` applies to whatever is not `Html`.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
INK, BLUE, VERMILION, GREY = "#1f2933", "#0072B2", "#D55E00", "#5f6b76"
"""Blue and vermilion are of Okabe and Ito's palette, which people with any kind of colour vision tell apart."""

_LIGHT = (
    f"--ink: {INK}; --paper: #fff; --faint: #52606d; --line: #d8dee4; --tint: #f1f6fa; "
    f"--blue: {BLUE}; --bad: #a33f00; --bad-tint: #fdf2ea; --good: #00664b;"
)
_DARK = (
    "--ink: #e4e9ee; --paper: #14191f; --faint: #9fb0bf; --line: #2f3a45; --tint: #1c242c; "
    "--blue: #56b4e9; --bad: #ff9d5c; --bad-tint: #33231a; --good: #35c99a;"
)

_STYLE = """
body { font-family: FONT; color: var(--ink); background: var(--paper); line-height: 1.5; }
body { max-width: 70rem; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { margin-bottom: 0; }
h2 { margin-top: 2.5rem; }
.faint { color: var(--faint); }
.bad { color: var(--bad); font-weight: 600; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1rem 0; }
th, td { padding: .3rem .75rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
thead th { border-bottom-width: 2px; }
table.numbers td, table.numbers th { text-align: right; }
table.numbers th:first-child { text-align: left; font-weight: 600; }
""".replace("FONT", FONT)


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape(text: str) -> Html:
    """Text as HTML, also in the value of an attribute; what is `Html` stays as it is."""
    return text if isinstance(text, Html) else Html(html.escape(text))


def document(
    title: str, body: str, *, heading: str = "", style: str = "", end: str = "", is_dark_too: bool = False
) -> str:
    """A whole page.

    Args:
        title: text.
        body: HTML.
        heading: text above all, if it is not the title.
        style: CSS besides that of all pages.
        end: HTML behind the body: scripts.
        is_dark_too: follow the reader's wish for a dark page. Plotly's charts are drawn for a light one.
    """
    themes = f":root {{ color-scheme: light; {_LIGHT} }}\n"
    if is_dark_too:
        themes = f":root {{ color-scheme: light dark; {_LIGHT} }}\n"
        themes += f"@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}\n"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{themes}{_STYLE}{style}</style>\n</head>\n<body>\n"
        f"<h1>{escape(heading or title)}</h1>\n{body}\n{end}</body>\n</html>\n"
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, of_numbers: bool = False) -> Html:
    """Texts, or `Html`, as a table that scrolls where it is too wide.

    Args:
        heads: of the columns.
        rows: of cells.
        of_numbers: every column but the first, which names the row, is to the right.
    """
    head = "".join(f'<th scope="col">{escape(each)}</th>' for each in heads)
    body = "".join(f"<tr>{_cells(row, of_numbers)}</tr>" for row in rows)
    kind = ' class="numbers"' if of_numbers else ""
    return Html(f'<div class="wide"><table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>')


def _cells(row: Sequence[str], is_named: bool) -> str:
    named, others = (row[:1], row[1:]) if is_named else ((), row)
    first = "".join(f'<th scope="row">{escape(cell)}</th>' for cell in named)
    return first + "".join(f"<td>{escape(cell)}</td>" for cell in others)


WIDTH, HEIGHT, MARGIN = 160.0, 40.0, 3.0
"""Of a small chart, in its own units; CSS may stretch it."""


def small_chart(points: Sequence[tuple[float, float]], label: str, *, kind: str = "") -> Html:
    """A line over its area, from 0 to the greatest value, without axes: the numbers stand beside it.

    Args:
        points: (instant, value), in growing order of instants; without two there is nothing to draw.
        label: what it shows, for those who do not see it; text.
        kind: a class for CSS.
    """
    if len(points) < 2:
        return Html("")
    first, last = points[0][0], points[-1][0]
    top = max(value for _, value in points) or 1.0
    across = (WIDTH - 2 * MARGIN) / ((last - first) or 1.0)
    up = (HEIGHT - 2 * MARGIN) / top
    places = [(MARGIN + (at - first) * across, HEIGHT - MARGIN - max(value, 0.0) * up) for at, value in points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    floor = HEIGHT - MARGIN
    area = f"{places[0][0]:.1f},{floor:.1f} {line} {places[-1][0]:.1f},{floor:.1f}"
    return Html(
        f'<svg class="chart {escape(kind)}" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" preserveAspectRatio="none">'
        f'<title>{escape(label)}</title><polygon points="{area}"/>'
        f'<polyline points="{line}" vector-effect="non-scaling-stroke"/></svg>'
    )
