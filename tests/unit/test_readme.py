"""The links of README.md and of the other pages lead somewhere; the decisions have an index."""

import re
import tomllib

import pytest
from support.paths import ROOT

README = (ROOT / "README.md").read_text()

#: The pages of this repository, as README.md names them, because it is shown on PyPI as well.
HERE = r"^https://github\.com/scrapy-bloom/scrapy-bloom/(?:blob|tree)/main/"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: Where the pages of docs/ are read.
SITE = PROJECT["urls"]["Documentation"]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "example_project/*.md")
    for path in ROOT.glob(pattern)
)


def test_links_of_the_readme_work_elsewhere() -> None:
    """And pages of docs/ are linked on the site."""
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert all(link.startswith(("#", "https://")) for link in links)
    assert not [link for link in links if re.match(f"{HERE}docs/", link)]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for link in re.findall(r"(?m)(?:\]\(|^\[.+\]: )([^)\n]+)", text):
        target = re.sub(rf"^{SITE}(.+)\.html", rf"{ROOT}/docs/\1.md", link)
        target = re.sub(HERE, f"{ROOT}/", target)
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
