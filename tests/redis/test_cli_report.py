"""``scrapy bloom report`` and ``metrics``: the numbers of ``scrapy bloom info``."""

import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from support.cli import KEY, SECRET, URLS, Call, claim, everything, fail, fingerprints, register
from support.prometheus import Values, parse

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.cli.monitor import GAUGES
from scrapy_bloom.cli.server import PAGE
from scrapy_bloom.crawl import workers
from scrapy_bloom.crawl.workers import Process

HOSTILE = '<script>alert("1")</script>&\'x'


class Page(HTMLParser):
    """Reads ``<data>`` elements, by class, and all tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.numbers, self.text = Counter[str](), dict[str, list[float]](), ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        if tag == "data":
            found = dict(attrs)
            number = float(found["value"] or "")
            self.numbers.setdefault(found["class"] or "", []).append(number)

    def handle_data(self, data: str) -> None:
        self.text += data


def report(shop: Call, *options: str, **settings: Any) -> Page:
    done = shop("report", "--html", "page.html", *options, **settings)
    assert (done.code, done.err) == (0, "")
    return Page(Path("page.html").read_text())


def test_numbers_are_those_of_info(shop: Call, client: Redis) -> None:
    for run_ in ("a", "b"):
        bloom = BloomFilter(client, KEY, capacity=1000, window="3 runs", run=run_)
        bloom.extend(fingerprints(URLS) if run_ == "a" else [b"x", b"y"])
    before = everything(client)
    numbers = report(shop).numbers
    assert everything(client) == before
    (document,) = shop("info", "--json").json["filters"]
    generations = document["generations"]
    assert len(generations) == 2
    for name in ("count", "estimated_error_rate", "memory"):
        assert numbers[name] == [document[name], *(g[name] for g in generations)]
    ratios = [g["fill_ratio"] for g in generations]
    assert numbers["fill_ratio"] == [ratios[0], *ratios]
    for name in ("opened", "closes", "forgotten", "layers"):
        assert numbers[name] == [g[name] for g in generations]
    for name in ("error_rate", "error_bound", "claims"):
        assert numbers[name] == [document[name]]


def test_claims_workers_and_failed_and_gone_pages_are_shown(shop: Call, client: Redis) -> None:
    """How they are listed: unit/test_html_page.py."""
    bloom = BloomFilter(client, KEY, blocks=3)
    bloom.open()
    worker = register(bloom, process=Process(f"host{HOSTILE}", 4711, "another boot", 1))
    claim(bloom, worker, ["1", "2", "3"], "")
    claim(bloom, "x", ["4"], "")
    fail(bloom, ["5"], 0, "")
    fail(bloom, [f"https://u:{SECRET}@example.com/{number}" for number in range(25)], 600)
    note = "1800000000 1800000100 2 !HTTP+404 https://example.com/gone"
    client.hset(Keys(KEY).missing(1), mapping={"ab": note, "ac": note.replace(" 2 ", " 1 ")})
    page = report(shop)
    names = ("claims", "failed", "due", "worker_claims", "elsewhere")
    assert [page.numbers[name] for name in names] == [[30], [26], [1], [3], [1]]
    assert f"host{HOSTILE}:4711" in page.text
    assert "alive" in page.text
    assert page.tags["script"] == 0
    assert "HTTP 503https://***@example.com/" in page.text
    assert SECRET not in page.text
    assert page.text.count("https://example.com/gone") == 1


@pytest.mark.parametrize("options", [["--html", "no/such/page.html"], ["--html", "-", "--json"]])
def test_a_file_that_cannot_be_written(shop: Call, client: Redis, options: list[str]) -> None:
    BloomFilter(client, KEY).open()
    done = shop("report", *options)
    assert (done.code, done.out) == (2, "")
    assert "--html" in done.err
    assert "name a file" in done.err


def of(values: Values, key: str = KEY, window: str = "default") -> dict[str, float]:
    """Return the values of a filter, by the short names of the gauges."""
    labels = (("key", key), ("window", window))
    prefix = "scrapy_bloom_filter_"
    return {name.removeprefix(prefix): v for (name, pairs), v in values.items() if pairs == labels}


@pytest.mark.each_server
def test_the_gauges_are_those_of_info_and_nothing_changes(shop: Call, client: Redis) -> None:
    bloom = BloomFilter(client, KEY, capacity=1000, window="3 months", blocks=4)
    bloom.extend(fingerprints(URLS))
    claim(bloom, workers.worker_id("shop"), ["a", "b", "c"], "")
    fail(bloom, [f"{number}" for number in range(PAGE + 40)], request="")
    for life in (20, 20, 0):
        register(bloom, life)
    before = everything(client)
    done = shop("metrics", "--count-failed", BLOOM_CAPACITY=77)
    (info,) = shop("info", "--json").json["filters"]
    assert everything(client) == before
    assert (done.code, done.err) == (0, "")
    active = info["generations"][0]
    assert of(parse(done.out)) == {
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
    assert info["claims"] == PAGE + 43
    assert active["closes"] > info["now"]


def test_what_is_not_counted_or_never_happens_has_no_value(shop: Call, client: Redis) -> None:
    BloomFilter(client, KEY).open()
    found = of(parse(shop("metrics").out))
    absent = {"failed_claims", "next_rotation_timestamp_seconds"}
    assert set(found) == {*GAUGES} - absent
    assert (found["workers"], found["claims"]) == (0, 0)


def test_each_window_has_its_own_values(shop: Call, client: Redis) -> None:
    BloomFilter(client, KEY).extend(fingerprints(URLS))
    BloomFilter(client, f"{KEY}:1-day", window="1 day").extend(fingerprints(URLS[:5]))
    rules = [("/a", "1 day"), ("/b", "1 hour")]
    done = shop("metrics", BLOOM_RECRAWL_RULES=rules)
    found = parse(done.out)
    assert done.code == 0
    assert of(found)["urls"] == 20
    assert of(found, f"{KEY}:1-day", "1-day")["urls"] == 5
    assert of(found, f"{KEY}:1-hour", "1-hour") == {"exists": 0}
    only = parse(shop("metrics", "--window", "1-day", BLOOM_RECRAWL_RULES=rules).out)
    assert of(only, f"{KEY}:1-day", "1-day")["urls"] == 5
    assert of(only) == {}


def test_without_the_extra_it_says_what_to_install(
    shop: Call, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    done = shop("metrics")
    assert (done.code, done.out) == (2, "")
    assert 'pip install "scrapy-bloom[metrics]"' in done.err
