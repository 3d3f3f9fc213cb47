"""The pages of the documentation, and the examples in them."""

import re
from dataclasses import dataclass

from support.paths import ROOT

_BLOCK = re.compile(r"(?:^<!-- (\w+) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Args:
        mark: the name in a comment before it, such as "log"; "" without.
        language: what it is written in.
        text: its lines.
    """

    mark: str
    language: str
    text: str


def read(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def blocks(page: str, *languages: str) -> list[Block]:
    """Return a page's blocks in some languages."""
    found = [Block(*groups) for groups in _BLOCK.findall(read(page))]
    return [block for block in found if block.language in languages]
