"""``scrapy bloom info``: what it says of filters, blocks and generations."""

from dataclasses import asdict
from typing import Any

import pytest
from redis import Redis
from support.cli import KEY, URLS, Call, everything, fields_of, fingerprints

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.ledger import pack


def test_info_is_that_of_the_library_and_changes_nothing(shop: Call, client: Redis) -> None:
    bloom = BloomFilter(client, KEY, capacity=1000, window="3 months", max_memory=1 << 20)
    bloom.extend(fingerprints(URLS))
    expected = asdict(bloom.info())
    before = everything(client)
    # Settings that differ from the stored ones are for crawls to apply.
    settings = {"BLOOM_CAPACITY": 77, "BLOOM_RECRAWL_AFTER": "1 year", "BLOOM_BLOCKS": 5}
    done = shop("info", "--json", **settings)
    text = shop("info", **settings)
    assert everything(client) == before
    assert (done.code, done.err) == (0, "")
    (document,) = done.json["filters"]
    document["now"] = expected["now"]
    assert fields_of(document) == expected
    generation = document["generations"][0]
    assert generation["opened_utc"].endswith("Z")
    assert generation["fill_ratio"] == pytest.approx(20 / generation["capacity"])
    assert text.code == 0
    for part in (
        KEY,
        "3 months, rotated every 1 month",
        "20 (made for 1,000 a generation, 3,000 in all)",
        "1.0 MiB",
    ):
        assert part in text.out


@pytest.mark.parametrize(
    ("window", "since"),
    [
        ("3 months", "generation on ("),
        ("2 runs", "generation on (with the next run)"),
        ("never", "layer on, when those there are full"),
    ],
)
def test_info_says_from_when_new_sizes_hold(
    shop: Call, client: Redis, window: str, since: str
) -> None:
    """And what the layers are that are there, which new sizes do not change."""
    settings: dict[str, Any] = {"window": window, "run": "1"}
    bloom = BloomFilter(client, KEY, capacity=1000, **settings)
    bloom.extend(fingerprints(URLS))
    sizes: dict[str, Any] = {"capacity": 10_000_000, "error_rate": 1e-9}
    BloomFilter(client, KEY, **sizes, **settings).open()
    info = bloom.info()
    assert not info.has_configured_sizes
    text = " ".join(shop("info").out.split())
    assert f"room for {info.generations[0].capacity:,} in the active generation" in text
    new = "new sizes 10,000,000 URLs a generation, an error rate of 1e-09: from the next "
    assert new + since in text
    if window != "never":
        bloom.rotate()
        assert bloom.info().has_configured_sizes
        assert "made for 10,000,000 a generation" in " ".join(shop("info").out.split())


def test_info_measures(shop: Call, client: Redis) -> None:
    assert shop("info", "--measure").code == 1
    bloom = BloomFilter(client, KEY, capacity=500, error_rate=0.5, growth=0)
    bloom.extend(f"{number}" for number in range(500))
    before = everything(client)
    (document,) = shop("info", "--json", "--measure", "2_000").json["filters"]
    measured = document["measured"]
    assert measured["probes"] == 2_000
    assert 0 < measured["low"] < measured["rate"] == measured["seen"] / 2_000 < measured["high"] < 1
    assert "of all new URLs are hidden now" in " ".join(
        shop("info", "--measure", "500").out.split()
    )
    assert everything(client) == before


def test_of_a_counting_filter_memory_is_told(shop: Call, client: Redis) -> None:
    BloomFilter(client, KEY, capacity=1000, counting=True).extend(fingerprints(URLS))
    for text in (shop("plan", "--capacity", "1000", "--counting", "1").out, shop("info").out):
        assert "4-bit counters, 4 times the memory of bits" in text
    (document,) = shop("info", "--json").json["filters"]
    assert document["counting"]
    assert "counter" not in shop("plan").out
    assert "write-all" in shop("plan", "--counting", "1", "--ring", "write-all").err


@pytest.mark.parametrize("is_listed", [True, False])
def test_no_command_shows_seeds(shop: Call, client: Redis, is_listed: bool) -> None:
    """Only a file of ``export`` has them."""
    bloom = BloomFilter(client, KEY)
    bloom.extend(fingerprints(URLS))
    settings = {"BLOOM_SEEDS": [*bloom.seeds]} if is_listed else {}
    for command in ("info", "info --measure 10", "plan", f"check {URLS[0]}", "pending", "rotate"):
        for form in ([], ["--json"]):
            done = shop(*command.split(), *form, *(["--yes"] * (command == "rotate")), **settings)
            assert done.out or done.err
            assert not any(str(seed) in done.out + done.err for seed in bloom.seeds)


def test_the_ledger_is_shown_if_there_is_one(shop: Call, client: Redis) -> None:
    BloomFilter(client, KEY, window="6 months").open()
    assert shop("info", "--json").json["filters"][0]["ledger"] is None
    assert "ledger" not in shop("info").out
    client.rpush(Keys(KEY).entries(3), *['1800000000 shop {"url":"https://example.com/"}'] * 9)
    client.zadd(Keys(KEY).ledger(0), {"shop 1": 1})
    client.hset(Keys(KEY).chunks(0), "shop 1", pack(["{}"] * 1_024))
    before = everything(client)
    (document,) = shop("info", "--json").json["filters"]
    assert document["ledger"].keys() == {"pages", "due_pages", "memory"}
    assert (document["ledger"]["pages"], document["ledger"]["due_pages"]) == (1_033, 1_024)
    assert "about 1,033 pages in " in shop("info").out
    assert "1,024 of them due" in shop("info").out
    assert everything(client) == before
