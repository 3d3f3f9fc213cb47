"""The pages of docs/reference that come from the code.

The file with the name of a page has its prose, and the module fills in what the program declares.
"""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    cells = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def sentence(text: str) -> str:
    """Return a text that begins with a capital letter and ends with a period."""
    text = f"{text[0].upper()}{text[1:]}"
    return text if text.endswith((".", "?")) else f"{text}."
