"""docs/scaling.md agrees with the code and with what was measured."""

import json
import re
from typing import Any

import pytest

from tools import scaling
from tools.scaling import Costs, Crawl, render

COSTS = Costs(claim=20, confirm=50, seen=30, claim_bytes=400, confirm_bytes=300, seen_bytes=200)


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(scaling.MEASURED.read_text("utf-8"))
    return found


def test_the_page_is_as_computed_now(measured: dict[str, Any]) -> None:
    """If this fails: python -m tools.scaling"""
    page = scaling.PAGE.read_text("utf-8")
    assert set(re.findall(r"<!-- ([a-z]+) -->\n", page)) == {"end", "facts", *scaling.TABLES}
    assert render(page, measured) == page


def test_a_crawl_takes_what_its_pages_and_links_take() -> None:
    crawl = Crawl(urls=86_400 * 100, days=1, links=11, costs=COSTS)
    assert crawl.pages_a_second == 100
    assert crawl.links_a_second == 1_100
    assert crawl.cores == pytest.approx(100 * (20 + 50 + 10 * 30) / 1e6)
    assert crawl.network == pytest.approx(100 * (400 + 300 + 10 * 200))
    assert crawl.primaries == 1
