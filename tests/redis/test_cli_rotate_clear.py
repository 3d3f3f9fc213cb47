"""``scrapy bloom rotate`` and ``clear``: what they say, ask and forget."""

import io
import sys
from dataclasses import asdict

import pytest
import redis
from support.cli import KEY, URLS, Call, everything, fields_of, fingerprints

from scrapy_bloom import BloomFilter


def test_rotate_says_what_it_forgets_and_forgets_that(shop: Call, client: redis.Redis) -> None:
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


def test_rotate_under_write_all_forgets_what_only_the_oldest_has(
    shop: Call, client: redis.Redis
) -> None:
    bloom = BloomFilter(client, KEY, window="2 runs", run="a", ring="write-all")
    bloom.extend(fingerprints(URLS[:5]))
    bloom.rotate()
    bloom.extend(fingerprints(URLS[5:8]))
    assert shop("rotate", "-y", "--json").json["urls_forgotten"] == 5
    assert len(bloom) == 3


def test_rotate_needs_a_window(shop: Call, client: redis.Redis) -> None:
    BloomFilter(client, KEY).open()
    before = everything(client)
    done = shop("rotate", "--yes", BLOOM_RECRAWL_AFTER="3 months")
    assert done.code == 2
    assert "stored without a window" in done.err
    assert everything(client) == before


def test_clear(shop: Call, client: redis.Redis) -> None:
    bloom = BloomFilter(client, KEY, window="2 months")
    bloom.extend(fingerprints(URLS))
    done = shop("clear")
    assert (done.code, done.out, len(bloom)) == (2, "", 20)
    assert "forgets its 20 URLs? There is no terminal to ask at" in done.err
    done = shop("clear", "--yes", "--json")
    assert (done.code, done.err, done.json["urls_forgotten"]) == (0, "", 20)
    assert done.json["count"] == len(bloom) == 0
    assert "0 URLs forgotten, 0 remembered" in shop("clear", "-y").out


@pytest.mark.parametrize(
    ("answer", "code"), [("y\n", 0), ("YES\n", 0), ("n\n", 1), ("\n", 1), ("", 1)]
)
def test_confirmation(
    shop: Call, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
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
