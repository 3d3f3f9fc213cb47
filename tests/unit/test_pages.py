"""README.md and the pages: examples are read, links lead somewhere, and what is named exists."""

import argparse
import re
import tomllib
from collections.abc import Iterable
from typing import Any

import pytest
import yaml
from scrapy.settings import Settings
from support.pages import PAGES, blocks, commands, prose, read, scrapy_commands
from support.paths import ROOT

from scrapy_bloom.bloom.model.schedule import Schedule
from scrapy_bloom.bloom.model.spec import Options
from scrapy_bloom.cli.command import COMMANDS, BloomCommand
from scrapy_bloom.settings import BloomSettings

#: All pages, with those that are written from the code.
ALL_PAGES = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "example_project/*.md")
    for path in ROOT.glob(pattern)
    if "_build" not in path.parts
)
PACKAGE = ROOT / "scrapy_bloom"
SOURCES = {path: path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
README = read("README.md")


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
    return BloomSettings.read(settings, "shop")


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
    for name, value in re.findall(r"`(BLOOM_[A-Z_]+) = ([^`]+)`", prose(page)):
        load({name: eval(value)})
    for words in commands(page):
        pairs = [words[i + 1] for i, word in enumerate(words[:-1]) if word == "-s"]
        if settings := dict(pair.split("=", 1) for pair in pairs):
            load(settings)


@pytest.mark.parametrize("page", PAGES)
def test_subcommands_parse(page: str) -> None:
    known = parser()
    for arguments in scrapy_commands(page, "bloom"):
        if arguments in ([name] for name in COMMANDS):
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


def unknown(pattern: str, known: Iterable[str]) -> set[tuple[str, str]]:
    """Return what the pages name that is not known, with the page."""
    return {
        (page, name)
        for page in ALL_PAGES
        for name in re.findall(pattern, read(page))
        if name not in known
    }


def test_settings_that_pages_name_exist() -> None:
    names = {f"BLOOM_{name.upper()}" for name in BloomSettings.__dataclass_fields__}
    assert not unknown(r"\b(BLOOM_[A-Z_]*[A-Z])\b", names)


def test_meta_keys_that_pages_name_exist() -> None:
    """They are on the page of meta keys, which names keys of the code."""
    keys = re.findall(r"^## `(bloom_\w+)`", read("docs/reference/meta.md"), re.MULTILINE)
    assert not unknown(r"meta\[\"(bloom_\w+)\"\]", keys)
    code = "".join(SOURCES.values())
    assert [key for key in keys if f'"{key}"' not in code] == []


def test_stats_that_pages_name_exist() -> None:
    stats = set(re.findall(r"`bloom/(\w+)`", read("docs/reference/stats.md")))
    assert stats
    assert not unknown(r"`bloom/(?:run/|1-day/|1-hour/)?(\w+)`", stats)
    code = "".join(SOURCES.values())
    assert [name for name in stats if f'"{name}"' not in code] == []
    assert {*re.findall(r"report\.(?:count|set)\(\s*\"(\w+)\"", code)} <= stats


def test_commands_that_pages_name_exist() -> None:
    assert not unknown(r"`scrapy bloom ([a-z]+)", COMMANDS)


def test_extras_and_targets_of_make_exist() -> None:
    extras = PROJECT["optional-dependencies"]
    found = re.findall(r"scrapy-bloom\[([\w,-]+)\]", "".join(map(read, ALL_PAGES)))
    assert {name for group in found for name in group.split(",")} <= {*extras}
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    called = [words for page in ALL_PAGES for words in commands(page) if words[:1] == ["make"]]
    assert {words[1] for words in called if len(words) > 1} <= {*targets}


def test_files_that_pages_name_exist() -> None:
    """By their path from the root, the tests or the package."""
    for page in ALL_PAGES:
        for name in re.findall(
            r"`((?:\w+/)+[\w.]+\.(?:py|lua|toml|txt|md))(?:::\w+)?`", read(page)
        ):
            roots = (ROOT, ROOT / "tests", PACKAGE, PACKAGE / "bloom", ROOT / "example_project")
            is_made = page == "CHANGELOG.md" or name.startswith(("bookshop/", "news/"))
            assert is_made or any((root / name).exists() for root in roots), (page, name)


def test_the_architecture_names_each_file() -> None:
    page = read("docs/architecture.md")
    for folder in ("bloom", "crawl", "cli", ""):
        files = [path for path in SOURCES if path.name != "__init__.py"]
        own = [
            path.relative_to(PACKAGE / folder) for path in files if PACKAGE / folder in path.parents
        ]
        own = [path for path in own if folder == "bloom" or len(path.parts) == 1]
        assert [str(path) for path in own if f"`{path}`" not in page] == []


def test_codes_of_messages_are_explained() -> None:
    """Each code that is logged is on the page of messages, and the other way round."""
    code = "".join(SOURCES.values())
    codes = {*re.findall(r"\[bloom-([a-z-]+)\]", code)}
    codes |= {*re.findall(r"warn_once\(\s*f?\"([a-z-]+?)-?[\"{]", code)}
    errors = re.findall(r"^class (\w+)Error\(", SOURCES[PACKAGE / "bloom/errors.py"], re.MULTILINE)
    codes |= {re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower() for name in errors} - {"bloom"}
    explained = re.findall(
        r"^### bloom-([a-z-]+)", read("docs/reference/messages.md"), re.MULTILINE
    )
    assert set(explained) == codes


# -- numbers --


def test_the_table_of_sizes_is_computed() -> None:
    """A generation, all of them, and bits per URL."""
    page = read("docs/how-to/size-it.md")
    rows = re.findall(r"^\| ([\d,]+) \| (\w[^|]+) \| (.+) \|$", page, re.MULTILINE)
    assert len(rows) == 6
    for urls, window, cells in rows:
        capacity, schedule = int(urls.replace(",", "")), Schedule.of(window)
        spec = Options(capacity=capacity).create(schedule)
        layer = spec.first_layer(schedule, *schedule.bounds(1_800_000_000), 0)
        one, all_of_them = (layer.memory * spec.blocks * n for n in (1, schedule.generations))
        shown = [_size(one), _size(all_of_them), f"{one * 8 / capacity:.1f}"]
        assert cells.split(" | ") == shown


def _size(number: int) -> str:
    return f"{number / 2**20:.1f} MiB" if number < 2**30 else f"{number / 2**30:.1f} GiB"


# -- links --


#: The pages of this repository, as README.md names them, because it is shown on PyPI as well.
HERE = r"^https://github\.com/scrapy-bloom/scrapy-bloom/(?:blob|tree)/main/"
#: Where the pages of docs/ are read.
SITE = PROJECT["urls"]["Documentation"]


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
    versions = re.search(r"You need Python ([\d.]+)\+ and Scrapy ([\d.]+)\+", README)
    assert versions
    python, scrapy = versions.groups()
    assert PROJECT["requires-python"] == f">={python}"
    assert f"scrapy>={scrapy}" in PROJECT["dependencies"]


def test_the_tests_that_the_guarantees_name_exist() -> None:
    names = re.findall(r"`(\w+/test_\w+\.py)`", read("docs/guarantees.md"))
    assert len(names) > 20
    assert [name for name in names if not (ROOT / "tests" / name).exists()] == []
