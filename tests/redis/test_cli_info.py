"""``scrapy bloom info``, ``list``, ``plan`` and ``check``: what they say of filters and URLs."""

import json
import time
from dataclasses import asdict
from itertools import count, islice
from typing import Any

import pytest
import redis
from redis import Redis
from support.cli import KEY, URLS, Call, fields_of, fingerprints, give, register, unchanged
from support.servers import Server

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.forecast import forecast
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.ledger import pack
from scrapy_bloom.bloom.model.schedule import parse_span
from scrapy_bloom.bloom.options import DEFAULTS, FilterOptions
from scrapy_bloom.cli import check
from scrapy_bloom.fingerprinter import versioned


def test_info_is_that_of_the_library_and_changes_nothing(shop: Call, client: Redis) -> None:
    bloom = BloomFilter(client, KEY, capacity=1000, window="3 months", max_memory=1 << 20)
    bloom.extend(fingerprints(URLS))
    # Settings that differ from the stored ones are for crawls to apply.
    settings = {"BLOOM_CAPACITY": 77, "BLOOM_RECRAWL_AFTER": "1 year", "BLOOM_BLOCKS": 5}
    with unchanged(client):
        done, text = shop("info", "--json", **settings), shop("info", **settings)
    assert (done.code, done.err) == (0, "")
    (document,) = done.json["filters"]
    assert fields_of(document) == asdict(bloom.info()) | {"now": document["now"]}
    generation = document["generations"][0]
    assert generation["opened_utc"].endswith("Z")
    assert generation["fill_ratio"] == pytest.approx(20 / generation["capacity"])
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
    bloom = BloomFilter(client, KEY, capacity=1000, window=window, run="1", counting=True)
    bloom.open()
    BloomFilter(client, KEY, capacity=10_000_000, error_rate=1e-9, window=window, run="1").open()
    info = bloom.info()
    text = " ".join(shop("info").out.split())
    assert "4-bit counters, 4 times the memory of bits" in text
    assert f"room for {info.generations[0].capacity:,} in the active generation" in text
    new = "new sizes 10,000,000 URLs a generation, an error rate of 1e-09: from the next "
    assert new + since in text
    if window != "never":
        bloom.rotate()
        assert "made for 10,000,000 a generation" in " ".join(shop("info").out.split())


def test_info_measures(shop: Call, client: Redis) -> None:
    bloom = BloomFilter(client, KEY, capacity=500, error_rate=0.5, growth=0)
    bloom.extend(f"{number}" for number in range(500))
    measured = shop("info", "--json", "--measure", "2_000").json["filters"][0]["measured"]
    assert measured["probes"] == 2_000
    assert 0 < measured["low"] < measured["rate"] == measured["seen"] / 2_000 < measured["high"] < 1
    text = " ".join(shop("info", "--measure", "500").out.split())
    assert "of all new URLs are hidden now" in text


def test_no_command_shows_seeds(shop: Call, client: Redis) -> None:
    """Only a file of ``export`` has them."""
    bloom = BloomFilter(client, KEY)
    bloom.extend(fingerprints(URLS))
    for settings in ({}, {"BLOOM_SEEDS": [*bloom.seeds]}):
        for command in ("info --json", "info --measure 10", "plan", "plan --json", "rotate --yes"):
            done = shop(*command.split(), **settings)
            assert done.out or done.err
            assert not any(str(seed) in done.out + done.err for seed in bloom.seeds)


def test_the_ledger_is_shown_if_there_is_one(shop: Call, client: Redis) -> None:
    BloomFilter(client, KEY, window="6 months").open()
    assert shop("info", "--json").json["filters"][0]["ledger"] is None
    assert "ledger" not in shop("info").out
    client.rpush(Keys(KEY).entries(3), *['1800000000 shop {"url":"https://example.com/"}'] * 9)
    client.zadd(Keys(KEY).ledger(0), {"shop 1": 1})
    client.hset(Keys(KEY).chunks(0), "shop 1", pack(["{}"] * 1_024))
    with unchanged(client):
        (document,) = shop("info", "--json").json["filters"]
        text = shop("info").out
    assert (document["ledger"]["pages"], document["ledger"]["due_pages"]) == (1_033, 1_024)
    assert "about 1,033 pages in " in text
    assert "1,024 of them due" in text


