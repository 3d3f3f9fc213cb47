"""The links of README.md and of the other pages lead somewhere; the decisions have an index."""

import re

import pytest
from support.paths import ROOT

README = (ROOT / "README.md").read_text()

#: The pages of this repository, as README.md names them, because it is shown on PyPI as well.
HERE = r"^https://github\.com/scrapy-bloom/scrapy-bloom/(?:blob|tree)/main/"
PAGES = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "example_project/*.md")
    for path in ROOT.glob(pattern)
)


def test_links_of_the_readme_work_elsewhere() -> None:
    assert all(link.startswith(("#", "https://")) for link in re.findall(r"\]\(([^)]+)\)", README))
    names = set(re.findall(r"^\[(.+)\]: ", README, re.MULTILINE))
    assert set(re.findall(r"\]\[(.+?)\]", README)) == names


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    direct, named = (
        re.findall(r"\]\(([^)]+)\)", text),
        re.findall(r"^\[.+\]: (.+)$", text, re.MULTILINE),
    )
    for link in (*direct, *named):
        target = re.sub(HERE, f"{ROOT}/", link)
        path, _, anchor = target.partition("#")
        if path.startswith(("http:", "https:")):
            continue
        found = (ROOT / page).parent.joinpath(path).resolve() if path else ROOT / page
        assert found.exists(), target
        if anchor:
            assert anchor in anchors(found.read_text()), target


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_decisions_have_an_index() -> None:
    folder = ROOT / "docs" / "decisions"
    rows = (folder / "README.md").read_text()
    index = re.findall(r"^\| \[(\d+)\]\((.+?)\) \| (.+) \|$", rows, re.MULTILINE)
    pages = sorted(folder.glob("[0-9]*.md"))
    assert [page for _, page, _ in index] == [page.name for page in pages]
    for (number, _, title), page in zip(index, pages, strict=True):
        assert page.read_text().startswith(f"# {number}: {title}\n")
