"""``scrapy bloom rotate``, ``clear`` and ``delete``: what they say, ask, forget and delete."""

import io
import sys
from dataclasses import asdict

import pytest
from redis import Redis
from support.cli import KEY, URLS, Call, everything, fields_of, fingerprints
from support.servers import Server, contents

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.protocol.claim_protocol import claim


def test_rotate_says_what_it_forgets_and_forgets_that(shop: Call, client: Redis) -> None:
    bloom = BloomFilter(client, KEY, window="2 months")
    bloom.extend(fingerprints(URLS))
    done = shop("rotate")
    assert (done.code, done.out) == (2, "")
    assert "forgets 0 of its 20 URLs" in done.err
    assert "add --yes" in done.err
    assert len(bloom.info().generations) == 1
    bloom.rotate()
    bloom.add("x")
    assert "Rotate 'shop:bloom'" in shop("rotate").err
    assert "forgets 20 of its 21 URLs" in shop("rotate").err
    done = shop("rotate", "--yes", "--json")
    assert (done.code, done.err, done.json["urls_forgotten"]) == (0, "", 20)
    assert done.json["count"] == len(bloom) == 1
    assert fields_of(done.json) == asdict(bloom.info()) | {"now": done.json["now"]}
    assert "1 URL forgotten, 0 remembered" in shop("rotate", "-y").out


def test_rotate_needs_a_window(shop: Call, client: Redis) -> None:
    BloomFilter(client, KEY).open()
    before = everything(client)
    done = shop("rotate", "--yes", BLOOM_RECRAWL_AFTER="3 months")
    assert done.code == 2
    assert "stored without a window" in done.err
    assert everything(client) == before


def test_clear(shop: Call, client: Redis) -> None:
    bloom = BloomFilter(client, KEY, window="2 months")
    bloom.extend(fingerprints(URLS))
    done = shop("clear")
    assert (done.code, done.out, len(bloom)) == (2, "", 20)
    assert "forgets its 20 URLs? There is no terminal to ask at" in done.err
    done = shop("clear", "--yes", "--json")
    assert (done.code, done.err, done.json["urls_forgotten"]) == (0, "", 20)
    assert done.json["count"] == len(bloom) == 0
    assert "0 URLs forgotten, 0 remembered" in shop("clear", "-y").out
    bloom.run(lambda session: claim(session, [b"claimed"], ["{}"], "me", "nonce"))
    assert "forgets its 0 URLs and 1 claim? There is no terminal" in shop("clear").err
    assert shop("clear", "-y").code == 0
    assert client.keys("*:claims") == []


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("YES\n", 0), ("\n", 1), ("", 1)])
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


# -- delete --


@pytest.fixture
def bloom(client: Redis) -> BloomFilter:
    """A filter with URLs and a claim; another filter is on the server, too."""
    BloomFilter(client, "other").add("kept")
    bloom = BloomFilter(client, KEY, window="2 months")
    bloom.extend(fingerprints(URLS))
    bloom.run(lambda session: claim(session, [b"claimed"], ["{}"], "me", "nonce"))
    return bloom


def test_it_says_what_it_deletes_and_deletes_that(
    shop: Call, client: Redis, bloom: BloomFilter, server: Server
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


def test_what_cannot_be_read_is_deleted_too(shop: Call, client: Redis) -> None:
    BloomFilter(client, KEY).open()
    client.hset(f"{{{KEY}:0}}:ring", "state", "garbage")
    assert "which cannot be read (cannot use the Redis key" in shop("delete").err
    done = shop("delete", "-y", "--json")
    assert (done.code, done.json["urls_forgotten"]) == (0, None)
    assert contents(client) == {}
