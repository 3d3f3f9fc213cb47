"""Pieces of Markdown."""

import re
import textwrap
from collections.abc import Iterable, Sequence

#: Longest line of prose.
WIDTH = 118


def document(title: str, source: str, *blocks: str) -> str:
    """Return a page that begins with its title and says what it is written from."""
    note = f"<!-- Written by `make reference` from {source}. Do not edit. -->"
    return "\n\n".join([f"# {title}", note, *map(_wrapped, blocks)]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells are Markdown."""
    lines = [_row(head), "|" + "---|" * len(head), *(_row(row) for row in rows)]
    return "\n".join(lines)


def bullets(**texts: str) -> str:
    """Return a list of named texts, without those that are empty; ``_`` in a name is a space."""
    return "\n".join(f"- {name.replace('_', ' ')}: {text}" for name, text in texts.items() if text)


def sentence(text: str) -> str:
    """Return a text that begins with a capital letter and ends with a period."""
    text = f"{text[0].upper()}{text[1:]}"
    return text if text.endswith((".", "?")) else f"{text}."


def code(text: str) -> str:
    """Return a text as code in a line."""
    return f"`{text}`"


def block(text: str, language: str = "text") -> str:
    """Return a block of code."""
    return f"```{language}\n{text}\n```"


def _wrapped(text: str) -> str:
    """Return a block with its long lines in several, except tables and links; code has none."""
    return "\n".join(map(_wrapped_line, text.splitlines()))


def _wrapped_line(line: str) -> str:
    if len(line) <= WIDTH or line.startswith("|"):
        return line
    indent = "  " if line.startswith("- ") else ""
    # Code stays in one line.
    kept = re.sub(r"`[^`]+`", lambda match: match[0].replace(" ", "\0"), line)
    lines = textwrap.wrap(
        kept, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines).replace("\0", " ")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
