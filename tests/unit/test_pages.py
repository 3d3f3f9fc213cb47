"""README.md and the pages: examples are read, links lead somewhere, and numbers are computed."""

import argparse
import json
import re
import tomllib
from typing import Any

import pytest
import yaml
from scrapy.settings import Settings
from support.pages import PAGES, blocks, commands, prose, read, scrapy_commands
from support.paths import ROOT

from scrapy_bloom.bloom.model.forecast import forecast
from scrapy_bloom.bloom.model.schedule import parse_span
from scrapy_bloom.bloom.options import DEFAULTS, FilterOptions
from scrapy_bloom.cli.command import SUBCOMMANDS, BloomCommand
from scrapy_bloom.cli.plan import as_text
from scrapy_bloom.settings import BloomSettings
from tools import scaling
from tools.scaling import render


def parser() -> argparse.ArgumentParser:
    command = BloomCommand()
    command.settings = Settings()
    made = argparse.ArgumentParser(exit_on_error=False)
    command.add_options(made)
    return made


def load(given: dict[str, Any]) -> BloomSettings:
    """Read settings as a crawl does."""
    settings = Settings()
    settings.setdict(given, priority="project")
    return BloomSettings.from_scrapy(settings, "shop")


# -- examples --


@pytest.mark.parametrize("page", PAGES)
def test_python_runs_and_settings_load(page: str) -> None:
    """Each Python block runs, and the settings that it makes are read by the real parser."""
    for number, block in enumerate(blocks(page, "python")):
        names: dict[str, Any] = {"__name__": "example"}
        exec(compile(block.text, f"{page}, block {number}", "exec"), names)
        settings = {name: value for name, value in names.items() if name.isupper()}
        if any(name.startswith("BLOOM_") for name in settings):
            load(settings)


@pytest.mark.parametrize("page", PAGES)
def test_settings_in_the_text_load(page: str) -> None:
    """Of ``BLOOM_X = value`` in the text, and of ``-s BLOOM_X=value`` in commands."""
    given = re.findall(r"`(BLOOM_[A-Z_]+) = ([^`]+)`", prose(page))
    for name, value in given:
        load({"BLOOM_RUN": "1", name: eval(value)})
    for words in commands(page):
        pairs = [words[i + 1] for i, word in enumerate(words[:-1]) if word == "-s"]
        settings = dict(pair.split("=", 1) for pair in pairs)
        if settings:
            load({"BLOOM_RUN": "1", **settings})


@pytest.mark.parametrize("page", PAGES)
def test_subcommands_parse(page: str) -> None:
    known = parser()
    for arguments in scrapy_commands(page, "bloom"):
        if arguments in ([name] for name in SUBCOMMANDS):
            continue  # the text may name one without what it needs
        try:
            parsed = known.parse_known_args(arguments)
        except (argparse.ArgumentError, SystemExit) as error:
            raise AssertionError(f"{page}: scrapy bloom {' '.join(arguments)}") from error
        assert not parsed[1], arguments


def test_yaml_is_valid() -> None:
    for block in (block for page in PAGES for block in blocks(page, "yaml")):
        document = yaml.safe_load(block.text)
        assert document.keys() & {"services", "apiVersion"}


# -- names --


def test_named_things_exist() -> None:
    """Extras and targets of make; what else is named: test_docs_reference.py."""
    extras = re.findall(r"scrapy-bloom\[([\w,-]+)\]", "".join(map(read, PAGES)))
    project = (ROOT / "pyproject.toml").read_text()
    for extra in {name for group in extras for name in group.split(",")}:
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE), extra
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    called = [words for page in PAGES for words in commands(page) if words[:1] == ["make"]]
    assert {words[1] for words in called} <= {*targets}


# -- numbers --


def test_the_table_of_sizes_is_what_plan_prints() -> None:
    page = read("docs/how-to/size-it.md")
    rows = re.findall(r"^\| ([\d,]+) \| (\S[^|]+) \| (.+) \|$", page, re.MULTILINE)
    assert len(rows) == 6
    for capacity, window, cells in rows:
        options = FilterOptions(
            capacity=int(capacity.replace(",", "")),
            window=None if window == "never forgets" else parse_span("", window),
        )
        text = as_text(forecast(options.new_header(), options.config(DEFAULTS)))
        facts = dict(re.findall(r"^  (\S.*?)  +(\S.*?) *$", text, re.MULTILINE))
        assert cells.split(" | ") == [
            facts["a generation"],
            facts["all generations"].removesuffix(" at capacity"),
            facts["bits per URL"].removesuffix(" at capacity"),
            facts["new pages missed"].removesuffix(" in a window at most"),
        ]


# -- links --


README = read("README.md")

#: The pages of this repository, as README.md names them, because it is shown on PyPI as well.
HERE = r"^https://github\.com/scrapy-bloom/scrapy-bloom/(?:blob|tree)/main/"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: Where the pages of docs/ are read.
SITE = PROJECT["urls"]["Documentation"]
ALL_PAGES = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "example_project/*.md")
    for path in ROOT.glob(pattern)
)


def test_links_of_the_readme_work_elsewhere() -> None:
    """And pages of docs/ are linked on the site."""
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert all(link.startswith(("#", "https://")) for link in links)
    assert not [link for link in links if re.match(f"{HERE}docs/", link)]


@pytest.mark.parametrize("page", ALL_PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = read(page)
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


def test_the_readme_says_what_the_package_needs() -> None:
    versions = re.search(r"It takes Python ([\d.]+), Scrapy ([\d.]+), and Redis", README)
    assert versions
    python, scrapy = versions.groups()
    assert PROJECT["requires-python"] == f">={python}"
    assert f"scrapy>={scrapy}" in PROJECT["dependencies"]


def test_the_decisions_have_an_index() -> None:
    folder = ROOT / "docs" / "decisions"
    rows = (folder / "README.md").read_text()
    index = re.findall(r"^\| \[(\d+)\]\((.+?)\) \| (.+) \|$", rows, re.MULTILINE)
    pages = sorted(folder.glob("[0-9]*.md"))
    assert [page for _, page, _ in index] == [page.name for page in pages]
    for (number, _, title), page in zip(index, pages, strict=True):
        assert page.read_text().startswith(f"# {number}: {title}\n")


# -- docs/scaling.md --


def test_the_page_is_as_computed_now() -> None:
    """If this fails: python -m tools.scaling"""
    measured = json.loads(scaling.MEASURED.read_text("utf-8"))
    page = scaling.PAGE.read_text("utf-8")
    assert set(re.findall(r"<!-- ([a-z]+) -->\n", page)) == {"end", "facts", *scaling.TABLES}
    assert render(page, measured) == page
