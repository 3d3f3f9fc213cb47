"""Metrics: the text format, the crawl's metrics, and the dashboard that shows them."""

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy.spiders import Spider
from scrapy.utils.test import get_crawler
from support.paths import ROOT
from support.prometheus import parse

from scrapy_bloom.cli import metrics as filter_metrics
from scrapy_bloom.crawl.exposition import Family, Metric, Sample, render
from scrapy_bloom.crawl.metrics import METRICS, at, families
from scrapy_bloom.crawl.stats import STATS, Kind, Stats
from scrapy_bloom.settings import DEFAULT

GAUGE = Metric("g", Kind.GAUGE, "what it shows")
DASHBOARD = json.loads((ROOT / "example_project" / "grafana" / "scrapy-bloom.json").read_text())


def stats(**values: Any) -> Stats:
    """Return the stats of a crawl; the names of a window's begin with its name and ``__``."""
    found = Stats(get_crawler(Spider).stats)
    for given_name, value in values.items():
        window, _, name = given_name.rpartition("__")
        found.set(name, value, window or DEFAULT)
    return found


def test_the_text_is_that_of_the_format() -> None:
    counter = Metric("c_total", Kind.COUNTER, "one\ntwo \\ three")
    text = render(
        [
            Family(GAUGE, [Sample({"a": "x", "b": "y"}, 1), Sample({"a": "z"}, 0.25)]),
            Family(Metric("left_out", Kind.GAUGE, "has no value"), []),
            Family(counter, [Sample({"a": 'q"\\\n'}, 7)]),
        ]
    )
    assert text == (
        "# HELP g what it shows\n"
        "# TYPE g gauge\n"
        'g{a="x",b="y"} 1\n'
        'g{a="z"} 0.25\n'
        "# HELP c_total one\\ntwo \\\\ three\n"
        "# TYPE c_total counter\n"
        'c_total{a="q\\"\\\\\\n"} 7\n'
    )
    assert parse(text)["c_total", (("a", 'q"\\\n'),)] == 7


def test_nothing_is_an_empty_text() -> None:
    assert render([]) == render([Family(GAUGE, [])]) == ""


@given(st.text(), st.floats(allow_nan=False) | st.integers(-(10**15), 10**15))
def test_any_label_and_number_is_read_back(label: str, value: float) -> None:
    text = render([Family(GAUGE, [Sample({"a": label}, value)])])
    assert parse(text) == {("g", (("a", label),)): value}


def test_odd_numbers_and_names_that_are_no_utf_8() -> None:
    samples = [Sample({"a": "n"}, math.nan), Sample({"a": "\udc80"}, -math.inf)]
    found = parse(render([Family(GAUGE, samples)]))
    assert math.isnan(found["g", (("a", "n"),)])
    assert found["g", (("a", "?"),)] == -math.inf


def test_every_stat_is_a_metric() -> None:
    values = dict.fromkeys(STATS, 3) | {f"daily__{name}": 4 for name in STATS}
    found = parse(render(families(stats(**values), "shop")))
    assert len(found) == 2 * len(STATS)
    main = (("spider", "shop"),)
    assert found["scrapy_bloom_new_total", main] == 3
    assert found["scrapy_bloom_new_total", (*main, ("window", "daily"))] == 4
    assert found["scrapy_bloom_fill_ratio", main] == 3


def test_counters_begin_at_zero_and_gauges_with_their_first_value() -> None:
    found = parse(render(families(stats(daily__seen=2), "shop")))
    counters = {m.name for m in METRICS.values() if m.kind is Kind.COUNTER}
    main = (("spider", "shop"),)
    daily = "scrapy_bloom_seen_total", (*main, ("window", "daily"))
    assert found == {(name, main): 0 for name in counters} | {daily: 2}


@pytest.mark.parametrize("value", ["many", b"1", True, [1], object()])
def test_what_is_no_number_is_left_out(value: object) -> None:
    found = parse(render(families(stats(fill_ratio=value), "shop")))
    assert not any(name == "scrapy_bloom_fill_ratio" for name, _ in found)


def test_no_two_metrics_have_one_name() -> None:
    both = [*METRICS.values(), filter_metrics.EXISTS, *filter_metrics.METRICS.values()]
    names = [metric.name for metric in both]
    assert len(set(names)) == len(names)


def test_addresses_in_urls() -> None:
    assert (at("127.0.0.1", 1), at("::1", 2)) == ("127.0.0.1:1", "[::1]:2")


def test_the_dashboard_queries_metrics_that_exist() -> None:
    panels = DASHBOARD["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    queries += [v["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]
    named = [name for query in queries for name in re.findall(r"scrapy_bloom_\w+", query)]
    known = {metric.name for metric in METRICS.values()}
    known |= {filter_metrics.EXISTS.name, *(m.name for m in filter_metrics.METRICS.values())}
    assert set(named) <= known
    assert len(named) >= len(queries) > len(panels)


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_the_page_has_exactly_the_metrics_there_are() -> None:
    both = [*METRICS.values(), filter_metrics.EXISTS, *filter_metrics.METRICS.values()]
    expected = [(metric.name, metric.kind.value, metric.meaning) for metric in both]
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert re.findall(r"^\| `(\w+)` \| (\w+) \| (.+) \|$", page, re.MULTILINE) == expected
