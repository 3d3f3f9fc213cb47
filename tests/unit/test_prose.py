"""Pages repeat no line, and lines of prose are short enough to be read in an editor."""

import re
from collections import Counter

import pytest
from support.paths import ROOT

#: Longest line of prose, in characters.
LONGEST = 130
#: A repeated line of so many characters is a leftover of an edit; shorter ones may be alike.
REPEATED = 40
PAGES = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md")
    for path in ROOT.glob(pattern)
    if "_build" not in path.parts
)
#: Pages whose entries have the same causes and remedies, or options.
ALIKE = ("docs/reference/",)
_CODE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_NO_PROSE = re.compile(r" *\||\[[^]]+\]: |<!--")
_TARGET = re.compile(r"(?<=\])\([^)]*\)")


def prose(text: str) -> list[str]:
    """Return the lines that are no table, comment or code, without the targets of links."""
    lines = _CODE.sub("", text).splitlines()
    return [_TARGET.sub("", line) for line in lines if not _NO_PROSE.match(line)]


@pytest.mark.parametrize("page", PAGES)
def test_lines_of_prose_are_short(page: str) -> None:
    long = [line for line in prose((ROOT / page).read_text("utf-8")) if len(line) > LONGEST]
    assert long == []


@pytest.mark.parametrize("page", [page for page in PAGES if not page.startswith(ALIKE)])
def test_no_line_is_there_twice(page: str) -> None:
    lines = [line.strip() for line in prose((ROOT / page).read_text("utf-8"))]
    counted = Counter(line for line in lines if len(line) >= REPEATED)
    assert [line for line, count in counted.items() if count > 1] == []


def test_what_is_no_prose_is_left_out() -> None:
    text = "a\n\n```python\nb\n```\n\n| c | d |\n\n[e]: https://f.example\n- [g](h.md) i\n"
    assert [line for line in prose(text) if line] == ["a", "- [g] i"]
