"""``scrapy bloom delete``: what it shows, asks and deletes."""

import io
import sys

import pytest
import redis
from support.cli import KEY, URLS, Call, everything, fingerprints
from support.servers import Server, contents

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.protocol.claim_protocol import claim


@pytest.fixture
def bloom(client: redis.Redis) -> BloomFilter:
    """A filter with URLs and a claim; another filter is on the server, too."""
    BloomFilter(client, "other").add("kept")
    bloom = BloomFilter(client, KEY, window="2 months")
    bloom.extend(fingerprints(URLS))
    bloom.run(lambda session: claim(session, [b"claimed"], ["{}"], "me", "nonce"))
    return bloom


def test_it_says_what_it_deletes_and_deletes_that(
    shop: Call, client: redis.Redis, bloom: BloomFilter, server: Server
) -> None:
    before = everything(client)
    done = shop("delete")
    assert (done.code, done.out) == (2, "")
    assert "Delete 'shop:bloom' on unix://" in done.err
    assert "with 20 URLs (" in done.err
    assert "MiB) and 1 claim? There is no terminal to ask at: add --yes" in done.err
    assert everything(client) == before
    memory = bloom.info().memory
    done = shop("delete", "--yes", "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json == {
        "address": server.unix_url,
        "name": "default",
        "key": KEY,
        "urls_forgotten": 20,
        "memory": memory,
        "claims": 1,
    }
    assert not client.keys(f"{{{KEY}:*")
    assert "kept" in BloomFilter(client, "other")
    done = shop("delete", "--yes")
    assert (done.code, done.out) == (1, "")
    assert "there is no filter 'shop:bloom'" in done.err


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1), ("", 1)])
def test_it_asks(
    shop: Call, bloom: BloomFilter, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    stdin = io.StringIO(answer)
    monkeypatch.setattr(stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", stdin)
    done = shop("delete")
    assert done.code == code
    assert done.err.endswith("? [y/N] ")
    assert bool(bloom.keys()) == bool(code)
    assert ("shop:bloom on unix://" in done.out) != bool(code)


def test_the_filter_of_a_window_or_of_another_key(
    shop: Call, client: redis.Redis, bloom: BloomFilter
) -> None:
    BloomFilter(client, f"{KEY}:1-day").open()
    windows = {"BLOOM_RECRAWL_RULES": [("/list", "1 day")]}
    assert shop("delete", "--window", "1-day", "-y", **windows).code == 0
    assert not client.keys(f"{{{KEY}:1-day:*")
    assert shop("delete", "--key", "other", "-y").code == 0
    assert not client.keys("{other:*")
    assert len(bloom) == 20


@pytest.mark.parametrize(
    ("key", "field", "value"),
    [("ring", "state", "garbage"), ("header", "format", "99"), ("header", "blocks", "many")],
)
def test_what_cannot_be_read_is_deleted_too(
    shop: Call, client: redis.Redis, key: str, field: str, value: str
) -> None:
    BloomFilter(client, KEY).open()
    client.hset(f"{{{KEY}:0}}:{key}", field, value)
    assert "which cannot be read (cannot use the Redis key" in shop("delete").err
    done = shop("delete", "-y", "--json")
    assert (done.code, done.json["urls_forgotten"]) == (0, None)
    assert contents(client) == {}


@pytest.mark.parametrize("lost", ["{shop:bloom:0}:header", "*ring"])
def test_what_is_left_of_a_filter_or_of_a_load_is_deleted_too(
    shop: Call, client: redis.Redis, lost: str
) -> None:
    BloomFilter(client, KEY).open()
    client.delete(*client.keys(lost))
    assert "is being written, or what is left of one? There is no terminal" in shop("delete").err
    assert shop("delete", "-y").code == 0
    assert contents(client) == {}
