"""The reference is as the code says, is complete, and other pages name only what there is."""

import argparse
import ast
import re
from pathlib import Path

import pytest
from support.paths import ROOT

import scrapy_bloom
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.crawl.identity import META_KEYS
from scrapy_bloom.crawl.stats import STATS
from scrapy_bloom.crawl.writer import CLOSED_WITHOUT_SERVER
from scrapy_bloom.settings import SETTINGS
from tools.reference import keys
from tools.reference.commands import own_actions, parsers
from tools.reference.pages import DIRECTORY, PAGES
from tools.reference.settings import GROUPS

PACKAGE = Path(scrapy_bloom.__file__).parent
PARSERS = parsers()
#: All that users read, without the history.
TEXTS = {
    str(path.relative_to(ROOT)): path.read_text("utf-8")
    for pattern in ("*.md", "docs/**/*.md", "example_project/*.md")
    for path in sorted(ROOT.glob(pattern))
    if path.name != "CHANGELOG.md"
}
#: A command, to the end of the line or of the code.
COMMAND = re.compile(r"scrapy bloom ([a-z]+)\b([^`\n#]*)")


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_as_the_code_says(name: str) -> None:
    """If this fails: make reference"""
    assert (DIRECTORY / f"{name}.md").read_text("utf-8") == PAGES[name]()


def headings(name: str) -> set[str]:
    return set(re.findall(r"^#+ `?(.+?)`?$", TEXTS[f"docs/reference/{name}.md"], re.MULTILINE))


def test_the_kinds_of_keys_are_all_there() -> None:
    example = keys.EXAMPLE
    assert isinstance(example, Keys)
    named = {key.strip("`") for key, _, _ in keys.rows()}
    own = {key.replace(":0.0", ":7.0") for key in example.of_block(0)} | {*example.of_ledger(0)}
    assert own <= named
    assert {example.scratch(0, "<token>", "7.0")} == named - own


def test_the_names_of_the_package_are_all_there() -> None:
    text = TEXTS["docs/reference/api.md"]
    named = re.findall(r"^\.\. auto(?:class|exception|function):: (\w+)$", text, re.MULTILINE)
    assert sorted(named) == sorted(scrapy_bloom.__all__)


def test_the_meta_keys_are_those_that_are_read() -> None:
    read = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "META_KEYS":
                node.value = ast.Tuple([])  # where they are only listed
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                read |= set(re.findall(r"^bloom_[a-z_]+$", node.value))
    assert read - {CLOSED_WITHOUT_SERVER} == set(META_KEYS)
    described = re.findall(r"^## `(.+)`$", TEXTS["docs/reference/meta.md"], re.MULTILINE)
    assert sorted(described) == sorted(META_KEYS)


def test_each_setting_is_in_one_group() -> None:
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted(listed) == sorted(name.removeprefix("BLOOM_").lower() for name in SETTINGS)


@pytest.mark.parametrize("page", TEXTS)
def test_pages_name_only_what_there_is(page: str) -> None:
    text = TEXTS[page]
    assert set(re.findall(r"\bBLOOM_[A-Z_]*[A-Z]\b", text)) <= {*SETTINGS}
    assert set(re.findall(r"`bloom/(?:\w+/)?([a-z_]+)`", text)) <= set(STATS)
    assert set(re.findall(r"(?<![\w.])bloom_[a-z]\w*", text)) <= {
        *META_KEYS,
        CLOSED_WITHOUT_SERVER,
        *(name.lower() for name in SETTINGS),  # anchors
    }
    coded = re.findall(r"(?:\[|#|`)bloom-([a-z-]+)(?:\]|\)|`)", text)
    assert {f"bloom-{code}" for code in coded} <= headings("messages")


@pytest.mark.parametrize("page", TEXTS)
def test_pages_name_only_commands_that_there_are(page: str) -> None:
    for name, rest in COMMAND.findall(TEXTS[page]):
        assert name in PARSERS, name
        options = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", rest))
        assert options <= options_of(PARSERS[name]), f"{name} {rest}"


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    found = {option for action in own_actions(parser) for option in action.option_strings}
    return found | {"--help", "--set", "--loglevel", "--nolog"}
