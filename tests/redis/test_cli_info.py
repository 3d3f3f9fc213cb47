"""``scrapy bloom info``: what it says of filters, blocks and generations."""

import re
from dataclasses import asdict
from typing import Any

import pytest
import redis
from support.cli import KEY, URLS, Call, everything, fields_of, fingerprints

from scrapy_bloom import BloomFilter


def test_info_is_that_of_the_library_and_changes_nothing(shop: Call, client: redis.Redis) -> None:
    bloom = BloomFilter(client, KEY, capacity=1000, window="3 months", max_memory=1 << 20)
    bloom.extend(fingerprints(URLS))
    expected = asdict(bloom.info())
    before = everything(client)
    # Settings that differ from the stored ones are for crawls to apply.
    settings = {"BLOOM_CAPACITY": 77, "BLOOM_RECRAWL_AFTER": "1 day", "BLOOM_BLOCKS": 5}
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


def test_info_says_how_settings_differ_and_what_a_crawl_does(
    shop: Call, client: redis.Redis
) -> None:
    def differs(**settings: Any) -> Any:
        (document,) = shop("info", "--json", **settings).json["filters"]
        found = document["differs"]
        text = " ".join(shop("info", **settings).out.split())
        assert (found is None) or all(found[part] in text for part in found)
        return found

    BloomFilter(client, KEY, capacity=1000, window="3 months").open()
    assert differs() is None
    assert differs(BLOOM_RECRAWL_AFTER="3 months", BLOOM_CAPACITY="1K") is None
    times = differs(BLOOM_RECRAWL_AFTER="1 day")
    assert "BLOOM_RECRAWL_AFTER = 1 day (stored: 3 months)" in times["problem"]
    assert "BLOOM_ROTATE_EVERY = 12 hours (stored: 1 month)" in times["problem"]
    assert "what is older than the new window is crawled again" in times["why"]
    assert "(then what is stored holds)" in times["remedy"]
    sizes = differs(BLOOM_CAPACITY=77)
    assert "BLOOM_CAPACITY = 77 (stored: 1000)" in sizes["problem"]
    assert "times" not in sizes["why"]
    never = differs(BLOOM_RECRAWL_AFTER="never")
    assert "BLOOM_RECRAWL_AFTER = never (stored: 3 months)" in never["problem"]
    fixed = differs(BLOOM_BLOCKS=5, BLOOM_CAPACITY=77)
    assert fixed["why"] == "a crawl refuses to open the filter"
    assert fixed["remedy"].startswith("Remove BLOOM_BLOCKS to use the filter as it is")
    orphan = differs(BLOOM_ROTATE_EVERY="2 months")
    assert orphan["why"] == "a crawl refuses to open the filter"


def test_info_measures(shop: Call, client: redis.Redis) -> None:
    bloom = BloomFilter(client, KEY, capacity=500, error_rate=0.5, growth=0)
    bloom.extend(f"{number}" for number in range(500))
    before = everything(client)
    (document,) = shop("info", "--json", "--measure", "2_000").json["filters"]
    measured = document["measured"]
    assert measured["probes"] == 2_000
    assert 0 < measured["low"] < measured["rate"] == measured["seen"] / 2_000 < measured["high"] < 1
    text = " ".join(shop("info", "--measure").out.split())
    assert "of 100,000 random fingerprints are seen: 0." in text
    assert "of all new URLs are hidden now" in text
    assert everything(client) == before
    assert "measured" not in shop("info", "--json").json["filters"][0]


@pytest.mark.parametrize("probes", ["0", "-1", "many", "1.5"])
def test_what_is_measured_is_a_number(shop: Call, client: redis.Redis, probes: str) -> None:
    BloomFilter(client, KEY).open()
    done = shop("info", f"--measure={probes}")
    assert (done.code, done.out) == (2, "")
    assert "--measure is fingerprints to test, a whole number from 1" in done.err


def test_without_a_filter_nothing_is_measured(shop: Call, client: redis.Redis) -> None:
    assert shop("info", "--measure").code == 1
    assert client.dbsize() == 0


def test_info_says_what_is_lost(shop: Call, client: redis.Redis) -> None:
    BloomFilter(client, KEY, blocks=4).open()
    client.delete(f"{{{KEY}:2}}:ring")
    assert "1 (evicted or deleted)" in shop("info").out
    assert shop("info", "--json").json["filters"][0]["lost_blocks"] == 1


def test_info_where_runs_tell_the_time(shop: Call, client: redis.Redis) -> None:
    for run_ in ("a", "b", "c"):
        BloomFilter(client, KEY, window="3 runs", run=run_).open()
    rows = [line for line in shop("info").out.splitlines() if re.match(r"20\d\d-", line)]
    assert [re.split("  +", row.strip())[1:3] for row in rows] == [
        ["with the next run", "3 runs from now"],
        ["closed", "2 runs from now"],
        ["closed", "with the next run"],
    ]


def test_of_a_counting_filter_memory_and_lost_discards_are_told(
    shop: Call, client: redis.Redis
) -> None:
    plan = shop("plan", "--capacity", "1000", "--counting", "true").out
    planned, bits = (
        shop("plan", "--capacity", "1000", "--counting", counting, "--json").json
        for counting in ("true", "false")
    )
    assert planned["opened_memory"] == pytest.approx(4 * bits["opened_memory"], rel=0.01)
    assert "memory" not in planned
    load = planned["loads"][0]
    assert load["error_rate"] < load["lost_by_discard"] < 20 * load["error_rate"]
    assert 0 < load["saturated"] < 1e-6
    BloomFilter(client, KEY, capacity=1000, counting=True).extend(fingerprints(URLS))
    for text in (plan, shop("info").out):
        assert "4-bit counters, 4 times the memory of bits" in text
        assert "one of an absent URL hits others at the error rate" in " ".join(text.split())
    (document,) = shop("info", "--json").json["filters"]
    assert document["counting"]
    assert document["lost_by_discard"] > document["estimated_error_rate"] > 0
    assert "counter" not in shop("plan").out
    assert "write-all" in shop("plan", "--counting", "1", "--ring", "write-all").err


def test_info_of_a_filter_that_never_forgets(shop: Call, client: redis.Redis) -> None:
    BloomFilter(client, KEY, growth=0).open()
    done = shop("info")
    assert "never forgets" in done.out
    assert "grows         no" in done.out


@pytest.mark.parametrize("is_listed", [True, False])
def test_no_command_shows_seeds(shop: Call, client: redis.Redis, is_listed: bool) -> None:
    """Only a file of ``export`` has them."""
    bloom = BloomFilter(client, KEY)
    bloom.extend(fingerprints(URLS))
    settings = {"BLOOM_SEEDS": [*bloom.seeds]} if is_listed else {}
    for command in ("info", "info --measure 10", "plan", f"check {URLS[0]}", "pending", "rotate"):
        for form in ([], ["--json"]):
            done = shop(*command.split(), *form, *(["--yes"] * (command == "rotate")), **settings)
            assert done.out or done.err
            assert not any(str(seed) in done.out + done.err for seed in bloom.seeds)
