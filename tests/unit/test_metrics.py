"""Metrics: the text format, the crawl's metrics, and the dashboard that shows them."""

import json
import re
import sys
from typing import Any

import pytest
from scrapy.spiders import Spider
from scrapy.utils.test import get_crawler
from support.paths import ROOT
from support.prometheus import Values, parse

from scrapy_bloom.cli import monitor as filter_metrics
from scrapy_bloom.crawl.stats import STATS, MetricsServer, Stats, at, families
from scrapy_bloom.settings import DEFAULT

DASHBOARD = json.loads((ROOT / "example_project" / "grafana" / "scrapy-bloom.json").read_text())


def stats(**values: Any) -> Stats:
    """Return the stats of a crawl; the names of a window's begin with its name and ``__``."""
    found = Stats(get_crawler(Spider).stats)
    for given_name, value in values.items():
        window, _, name = given_name.rpartition("__")
        found.set(name, value, window or DEFAULT)
    return found


def read(found: Stats) -> Values:
    """Return the metrics of a crawl as Prometheus reads them."""
    return parse(filter_metrics.text(families(found, "shop", {})))


def all_metrics() -> list[tuple[str, str, str]]:
    """Return name, type and meaning of each metric that there is."""
    crawl = families(stats(), "shop", {})
    found = [(m.name + "_total" * (m.type == "counter"), m.type, m.documentation) for m in crawl]
    gauges = filter_metrics.families([])
    return found + [(m.name, m.type, m.documentation) for m in gauges]


def test_every_stat_is_a_metric() -> None:
    values = dict.fromkeys(STATS, 3) | {f"daily__{name}": 4 for name in STATS}
    found = read(stats(**values))
    assert len(found) == 2 * len(STATS)
    main = (("spider", "shop"),)
    assert found["scrapy_bloom_new_total", main] == 3
    assert found["scrapy_bloom_new_total", (*main, ("window", "daily"))] == 4
    assert found["scrapy_bloom_fill_ratio", main] == 3


def test_counters_begin_at_zero_and_gauges_with_their_first_value() -> None:
    found = read(stats(daily__seen=2))
    counters = {name for name, kind, _ in all_metrics() if kind == "counter"}
    main = (("spider", "shop"),)
    daily = "scrapy_bloom_seen_total", (*main, ("window", "daily"))
    assert found == {(name, main): 0 for name in counters} | {daily: 2}


def test_what_is_no_number_is_left_out() -> None:
    for value in ("many", True, [1]):
        found = read(stats(fill_ratio=value))
        assert not any(name == "scrapy_bloom_fill_ratio" for name, _ in found)


def test_a_crawl_without_the_extra_is_warned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    MetricsServer(("127.0.0.1", 0), list).open()
    assert 'pip install "scrapy-bloom[metrics]"' in caplog.text


def test_addresses_in_urls() -> None:
    assert (at("127.0.0.1", 1), at("::1", 2)) == ("127.0.0.1:1", "[::1]:2")


def test_the_dashboard_queries_metrics_that_exist() -> None:
    panels = DASHBOARD["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    queries += [v["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]
    named = [name for query in queries for name in re.findall(r"scrapy_bloom_\w+", query)]
    assert set(named) <= {name for name, _, _ in all_metrics()}
    assert len(named) >= len(queries) > len(panels)


def test_the_page_has_exactly_the_metrics_there_are() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    found = re.findall(r"^\| `(\w+)` \| (\w+) \| (.+) \|$", page, re.MULTILINE)
    assert found == [one for one in all_metrics() if one[0].startswith("scrapy_bloom_filter_")]
