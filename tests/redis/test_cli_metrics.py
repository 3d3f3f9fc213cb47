"""``scrapy bloom metrics``: the gauges of filters, as ``info`` knows them."""

import sys

import pytest
import redis
from support.cli import KEY, URLS, Call, claim, everything, fail, fingerprints, register
from support.prometheus import Values, parse

from scrapy_bloom import BloomFilter
from scrapy_bloom.cli.monitor import GAUGES
from scrapy_bloom.cli.server import PAGE
from scrapy_bloom.crawl import workers


def of(values: Values, key: str = KEY, window: str = "default") -> dict[str, float]:
    """Return the values of a filter, by the short names of the gauges."""
    labels = (("key", key), ("window", window))
    prefix = "scrapy_bloom_filter_"
    return {name.removeprefix(prefix): v for (name, pairs), v in values.items() if pairs == labels}


@pytest.mark.each_server
def test_the_gauges_are_those_of_info_and_nothing_changes(shop: Call, client: redis.Redis) -> None:
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


def test_what_is_not_counted_or_never_happens_has_no_value(shop: Call, client: redis.Redis) -> None:
    BloomFilter(client, KEY).open()
    found = of(parse(shop("metrics").out))
    absent = {"failed_claims", "next_rotation_timestamp_seconds"}
    assert set(found) == {*GAUGES} - absent
    assert (found["workers"], found["claims"]) == (0, 0)


def test_each_window_has_its_own_values(shop: Call, client: redis.Redis) -> None:
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
    shop: Call, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    done = shop("metrics")
    assert (done.code, done.out) == (2, "")
    assert 'pip install "scrapy-bloom[metrics]"' in done.err
