"""``scrapy bloom report`` and ``metrics``: the numbers of ``scrapy bloom info``."""

import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from redis import Redis
from support.cli import KEY, SECRET, URLS, Call, claim, fail, fingerprints, register, unchanged
from support.prometheus import Values, parse

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.cli.monitor import GAUGES
from scrapy_bloom.cli.server import PAGE
from scrapy_bloom.crawl import workers


def report(shop: Call) -> tuple[str, dict[str, list[float]]]:
    """Return the page, and its numbers by their classes."""
    done = shop("report", "--html", "page.html")
    assert (done.code, done.err) == (0, "")
    html, numbers = Path("page.html").read_text(), defaultdict[str, list[float]](list)
    for name, value in re.findall(r'<data class="(\w+)" value="(.*?)"', html):
        numbers[name].append(float(value))
    return html, numbers


def test_numbers_are_those_of_info(shop: Call, client: Redis) -> None:
    for run, items in ("a", fingerprints(URLS)), ("b", [b"x", b"y"]):
        BloomFilter(client, KEY, capacity=1000, window="3 runs", run=run).extend(items)
    with unchanged(client):
        _, numbers = report(shop)
    (document,) = shop("info", "--json").json["filters"]
    generations = document["generations"]
    assert len(generations) == 2
    document["fill_ratio"] = generations[0]["fill_ratio"]
    for name in ("error_rate", "error_bound", "claims"):
        assert numbers[name] == [document[name]]
    for name in ("count", "estimated_error_rate", "memory", "fill_ratio"):
        assert numbers[name] == [document[name], *(g[name] for g in generations)]
    for name in ("opened", "closes", "forgotten", "layers"):
        assert numbers[name] == [g[name] for g in generations]


def test_claims_workers_and_failed_and_gone_pages_are_shown(shop: Call, client: Redis) -> None:
    """How they are listed: unit/test_html_page.py."""
    bloom = BloomFilter(client, KEY, blocks=3)
    bloom.open()
    claim(bloom, register(bloom), ["1", "2", "3"], "")
    claim(bloom, "x", ["4"], "")
    fail(bloom, ["5"], 0, "")
    fail(bloom, [f"https://u:{SECRET}@example.com/{number}" for number in range(25)], 600)
    note = "1800000000 1800000100 2 !HTTP+404 https://example.com/gone"
    client.hset(Keys(KEY).missing(1), mapping={"ab": note, "ac": note.replace(" 2 ", " 1 ")})
    html, numbers = report(shop)
    names = ("claims", "failed", "due", "worker_claims", "elsewhere")
    assert [numbers[name] for name in names] == [[30], [26], [1], [3], [1]]
    for text in ("host-1:4711", "alive", "HTTP 503", "https://***@example.com/"):
        assert text in html
    assert SECRET not in html
    assert html.count(">https://example.com/gone<") == 1


def test_a_file_that_cannot_be_written(shop: Call, client: Redis) -> None:
    BloomFilter(client, KEY).open()
    for options in (["--html", "no/such/page.html"], ["--html", "-", "--json"]):
        shop("report", *options).refused("--html", "name a file")


def of(values: Values, key: str = KEY, window: str = "default") -> dict[str, float]:
    """Return the values of a filter, by the short names of the gauges."""
    labels = (("key", key), ("window", window))
    prefix = "scrapy_bloom_filter_"
    return {name.removeprefix(prefix): v for (name, pairs), v in values.items() if pairs == labels}


@pytest.mark.each_server(others="slow")
def test_the_gauges_are_those_of_info_and_nothing_changes(shop: Call, client: Redis) -> None:
    bloom = BloomFilter(client, KEY, capacity=1000, window="3 months", blocks=4)
    bloom.extend(fingerprints(URLS))
    claim(bloom, workers.worker_id("shop"), ["a", "b", "c"], "")
    fail(bloom, [f"{number}" for number in range(PAGE + 40)], request="")
    for life in (20, 20, 0):
        register(bloom, life)
    with unchanged(client):
        text = shop("metrics", "--count-failed", BLOOM_CAPACITY=77).out
    (info,) = shop("info", "--json").json["filters"]
    active = info["generations"][0]
    assert of(parse(text)) == {
        "exists": 1,
        "capacity_urls": 1000,
        "urls": 20,
        "fill_ratio": active["fill_ratio"],
        "estimated_error_rate": info["estimated_error_rate"],
        "error_rate_limit": info["error_rate"],
        "generations": 1,
        "layers": active["layers"],
        "memory_bytes": info["memory"],
        "lost_blocks": 0,
        "next_rotation_timestamp_seconds": active["closes"],
        "claims": PAGE + 43,
        "failed_claims": PAGE + 40,
        "workers": 2,
    }


def test_each_window_has_its_own_values(shop: Call, client: Redis) -> None:
    BloomFilter(client, KEY).extend(fingerprints(URLS))
    BloomFilter(client, f"{KEY}:1-day", window="1 day").extend(fingerprints(URLS[:5]))
    rules = [("/a", "1 day"), ("/b", "1 hour")]
    found = parse(shop("metrics", BLOOM_RECRAWL_RULES=rules).out)
    # What is not counted, or never happens, has no value.
    assert set(of(found)) == {*GAUGES} - {"failed_claims", "next_rotation_timestamp_seconds"}
    assert (of(found)["urls"], of(found)["workers"], of(found)["claims"]) == (20, 0, 0)
    assert of(found, f"{KEY}:1-day", "1-day")["urls"] == 5
    assert of(found, f"{KEY}:1-hour", "1-hour") == {"exists": 0}
    only = parse(shop("metrics", "--window", "1-day", BLOOM_RECRAWL_RULES=rules).out)
    assert of(only, f"{KEY}:1-day", "1-day")["urls"] == 5
    assert of(only) == {}


def test_without_the_extra_it_says_what_to_install(
    shop: Call, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    shop("metrics").refused('pip install "scrapy-bloom[metrics]"')
