"""``scrapy bloom rotate``, ``clear``, ``delete``, ``settings``: what they say, ask and change."""

import io
import sys
from dataclasses import asdict

import pytest
from redis import Redis
from support.cli import KEY, URLS, Call, fields_of, fingerprints, unchanged
from support.servers import Server, contents

from scrapy_bloom import BloomFilter, FilterMismatchError
from scrapy_bloom.bloom.options import EXTEND, KEEP
from scrapy_bloom.bloom.protocol.claim_protocol import claim


def test_rotate_says_what_it_forgets_and_forgets_that(shop: Call, client: Redis) -> None:
    bloom = BloomFilter(client, KEY, window="2 months")
    bloom.extend(fingerprints(URLS))
    shop("rotate").refused("Rotate 'shop:bloom'", "forgets 0 of its 20 URLs", "add --yes")
    assert len(bloom.info().generations) == 1
    bloom.rotate()
    bloom.add("x")
    assert "forgets 20 of its 21 URLs" in shop("rotate").err
    done = shop("rotate", "--yes", "--json")
    assert (done.code, done.err, done.json["urls_forgotten"]) == (0, "", 20)
    assert fields_of(done.json) == asdict(bloom.info()) | {"now": done.json["now"]}
    assert "1 URL forgotten, 0 remembered" in shop("rotate", "-y").out


def test_rotate_needs_a_window(shop: Call, client: Redis) -> None:
    BloomFilter(client, KEY).open()
    with unchanged(client):
        done = shop("rotate", "--yes", BLOOM_RECRAWL_AFTER="3 months")
        done.refused("stored without a window")


def test_clear(shop: Call, client: Redis) -> None:
    bloom = BloomFilter(client, KEY, window="2 months")
    bloom.extend(fingerprints(URLS))
    bloom.run(lambda session: claim(session, [b"claimed"], ["{}"], "me", "nonce"))
    with unchanged(client):
        shop("clear").refused("forgets its 20 URLs and 1 claim? There is no terminal to ask at")
    done = shop("clear", "--yes", "--json")
    assert (done.code, done.err, done.json["urls_forgotten"]) == (0, "", 20)
    assert done.json["count"] == len(bloom) == 0
    assert client.keys("*:claims") == []
    assert "0 URLs forgotten, 0 remembered" in shop("clear", "-y").out


