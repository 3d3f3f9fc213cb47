"""Pieces of Markdown."""

from collections.abc import Iterable, Sequence


def document(title: str, source: str, *blocks: str) -> str:
    """Return a page that begins with its title and says what it is written from."""
    note = f"<!-- Written by `make reference` from {source}. Do not edit. -->"
    return "\n\n".join([f"# {title}", note, *blocks]) + "\n"


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


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
