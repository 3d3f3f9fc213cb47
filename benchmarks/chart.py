"""Bar charts as SVG, which a phone can read, and which follow the reader's dark mode.

A bar's length is its value. Its text says the value, and often how many times it is another one.
"""

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

WIDTH, BAR, ROW, HEADING = 360, 10, 40, 30
STYLE = """\
text { font: 14px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2933; }
.heading { font-weight: 600; }
.value { text-anchor: end; }
.others { fill: #aab4bf; }
.ours { fill: #1d6fb8; }
@media (prefers-color-scheme: dark) {
  text { fill: #e4e7eb; }
  .others { fill: #5d6975; }
  .ours { fill: #4f9fe0; }
}"""


class Bar(NamedTuple):
    """A bar.

    Args:
        name: what it is for.
        value: its length.
        text: what stands at its end.
        is_ours: whether it's for scrapy-bloom.
    """

    name: str
    value: float
    text: str
    is_ours: bool = False


def chart(title: str, groups: Sequence[tuple[str, Sequence[Bar]]]) -> str:
    """Return an SVG with a group of bars below each heading; "" is none."""
    longest = max(bar.value for _, bars in groups for bar in bars)
    body, height = [], 0
    for heading, bars in groups:
        if heading:
            body.append(f'<text class="heading" x="0" y="{height + 18}">{escape(heading)}</text>')
            height += HEADING
        for bar in bars:
            body += _row(bar, height, longest)
            height += ROW
    start = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
    return "\n".join((start, f"<title>{escape(title)}</title>", _style(), *body, "</svg>\n"))


def _row(bar: Bar, top: int, longest: float) -> Iterator[str]:
    width, kind = max(1, WIDTH * bar.value / longest), "ours" if bar.is_ours else "others"
    yield f'<text x="0" y="{top + 15}">{escape(bar.name)}</text>'
    yield f'<text class="value" x="{WIDTH}" y="{top + 15}">{escape(bar.text)}</text>'
    yield f'<rect class="{kind}" y="{top + 21}" width="{width:.1f}" height="{BAR}" rx="2"/>'


def _style() -> str:
    return f"<style>\n{STYLE}\n</style>"