def test_all_filters_are_listed_and_nothing_changes(shop: Call, client: Redis) -> None:
    """What only looks like parts of filters is skipped."""
    assert shop("list").out.startswith("0 filters on ")
    first = BloomFilter(client, "shop:bloom", capacity=1000, window="3 months")
    first.extend(fingerprints(URLS))
    BloomFilter(client, "shop:bloom:news", window="2 runs", run="1").open()
    BloomFilter(client, "other project:\u00fc", blocks=2).open()
    client.delete("{other project:\u00fc:0}:header")
    client.hset("{a:0}:header", "id", "x")
    client.set("{b:0}:header", "a string")
    client.zadd("{d:3}:ring", {"a zset": 1})
    client.hset("{e{f:0}:header", "id", "x")
    with unchanged(client):
        done, text = shop("list", "--json"), shop("list")
    assert (done.code, done.err) == (0, "")
    shop_, news = done.json["filters"]
    assert (shop_["key"], news["key"]) == ("shop:bloom", "shop:bloom:news")
    assert done.json["skipped"] == 5, "one has lost its header"
    assert (shop_["count"], shop_["workers"]["alive"]) == (20, 0)
    assert shop_["closes"] == first.info().generations[0].closes
    lines = text.out.splitlines()
    assert lines[0].startswith("2 filters on unix://")
    assert lines[2].split() == [
        *("window", "generations", "capacity", "URLs", "fill", "memory", "rotates", "(UTC)"),
        *("last", "worker", "key"),
    ]
    assert lines[3].split()[:5] == ["3", "months", "1", "1,000", "20"]
    assert "by runs" in lines[4]
    assert "5 with keys like a filter's are none, or cannot be read: skipped" in text.out


def test_workers(shop: Call, client: Redis) -> None:
    bloom = BloomFilter(client, "k")
    bloom.open()
    for _ in range(2):
        register(bloom, 60)
    (found,) = shop("list", "--json").json["filters"]
    assert found["workers"]["alive"] == 2
    assert found["workers"]["until"] > found["now"]
    assert "2 alive" in shop("list").out
    for member, until in zip(client.zrange("{k:0}:heartbeats", 0, -1), (10**9, 0), strict=True):
        client.execute_command("ZADD", "{k:0}:heartbeats", until, member)
    assert "2001-09-09 01:46" in shop("list").out


def test_of_a_cluster_all_primaries_are_read(
    call: Call, cluster: redis.RedisCluster, nodes: list[Server]
) -> None:
    names = [f"f{number}" for number in range(8)]
    for name in names:
        BloomFilter(cluster, name, blocks=1).open()
    keys = [node.client().dbsize() for node in nodes]
    assert all(keys), "each node has some"
    url = f"redis+cluster://127.0.0.1:{nodes[1].port}"
    done = call("list", "--json", BLOOM_REDIS_URL=url)
    assert [found["key"] for found in done.json["filters"]] == names


def wanted(**parameters: Any) -> dict[str, Any]:
    asked = FilterOptions(**parameters)
    return asdict(forecast(asked.new_header(), asked.config(DEFAULTS)))


def test_plan_takes_the_projects_settings_and_options_override_them(call: Call) -> None:
    project = {"BLOOM_CAPACITY": 5000, "BLOOM_RECRAWL_AFTER": "5 months", "BLOOM_BLOCKS": "4"}
    document = call("plan", "--json", **project).json
    expected = wanted(capacity=5000, window=parse_span("", "5 months"), blocks=4)
    assert document == json.loads(json.dumps(expected))
    document = call(
        *("plan", "--json", "--capacity", "1e4", "--recrawl-after", "6 weeks"),
        *("--rotate-every", "1 week", "--blocks", "2", "--seeds", "7", "--max-memory", "1_000_000"),
        **project,
    ).json
    assert document["recrawl"] == "5 to 6 weeks later"
    names = ("capacity", "max_memory", "blocks", "num_hashes", "generations")
    assert [document[name] for name in names] == [10_000, 1_000_000, 2, 7, 6]
    assert "4-bit counters, 4 times the memory of bits" in call("plan", "--counting", "1").out


