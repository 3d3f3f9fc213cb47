"""The README and the other pages say what is so."""

import re

import pytest
from support.paths import ROOT

from scrapy_bloom.bloom.model.sizing import plan
from scrapy_bloom.crawl.stats import STATS
from scrapy_bloom.settings import SETTINGS

README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_every_setting_is_documented(name: str) -> None:
    assert f"| `{name}` |" in README


def test_every_documented_setting_exists() -> None:
    assert set(re.findall(r"BLOOM_[A-Z_]+", README)) <= set(SETTINGS)


def test_the_readme_has_exactly_the_stats_there_are() -> None:
    rows = re.findall(r"^\| `bloom/(\w+)` \|", README, re.MULTILINE)
    assert sorted(rows) == sorted(STATS)
    named = set(re.findall(r"`bloom/(\w+)`", README))
    assert named <= set(STATS)


def test_the_numbers_are_those_of_the_default_plan() -> None:
    planned = plan(1_000_000, 1e-5)
    assert f"are {planned.memory / 2**20:.1f} MiB" in README
    assert f"about {round(planned.memory * 8 / 1_000_000 + 0.5)} bits a URL" in README


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