@pytest.mark.parametrize(("answer", "code"), [("YES\n", 0), ("\n", 1), ("", 1)])
def test_confirmation(
    shop: Call, client: Redis, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    bloom = BloomFilter(client, KEY, window="2 months")
    bloom.add("x")
    stdin = io.StringIO(answer)
    monkeypatch.setattr(stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", stdin)
    done = shop("clear")
    assert done.code == code
    assert done.err.endswith("? [y/N] ")
    assert len(bloom) == code


def test_delete_says_what_it_deletes_and_deletes_that(
    shop: Call, client: Redis, server: Server
) -> None:
    BloomFilter(client, "other").add("kept")
    bloom = BloomFilter(client, KEY, window="2 months")
    bloom.extend(fingerprints(URLS))
    bloom.run(lambda session: claim(session, [b"claimed"], ["{}"], "me", "nonce"))
    with unchanged(client):
        shop("delete").refused(
            "Delete 'shop:bloom' on unix://", "with 20 URLs (", "MiB) and 1 claim? There is no term"
        )
    told = {"address": server.unix_url, "name": "default", "key": KEY, "claims": 1}
    memory = bloom.info().memory
    done = shop("delete", "--yes", "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json == told | {"urls_forgotten": 20, "memory": memory}
    assert not client.keys(f"{{{KEY}:*")
    assert "kept" in BloomFilter(client, "other")


def test_what_cannot_be_read_is_deleted_too(shop: Call, client: Redis) -> None:
    BloomFilter(client, KEY).open()
    client.hset(f"{{{KEY}:0}}:ring", "state", "garbage")
    assert "which cannot be read (cannot use the Redis key" in shop("delete").err
    done = shop("delete", "-y", "--json")
    assert (done.code, done.json["urls_forgotten"]) == (0, None)
    assert contents(client) == {}


@pytest.fixture
def stored(client: Redis) -> BloomFilter:
    bloom = BloomFilter(client, KEY, capacity=1000, window="6 months")
    bloom.extend(fingerprints(URLS))
    return bloom


def test_what_is_stored_is_shown_beside_the_projects(
    shop: Call, client: Redis, stored: BloomFilter
) -> None:
    settings = {"BLOOM_RECRAWL_AFTER": "2 days", "BLOOM_MAX_MEMORY": "1 GiB"}
    with unchanged(client):
        (document,) = shop("settings", "--json", **settings).json["filters"]
        text = " ".join(shop("settings", **settings).out.split())
    found = document["settings"]
    assert found["BLOOM_RECRAWL_AFTER"] == {"stored": "6 months", "project": "2 days"}
    assert found["BLOOM_CAPACITY"] == {"stored": 1000, "project": 1_000_000}
    assert found["BLOOM_MAX_MEMORY"] == {"stored": None, "project": 1 << 30}
    for part in (
        "BLOOM_RECRAWL_AFTER 6 months 2 days",
        "BLOOM_CAPACITY 1,000 1,000,000",
        "BLOOM_MAX_MEMORY none 1,073,741,824",
        "BLOOM_ERROR_RATE 1e-05 1e-05",
        "a crawl refuses to open the filter",
        'set BLOOM_RECRAWL_AFTER = "6 months" and BLOOM_ROTATE_EVERY = "1 month"',
        "scrapy bloom settings --apply",
    ):
        assert part in text


def test_a_shorter_window_is_applied_if_the_user_agrees(
    shop: Call, client: Redis, stored: BloomFilter
) -> None:
    settings = {"BLOOM_RECRAWL_AFTER": "2 days", "BLOOM_CAPACITY": 1000}
    with unchanged(client):
        done = shop("settings", "--apply", "--yes", BLOOM_BLOCKS=5)
        done.refused("remove BLOOM_BLOCKS to use the filter as it is")
        done = shop("settings", "--apply", **settings)
        done.refused("BLOOM_RECRAWL_AFTER = 2 days", "which forgets 0 of its URLs at once")
    done = shop("settings", "--apply", "--yes", **settings)
    assert done.code == 0
    assert "refuses" not in done.out
    info = stored.info()
    assert (info.window, info.capacity) == ("2 days", 1000)
    with unchanged(client):
        assert shop("settings", "--apply", **settings).code == 0  # there is nothing to ask


def test_what_is_applied_is_no_run(shop: Call, client: Redis) -> None:
    for run in "ab":
        BloomFilter(client, KEY, window="3 runs", run=run).add(run)
    settings = {"BLOOM_RECRAWL_AFTER": "2 runs", "BLOOM_RUN": "c"}
    assert shop("settings", "--apply", "--yes", **settings).code == 0
    info = BloomFilter(client, KEY).info()
    assert (info.window, info.count) == ("2 runs", 2)
    assert [generation.run for generation in info.generations] == [1, 0]


# -- the rule, in the library --


def test_to_forget_earlier_is_refused_and_the_rest_is_applied(
    client: Redis, stored: BloomFilter
) -> None:
    """Which windows forget earlier: unit/test_schedule.py."""
    message = r"is stored with `window` = .6 months. and .* earlier: open it once"
    with unchanged(client), pytest.raises(FilterMismatchError, match=message):
        BloomFilter(client, KEY, on_difference=EXTEND, window="5 months").open()
    BloomFilter(client, KEY, on_difference=EXTEND, window="7 months", capacity=5).open()
    assert (stored.info().window, stored.info().capacity) == ("7 months", 5)
    BloomFilter(client, KEY, on_difference=KEEP, window="1 day", capacity=6).open()
    assert (stored.info().window, stored.info().capacity) == ("7 months", 5)
