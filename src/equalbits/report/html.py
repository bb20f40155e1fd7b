"""HTML in small: elements whose text is escaped, and the page around them. No script, nothing fetched from anywhere.

The page tells the browser so itself: its content policy allows pictures that it carries, its own style, and no more.
"""

import html
from collections.abc import Iterable, Sequence


class Html(str):
    """Text that is HTML already, and is not escaped again."""

    __slots__ = ()


def tag(name: str, *inside: str, **attributes: str | None) -> Html:
    """An element. Plain strings are escaped, also in attributes; ``_`` in an attribute's name becomes ``-``.

    >>> tag("p", "a < b", class_="note")
    '<p class="note">a &lt; b</p>'
    >>> tag("img", alt='"quoted"', src=None)
    '<img alt="&quot;quoted&quot;">'
    """
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in ("img", "br", "meta"):
        return Html(f"<{name}{words}>")
    return Html(f"<{name}{words}>{join(inside)}</{name}>")


def join(parts: Iterable[str]) -> Html:
    """Parts one after another, those that are not HTML yet escaped."""
    return Html("".join(part if isinstance(part, Html) else html.escape(part) for part in parts))


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    caption: str,
    words: Sequence[str] = (),
    cards: bool = False,
) -> Html:
    """A table that scrolls by itself where the screen is narrow; columns named in ``words`` are set to the left.

    With ``cards`` a narrow screen shows each row as a card instead, every cell under the name of its column.
    """
    left = {0, *(number for number, name in enumerate(header) if name in words)}
    head = [tag("th", name, scope="col", class_="words" if at in left else None) for at, name in enumerate(header)]
    body = [tag("tr", *(_cell(header, at, cell, left) for at, cell in enumerate(row)), role="row") for row in rows]
    inner = [tag("caption", caption), tag("thead", tag("tr", *head)), tag("tbody", *body)]
    whole = tag("table", *inner, role="table", class_="cards" if cards else None)
    return tag("div", whole, class_="wide", tabindex="0", role="region", aria_label=caption)


def _cell(header: Sequence[str], at: int, cell: str, left: set[int]) -> Html:
    # The roles are a table's own; a card, which is laid out as none, would lose them.
    return tag("td", cell, role="cell", data_name=header[at], class_="words" if at in left else None)


def facts(known: Iterable[tuple[str, str | None]]) -> Html:
    """Names and what they are; those that are not known are left out."""
    pairs = [(name, value) for name, value in known if value]
    shown = [
        tag("div", tag("dt", name), tag("dd", value), class_="whole" if len(value) > 32 else None)
        for name, value in pairs
    ]
    return tag("dl", *shown, class_="facts")


def details(summary: str, *inside: str) -> Html:
    """What is opened by who wants it."""
    return tag("details", tag("summary", summary), *inside)


def whole_page(title: str, *inside: str) -> str:
    """The page."""
    before, _, after = _PAGE.partition("{body}")
    return before.replace("{title}", html.escape(title)) + join(inside) + after


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root { color-scheme: light dark; --ink: #1c2128; --soft: #5b6470; --line: #d8dde4; --back: #fff; --raised: #f5f7f9;
  --yes: #1a7f4b; --no: #c0334d; --link: #1f5fbf; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ee; --soft: #9aa4b2; --line: #343b45; --back: #14181d; --raised: #1c2128;
    --yes: #5fcf95; --no: #ff8398; --link: #82b1ff; }
  polyline.navy, line.navy { stroke: #8fb0f5; } circle.navy { fill: #8fb0f5; } }
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--back); max-width: 72rem;
  margin: 0 auto; padding: 1.5rem 1rem 4rem; overflow-wrap: break-word; }
h1 { font-size: 1.8rem; line-height: 1.25; margin: .5rem 0; }
h2 { font-size: 1.35rem; line-height: 1.3; margin: 3rem 0 .5rem; padding-top: 1rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.6rem 0 .4rem; }
p, ul { margin: .5rem 0; max-width: 75ch; }
a { color: var(--link); }
.note { color: var(--soft); }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); font-size: .85rem; padding-bottom: .3rem; }
th, td { padding: .35rem .75rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap;
  vertical-align: top; }
th { color: var(--soft); font-weight: 600; }
.words { text-align: left; white-space: normal; min-width: 7rem; }
th:first-child, td:first-child { padding-left: 0; }
.yes { color: var(--yes); font-weight: 600; } .no { color: var(--no); font-weight: 600; }
figure { margin: 1rem 0; } figcaption { color: var(--soft); font-size: .85rem; }
figure.picture { overflow-x: auto; }
figure > img { display: block; width: 100%; min-width: min(36rem, 180vw); max-width: 62rem;
  background: #fff; border-radius: 6px; padding: .4rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: .5rem 2rem; }
.charts figure { margin: .5rem 0; min-width: 0; max-width: 38rem; }
svg.chart { display: block; width: 100%; height: auto; font: 14px system-ui, sans-serif; }
svg.chart text { fill: var(--soft); } svg.chart .grid { stroke: var(--line); stroke-width: 1; }
svg.chart polyline { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg.chart polyline:hover { stroke-width: 4; }
svg.chart .dot { fill-opacity: 0; } svg.chart .dot:hover { fill-opacity: 1; }
.legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .1rem 1.2rem; font-size: .85rem; }
.legend svg { width: 1.6rem; height: .6rem; margin-right: .4rem; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 15rem), 1fr)); gap: .6rem 2rem;
  background: var(--raised); padding: .8rem 1rem; border-radius: 6px; font-size: .9rem; margin: 1rem 0; }
.facts div { min-width: 0; } dt { color: var(--soft); font-size: .8rem; } dd { margin: 0; }
.facts .whole { grid-column: 1 / -1; }
code, pre { font: .85em/1.5 ui-monospace, monospace; }
pre.again { white-space: pre-wrap; }
pre { background: var(--raised); padding: .8rem 1rem; border-radius: 6px; overflow-x: auto; }
details { margin: .8rem 0; } summary { cursor: pointer; color: var(--link); }
h1 + section > h2 { border-top: 0; margin-top: 0; padding-top: 0; }
@media (max-width: 30rem) { body { padding: .5rem .8rem 3rem; } h1 { font-size: 1.45rem; } h2 { font-size: 1.2rem; }
  th, td { padding: .3rem .5rem; } }
@media (max-width: 40rem) {
  .cards, .cards caption, .cards tbody, .cards tr, .cards td { display: block; width: 100%; }
  .cards thead { display: none; }
  .cards tr { padding: .5rem 0; border-bottom: 1px solid var(--line); }
  .cards td { display: flex; gap: .8rem; border: 0; padding: .1rem 0; text-align: left; white-space: normal; }
  .cards td::before { content: attr(data-name); color: var(--soft); flex: 0 0 5.5rem; }
  .cards td:first-child { font-weight: 600; } .cards td:first-child::before { content: none; } }
@media print { details > :not(summary) { display: revert; } .wide { overflow: visible; } }
</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
