"""The README says what is so."""

import re

import pytest
from support.paths import ROOT

from scrapy_bloom.bloom.model.sizing import plan
from scrapy_bloom.settings import SETTINGS

README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_every_setting_is_documented(name: str) -> None:
    assert f"| `{name}` |" in README


def test_every_documented_setting_exists() -> None:
    assert set(re.findall(r"BLOOM_[A-Z_]+", README)) <= set(SETTINGS)


def test_the_numbers_are_those_of_the_default_plan() -> None:
    planned = plan(1_000_000, 1e-5)
    assert f"are {planned.memory / 2**20:.1f} MiB" in README
    assert f"about {round(planned.bits_per_url + 0.5)} bits a URL" in README


def test_the_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)`", README)) <= targets


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/design.md",
        "docs/cache-guard.md",
        "docs/library.md",
        "example_project/README.md",
    ],
)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / page).parent.joinpath(target).exists(), target
