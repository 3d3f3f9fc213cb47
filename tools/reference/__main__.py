"""``python -m tools.reference``: write the pages of docs/reference that come from the code."""

from tools.reference.pages import DIRECTORY, PAGES


def main() -> None:
    """Write all pages."""
    for name, page in PAGES.items():
        path = DIRECTORY / f"{name}.md"
        path.write_text(page(), "utf-8")
        print(path.relative_to(DIRECTORY.parents[1]))


if __name__ == "__main__":
    main()