@pytest.mark.parametrize("ring", ["write-newest", "write-all"])
def test_growth_is_what_a_real_filter_does(client: redis.Redis, ring: str) -> None:
    parameters: dict[str, Any] = {"capacity": 250, "error_rate": 1e-2, "blocks": 1, "ring": ring}
    load = wanted(**parameters, window=parse_span("", "3 runs"))["loads"][2]
    items = map(str, count())
    for run in range(3):
        bloom = BloomFilter(client, "k", **parameters, window="3 runs", run=str(run))
        share = 750 // (3 if ring == "write-all" else 1)
        while share > 0:
            share -= bloom.extend(islice(items, share))
    info = bloom.info()
    assert load["memory"] >= info.memory >= 0.5 * load["memory"]
    assert info.estimated_error_rate == pytest.approx(load["error_rate"], rel=0.2)
    bits = 8 * load["memory"] / (750 * (1 if ring == "write-all" else 3))
    assert load["bits_per_url"] == pytest.approx(bits)


def test_growth_ends_at_the_limits() -> None:
    for limit in ({"growth": 0}, {"max_memory": 20_000_000}):
        loads = wanted(window=parse_span("", "3 months"), **limit)["loads"]
        assert [load["has_room"] for load in loads] == [True, False, False]
        assert loads[2]["memory"] == limit.get("max_memory", loads[0]["memory"])


def test_capacities_for_sites(call: Call) -> None:
    for options, in_all, capacity in (
        ("--urls 1000 --new-a-month 100", 2200, 2200),
        ("--urls 1234 --recrawl-after never", 1234, 1300),
        ("--urls 6000 --recrawl-after 3runs", 6000, 2000),
        ("--urls 1000 --new-a-month 100 --recrawl-after 3months --growth 0", 1300, 1100),
        ("--urls 1000 --new-a-month 100 --recrawl-after 3months --ring write-all", 1300, 1300),
        ("--urls 99 --new-a-month 10000 --recrawl-after 36h", 592, 300),
    ):
        document = call("plan", "--json", *options.split()).json
        assert (document["site"]["in_all"], document["capacity"]) == (in_all, capacity)
    text = call("plan", "--urls", "10M", "--new-a-month", "500k", "--recrawl-after", "6 months").out
    assert "URLs in all  13,000,000 in 6 months" in text
    assert "BLOOM_CAPACITY = 2_200_000 (URLs a generation)" in text
    done = call("plan", "--urls", "3000", "--recrawl-after", "3 runs", "--new-a-month=9")
    assert "--new-a-month needs a window of time" in done.err


# -- check --


def test_check_of_two_generations(shop: Call, client: Redis) -> None:
    for run, urls in ("a", URLS[:2]), ("b", URLS[2:4]):
        bloom = BloomFilter(client, KEY, window="3 runs", run=run)
        bloom.extend(fingerprints(urls))
    asked = [URLS[0], URLS[9], URLS[3]]
    with unchanged(client):
        done, text = shop("check", "--json", *asked), shop("check", *asked)
    assert done.code == 1
    answers = done.json["answers"]
    assert [answer.pop("url") for answer in answers] == asked
    assert {answer.pop("name") for answer in answers} == {"default"}
    items = fingerprints(asked)
    assert [fields_of(answer) for answer in answers] == [asdict(bloom.find(i)) for i in items]
    assert [line.split()[0] for line in text.out.splitlines()[1:]] == ["seen", "new", "seen", "2"]
    assert "in a later run" in text.out
    assert shop("check", *URLS[:4]).code == 0


