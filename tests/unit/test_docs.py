"""The documentation agrees with the code: names, defaults, tables and numbers."""

import re
import tomllib

import pytest
from support.pages import read
from support.paths import ROOT

import scrapy_bloom
from scrapy_bloom.bloom.model.schedule import Schedule
from scrapy_bloom.bloom.model.sizing import DEFAULT_BLOCKS, plan
from scrapy_bloom.bloom.model.spec import DEFAULT_CAPACITY, DEFAULT_ERROR_RATE
from scrapy_bloom.bloom.protocol.claims import MAX_ATTEMPTS
from scrapy_bloom.cli.output import size
from scrapy_bloom.crawl import endings, leftovers, outputs, sharing, writer
from scrapy_bloom.settings import SETTINGS
from tools.reference.commands import own_actions, parsers

PAGES = ["README.md", *(str(one.relative_to(ROOT)) for one in ROOT.glob("docs/**/[a-z]*.md"))]
PAGES = [page for page in PAGES if "_build" not in page]
CODE = "".join(path.read_text("utf-8") for path in ROOT.glob("scrapy_bloom/**/*.py"))
TEXT = " ".join("\n".join(map(read, PAGES)).split())


@pytest.mark.parametrize("page", PAGES)
def test_names_exist(page: str) -> None:
    text = read(page)
    for name in re.findall(r"\bBLOOM_[A-Z_]+", text):
        assert name in SETTINGS, name
    for name in re.findall(r"`bloom/(?:run/|\d[\w-]+/)?(\w+)`", text):
        assert re.search(rf"\b{name}\b", CODE), name
    for names in re.findall(r"(?m)^ *from scrapy_bloom import (.+)$", text):
        assert {*names.split(", ")} <= {*scrapy_bloom.__all__}, names


@pytest.mark.parametrize("page", PAGES)
def test_commands_have_their_options(page: str) -> None:
    found = parsers()
    for command, rest in re.findall(r"scrapy bloom (\w+)([^`|\n#]*)", read(page)):
        options = {one for action in own_actions(found[command]) for one in action.option_strings}
        assert {*re.findall(r"(?<=\s)--[a-z-]+", rest)} <= options, (command, rest)


def test_defaults_in_brackets_are_those_of_the_settings() -> None:
    """For example "`BLOOM_TIMEOUT` (2 s)"."""
    said = re.findall(r"`BLOOM_([A-Z_]+)` \((?:a|one|([\d.]+)) ?(\w*)\)", TEXT)
    assert said
    for name, number, unit in said:
        default = str(SETTINGS[f"BLOOM_{name}"].metadata["default"])
        assert default.split(maxsplit=1)[0] == (number or "1"), name
        assert unit in ("s", *default.split()[1:]), name


#: Sentences of the documentation -> the number in them, which stands for N.
NUMBERS = {
    "at most N at a time": sharing.MAX_GIVEN,
    "up to N at a time": outputs.BATCH,
    "N writes are waiting": writer.MAX_WAITING,
    "N pages wait": endings.MAX_WAITING,
    "after N pages": leftovers.OWN_PAGES,
    "The filter has N or more shards": DEFAULT_BLOCKS,
    "| `blocks`, `seeds` | N or more": DEFAULT_BLOCKS,
    "some hash functions (N by default)": plan(DEFAULT_CAPACITY, DEFAULT_ERROR_RATE).num_hashes,
}


def cells(mark: str) -> list[list[str]]:
    """Return the rows of the table on sizes that has a mark, without its head."""
    table = read("docs/how-to/size-it.md").partition(f"<!-- {mark} -->\n")[2].partition("\n\n")[0]
    return [[one.strip() for one in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def bits(urls: int, rate: float, generations: int = 1) -> int:
    planned = plan(urls, rate, tested=generations)
    return planned.blocks * planned.num_bits


def test_the_table_of_sizes_is_what_a_filter_takes() -> None:
    assert cells("sizes")
    for urls, window, one, whole, per_url in cells("sizes"):
        count, generations = int(urls.replace(",", "")), Schedule.of(window).generations
        found = bits(count, DEFAULT_ERROR_RATE, generations)
        assert (one, whole) == (size(found // 8), size(found * generations // 8))
        assert per_url == f"{found / count:.1f}"


def test_the_table_of_error_rates_is_what_they_take() -> None:
    assert cells("rates")
    for rate, per_url, missed in cells("rates"):
        value = float(rate.removesuffix(" (default)"))
        assert per_url == f"{bits(10**6, value) / 10**6:.1f}"
        assert float(missed.replace(",", "")) == pytest.approx(10**6 * value)


@pytest.mark.parametrize("sentence", NUMBERS)
def test_numbers_are_those_of_the_code(sentence: str) -> None:
    said = re.findall(re.escape(sentence).replace("N", "([0-9][0-9,]*)"), TEXT)
    assert {*said} == {f"{NUMBERS[sentence]:,}"}


def test_a_page_gets_as_many_attempts_as_the_docs_say() -> None:
    assert MAX_ATTEMPTS == 5
    assert "A page gets five attempts" in TEXT
    assert not re.search(r"up to (5|five) times", TEXT)


def test_readme_site_and_package_have_one_tagline_and_the_coverage_that_is_demanded() -> None:
    project = tomllib.loads(read("pyproject.toml"))
    for page in ("README.md", "docs/index.md"):
        plain = re.sub(r"\[(\w+)\]\([^)]*\)", r"\1", read(page)).replace("`", "")
        assert project["project"]["description"] in " ".join(plain.split())
    coverage = project["tool"]["coverage"]["report"]["fail_under"]
    assert f"coverage-over_{coverage}%25" in read("README.md")
