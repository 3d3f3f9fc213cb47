"""docs/scaling.md agrees with the code and with what was measured."""

import json
import math
import re
from typing import Any

import pytest

from scrapy_bloom.bloom.model.sizing import plan
from tools import scaling
from tools.scaling import Costs, Crawl, bits_per_url, busiest, render

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


def test_it_was_measured_on_all_numbers_of_servers_and_blocks(measured: dict[str, Any]) -> None:
    rows = {(row["primaries"], row["blocks"]) for row in measured["costs"]}
    assert rows == {(count, blocks) for count in (1, 2, 3) for blocks in (16, 64, 256)}
    assert [row["latency"] for row in measured["crawls"]] == [0, 1]
    assert "--quick" not in measured["facts"]["command"]


def test_measured_memory_is_what_the_formulas_say(measured: dict[str, Any]) -> None:
    memory = measured["memory"]
    computed = bits_per_url(memory["capacity"], memory["error_rate"])
    assert memory["bits_per_url"] == pytest.approx(computed, rel=0.05)


def test_a_digit_of_the_error_rate_costs_what_the_ideal_says() -> None:
    ideal = math.log2(10) / math.log(2)
    assert bits_per_url(10**9, 1e-6) - bits_per_url(10**9, 1e-5) == pytest.approx(ideal, rel=0.03)
    assert f"{ideal:.2f} bits for each further digit" in scaling.PAGE.read_text("utf-8")


def test_a_crawl_takes_what_its_pages_and_links_take() -> None:
    crawl = Crawl(urls=86_400 * 100, days=1, links=11, costs=COSTS)
    assert crawl.pages_a_second == 100
    assert crawl.links_a_second == 1_100
    assert crawl.cores == pytest.approx(100 * (20 + 50 + 10 * 30) / 1e6)
    assert crawl.network == pytest.approx(100 * (400 + 300 + 10 * 200))
    assert crawl.primaries == 1


def test_servers_are_counted_by_what_runs_out_first() -> None:
    by_memory = Crawl(urls=10**11, days=10_000, links=1, costs=COSTS)
    assert by_memory.cores < 1
    assert by_memory.primaries == math.ceil(plan(10**11, 1e-5).memory / 48e9)
    by_cores = Crawl(urls=10**9, days=1, links=60, costs=COSTS)
    assert by_cores.primaries == math.ceil(by_cores.cores / 0.5) > 10


def test_blocks_are_on_the_nodes_that_their_slots_are_on() -> None:
    """One block is on one node; many are nearly even."""
    assert busiest("shop:bloom", 1, 3) == 1
    assert busiest("shop:bloom", 16, 1) == 1
    assert 1 / 3 <= busiest("shop:bloom", 4_096, 3) < 0.36
