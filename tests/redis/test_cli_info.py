"""``scrapy bloom info``: what it says of filters, blocks and generations."""

import re
from dataclasses import asdict
from typing import Any

import pytest
import redis
from support.cli import KEY, URLS, Call, everything, fields_of, fingerprints

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.ledger import pack


def test_info_is_that_of_the_library_and_changes_nothing(shop: Call, client: redis.Redis) -> None:
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


def test_info_says_how_settings_differ_and_what_a_crawl_does(
    shop: Call, client: redis.Redis
) -> None:
    def differs(**given: Any) -> Any:
        settings = {"BLOOM_RECRAWL_AFTER": "3 months", "BLOOM_CAPACITY": "1K"} | given
        (document,) = shop("info", "--json", **settings).json["filters"]
        found = document["differs"]
        text = " ".join(shop("info", **settings).out.split())
        assert (found is None) or all(found[part] in text for part in found)
        return found

    BloomFilter(client, KEY, capacity=1000, window="3 months").open()
    assert differs() is None
    times = differs(BLOOM_RECRAWL_AFTER="1 year")
    assert "BLOOM_RECRAWL_AFTER = 1 year (stored: 3 months)" in times["problem"]
    assert "nothing is crawled again earlier than before" in times["why"]
    assert times["remedy"] == 'If that is not meant, set BLOOM_RECRAWL_AFTER = "3 months"'
    sizes = differs(BLOOM_CAPACITY=77, BLOOM_MAX_MEMORY="1 GiB")
    assert "BLOOM_CAPACITY = 77 (stored: 1,000)" in sizes["problem"]
    assert "times" not in sizes["why"]
    assert sizes["remedy"].endswith("set BLOOM_CAPACITY = 1000, BLOOM_MAX_MEMORY = 0")
    never = differs(BLOOM_RECRAWL_AFTER="never")
    assert "BLOOM_RECRAWL_AFTER = never (stored: 3 months)" in never["problem"]
    # What is unset has its default, as in a crawl.
    assert differs(BLOOM_RECRAWL_AFTER=None, BLOOM_CAPACITY=None)["problem"] == (
        "settings differ from those of the stored filter: BLOOM_RECRAWL_AFTER = never (stored: 3 "
        "months), BLOOM_ROTATE_EVERY = never (stored: 1 month), BLOOM_CAPACITY = 1,000,000 "
        "(stored: 1,000)"
    )
    for shorter in ("1 day", "2 months", "3 runs"):
        refused = differs(BLOOM_RECRAWL_AFTER=shorter)
        assert f'BLOOM_RECRAWL_AFTER = "{shorter}"' in refused["problem"]
        assert refused["why"] == "a crawl refuses to open the filter"
        assert refused["remedy"] == (
            'Set BLOOM_RECRAWL_AFTER = "3 months" and BLOOM_ROTATE_EVERY = "1 month" to use the '
            "filter as it is, or set another BLOOM_KEY for a new one, or run scrapy bloom settings "
            "--apply with these settings to forget earlier"
        )
    fixed = differs(BLOOM_BLOCKS=5, BLOOM_CAPACITY=77)
    assert fixed["why"] == "a crawl refuses to open the filter"
    assert fixed["remedy"].startswith("Remove BLOOM_BLOCKS to use the filter as it is")


@pytest.mark.parametrize("window", ["3 months", "never", "2 runs"])
def test_info_says_from_when_new_sizes_hold(shop: Call, client: redis.Redis, window: str) -> None:
    """And what the layers are that are there, which new sizes do not change."""
    settings: dict[str, Any] = {"window": window, "run": "1"}
    bloom = BloomFilter(client, KEY, capacity=1000, **settings)
    bloom.extend(fingerprints(URLS))
    before = bloom.info()
    told: list[str] = []
    BloomFilter(
        client,
        KEY,
        capacity=10_000_000,
        error_rate=1e-9,
        notify=lambda event, _: told.append(event),
        **settings,
    ).open()
    assert told == ["changed"]
    after = bloom.info()
    assert (before.has_configured_sizes, after.has_configured_sizes) == (True, False)
    assert after.bits_per_url > 20 > 8 * after.memory / after.capacity
    text = " ".join(shop("info").out.split())
    assert f"room for {after.generations[0].capacity:,} in the active generation" in text
    closes = shop("info", "--json").json["filters"][0]["generations"][0]["closes_utc"]
    since = {
        "3 months": f"generation on ({(closes or '')[:10]} 00:00)",
        "2 runs": "generation on (with the next run)",
        "never": "layer on, when those there are full",
    }
    assert (
        "new sizes 10,000,000 URLs a generation, an error rate of 1e-09: from the next "
        f"{since[window]}"
    ) in text
    assert "asked for" not in text
    if window != "never":
        bloom.rotate()
        assert bloom.info().has_configured_sizes
        assert "made for 10,000,000 a generation" in " ".join(shop("info").out.split())


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


def test_the_ledger_is_shown_if_there_is_one(shop: Call, client: redis.Redis) -> None:
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
