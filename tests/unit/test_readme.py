"""The README and the other pages say what is so."""

import re

import pytest
from support.paths import ROOT

from scrapy_bloom.bloom.model.sizing import plan

README = (ROOT / "README.md").read_text()


def test_the_numbers_are_those_of_the_default_plan() -> None:
    """Names of settings, stats and commands: test_docs_reference.py."""
    planned = plan(1_000_000, 1e-5)
    bits = round(planned.memory * 8 / 1_000_000 + 0.5)
    texts = README + (ROOT / "docs" / "index.md").read_text()
    assert set(re.findall(r"are ([\d.]+) MiB", texts)) <= {f"{planned.memory / 2**20:.1f}"}
    assert set(re.findall(r"about (\d+) bits a URL", texts)) == {str(bits)}


def test_the_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)`", README)) <= targets


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
        found = (ROOT / page).parent.joinpath(path) if path else ROOT / page
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
