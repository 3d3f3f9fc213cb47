"""README.md and the pages: links lead somewhere, and the files and codes that they name exist."""

import re
import tomllib

import pytest
from support.pages import read
from support.paths import ROOT

#: All pages, with those that are written from the code.
PAGES = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "example_project/*.md")
    for path in ROOT.glob(pattern)
    if "_build" not in path.parts
)
PACKAGE = ROOT / "scrapy_bloom"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: The pages of this repository, as README.md names them, because it is shown on PyPI as well.
HERE = r"^https://github\.com/scrapy-bloom/scrapy-bloom/(?:blob|tree)/main/"
#: Where the pages of docs/ are read.
SITE = PROJECT["urls"]["Documentation"]


def test_links_of_the_readme_work_elsewhere() -> None:
    """And pages of docs/ are linked on the site."""
    links = re.findall(r"\]\(([^)]+)\)", read("README.md"))
    assert all(link.startswith(("#", "https://")) for link in links)
    assert not [link for link in links if re.match(f"{HERE}docs/", link)]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"(?m)(?:\]\(|^\[.+\]: )([^)\n]+)", read(page)):
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


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])
def test_files_that_a_page_names_exist(page: str) -> None:
    """By their path from the root, the tests or the package."""
    roots = (ROOT, ROOT / "tests", PACKAGE, PACKAGE / "bloom", ROOT / "example_project")
    for name in re.findall(r"`((?:\w+/)+[\w.]+\.(?:py|lua|toml|txt|md))(?:::\w+)?`", read(page)):
        is_made = name.startswith(("bookshop/", "news/"))
        assert is_made or any((root / name).exists() for root in roots), name


def test_codes_of_messages_are_explained() -> None:
    """Each code that is logged is on the page of messages, and the other way round."""
    code = "".join(path.read_text("utf-8") for path in PACKAGE.rglob("*.py"))
    codes = {*re.findall(r"\[bloom-([a-z-]+)\]", code)}
    codes |= {*re.findall(r"warn_once\(\s*\"([a-z-]+)\"", code)}
    page = read("docs/reference/messages.md")
    assert {*re.findall(r"^### bloom-([a-z-]+)", page, re.MULTILINE)} == codes
