"""The pages of the documentation, and the examples in them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from support.paths import ROOT

README = ROOT / "README.md"
#: Pages of prose: README.md, and the folders for which nothing is generated.
PAGES = [
    "README.md",
    *sorted(
        str(path.relative_to(ROOT))
        for folder in ("tutorial", "how-to", "explanation")
        for path in (ROOT / "docs" / folder).glob("*.md")
    ),
]
_BLOCK = re.compile(r"(?:^<!-- (\w+) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


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


def prose(page: str) -> str:
    """Return a page without its blocks."""
    return _BLOCK.sub("", read(page))


def commands(page: str) -> Iterator[list[str]]:
    """Yield the words of all command lines of a page, in blocks and in the text.

    ``$ a; (b) | c`` has three commands.
    """
    lines = [
        line.removeprefix("$ ")
        for block in blocks(page, "console")
        for line in block.text.splitlines()
        if line.startswith("$ ")
    ]
    spans = _CODE_SPAN.findall(prose(page))
    lines += [span for span in spans if span.startswith(("scrapy ", "pip ", "make "))]
    for line in lines:
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        command: list[str] = []
        for word in words:
            if set(word) <= set("();&|<>"):
                yield command
                command = []
            else:
                command.append(word)
        yield command


def scrapy_commands(page: str, name: str) -> list[list[str]]:
    """Return the arguments of all calls of a Scrapy command on a page."""
    return [words[2:] for words in commands(page) if words[:2] == ["scrapy", name]]
