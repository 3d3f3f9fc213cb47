"""``scrapy bloom check``: which URLs, keys and items are seen, since when and until when."""

import time
from dataclasses import asdict

import pytest
from redis import Redis
from support.cli import KEY, URLS, Call, fields_of, fingerprints, give, unchanged

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.cli import check
from scrapy_bloom.fingerprinter import versioned


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
