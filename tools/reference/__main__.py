"""``python -m tools.reference``: write the pages of docs/reference that come from the code."""

from pathlib import Path

from tools.reference import commands, settings

DIRECTORY = Path(__file__).resolve().parents[2] / "docs" / "reference"

if __name__ == "__main__":
    for module in (commands, settings):
        name = f"{module.__name__.rpartition('.')[2]}.md"
        (DIRECTORY / name).write_text(module.page(), "utf-8")
