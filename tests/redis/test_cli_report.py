"""``scrapy bloom report``: its page has the numbers of ``scrapy bloom info --json``."""

from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import redis
from support.cli import KEY, SECRET, URLS, Call, claim, everything, fail, fingerprints, register

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.keys import Keys
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


def test_numbers_are_those_of_info(shop: Call, client: redis.Redis) -> None:
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


def test_claims_and_workers_are_counted(shop: Call, client: redis.Redis) -> None:
    bloom = BloomFilter(client, KEY, blocks=3)
    bloom.open()
    worker = register(bloom, process=Process(f"host{HOSTILE}", 4711, "another boot", 1))
    claim(bloom, worker, ["1", "2", "3"], "")
    claim(bloom, "x", ["4"], "")
    fail(bloom, ["5"], 0, "")
    fail(bloom, ["6"], 600, "")
    page = report(shop)
    names = ("claims", "failed", "due", "worker_claims", "elsewhere")
    assert [page.numbers[name] for name in names] == [[6], [2], [1], [3], [1]]
    assert f"host{HOSTILE}:4711" in page.text
    assert "alive" in page.text
    assert page.tags["script"] == 0


def test_failed_and_gone_pages_are_listed(shop: Call, client: redis.Redis) -> None:
    bloom = BloomFilter(client, KEY, blocks=3)
    bloom.open()
    fail(bloom, [f"https://u:{SECRET}@example.com/{number}" for number in range(25)], 600)
    note = "1800000000 1800000100 2 !HTTP+404 https://example.com/gone"
    client.hset(Keys(KEY).missing(1), mapping={"ab": note, "ac": note.replace(" 2 ", " 1 ")})
    text = report(shop).text
    assert "Failed pages" in text
    assert "the first of 25: scrapy bloom failed lists all" in text
    assert "HTTP 503https://***@example.com/" in text
    assert SECRET not in text
    assert text.count("https://example.com/gone") == 1


@pytest.mark.parametrize("options", [["--html", "no/such/page.html"], ["--html", "-", "--json"]])
def test_a_file_that_cannot_be_written(shop: Call, client: redis.Redis, options: list[str]) -> None:
    BloomFilter(client, KEY).open()
    done = shop("report", *options)
    assert (done.code, done.out) == (2, "")
    assert "--html" in done.err
    assert "name a file" in done.err
