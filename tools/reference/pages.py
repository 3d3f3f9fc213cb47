"""The pages, by name."""

from collections.abc import Callable, Mapping
from pathlib import Path

from tools.reference import commands, keys, settings

DIRECTORY = Path(__file__).resolve().parents[2] / "docs" / "reference"

#: Name of the file, without ".md" -> returns its text.
PAGES: Mapping[str, Callable[[], str]] = {
    "settings": settings.page,
    "commands": commands.page,
    "keys": keys.page,
}