def test_check_of_versions(shop: Call, client: Redis) -> None:
    """Of URLs and keys; an item of the library has none."""
    urls, key = fingerprints(URLS[:2]), b"bloom_key:sku-1"
    BloomFilter(client, KEY).add_many(
        [urls[0], versioned(urls[0], b"1"), urls[1], versioned(urls[1], b"2"), key, "tea"]
    )
    asked = ["check", *URLS[:2], "--bloom-key", "sku-1", "--item", "tea", "--json"]
    for version, seen in (
        ([], [True, True, True, True]),
        (["--bloom-version", "1"], [False, True, True, False]),
        (["--bloom-version", "2"], [False, True, False, True]),
    ):
        answers = shop(*asked, *version).json["answers"]
        assert [answer["seen"] for answer in answers] == seen, version


def test_check_reads_any_number_of_urls_from_stdin(
    shop: Call, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other lines are skipped. What is a URL: unit/test_lines.py."""
    monkeypatch.setattr(check, "BATCH", 8)
    BloomFilter(client, KEY).extend(fingerprints(URLS))
    urls = [*URLS, "https://example.com/new"]
    give(monkeypatch, "\n\n".join([*urls, "no url", "\0", f"{URLS[0]}\r{URLS[1]}"]).encode())
    done = shop("check", "-", "--json")
    assert done.code == 1
    assert [answer["url"] for answer in done.json["answers"]] == urls
    assert sum(answer["seen"] for answer in done.json["answers"]) == 20
    assert len(done.err.splitlines()) == 3
    assert "\r" not in done.err
    give(monkeypatch, b"")
    done = shop("check", "-", "--json")
    assert (done.code, done.json["answers"]) == (0, [])
    for arguments, says in ([], "give URLs to check"), ([*URLS[:1], "nonsense"], "is no URL"):
        shop("check", *arguments).refused(says)


def test_check_follows_the_rules_of_windows(shop: Call, client: Redis) -> None:
    BloomFilter(client, KEY).extend(fingerprints(URLS[:1]))
    BloomFilter(client, f"{KEY}:1-day", window="1 day").extend(fingerprints(URLS[1:2]))
    settings = {"BLOOM_RECRAWL_RULES": [["/1$", "1 day"], ["/2$", "run"], [{"depth": 0}, "run"]]}
    done = shop("check", *URLS[:3], "--json", **settings)
    assert [(a["name"], a["seen"], a["window"]) for a in done.json["answers"]] == [
        ("default", True, None),
        ("1-day", True, "1 day"),
        ("run", False, "run"),
    ]
    assert shop("check", URLS[0], "--window", "1-day", **settings).code == 1
    assert shop("check", URLS[1], "--key", KEY, **settings).code == 1


def test_check_knows_what_is_claimed_and_what_has_failed(shop: Call, client: Redis) -> None:
    bloom = BloomFilter(client, KEY)
    seen, claimed, failed = fingerprints(URLS[:3])
    bloom.add(seen)
    due = int(time.time()) + 3_600
    for item, claim in (
        (claimed, f"w0123456789abcdef nonce {due - 7_200} 0 {{}}"),
        (failed, f"-01234567 nonce {due} 2 {{}}"),
    ):
        key = Keys(KEY).claims(bloom.session.hasher.block(item))
        client.hset(key, field_of(item), claim)
    done = shop("check", "--json", *URLS[:4])
    assert done.code == 1
    answers = done.json["answers"]
    states = ["seen", "claimed", "failed", "new"]
    assert [answer["state"] for answer in answers] == states
    assert [answer["seen"] for answer in answers] == [True, False, False, False]
    assert answers[1]["claimed"] == due - 7_200
    assert (answers[2]["due"], answers[2]["attempts"]) == (due, 2)
    text = shop("check", *URLS[:4]).out
    assert [line.split()[0] for line in text.splitlines()[1:5]] == states
    assert f"{answers[2]['due_utc'][:10]} {answers[2]['due_utc'][11:16]}" in text
