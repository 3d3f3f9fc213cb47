"""``scrapy bloom failed`` and ``gone``: which pages they list, in which order, and how."""

import time
from functools import partial
from typing import Any

import pytest
from redis import Redis
from scrapy import Spider
from support.cli import KEY, SECRET, Call, Shop, claim, everything, fail
from support.servers import Server

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.protocol import ledger_protocol
from scrapy_bloom.crawl import workers

SHARED: dict[str, Any] = {"BLOOM_KEY": KEY}


class Other(Spider):
    name = "other"


def test_where_nothing_has_failed(shop: Call, bloom: BloomFilter) -> None:
    """What is claimed is not listed."""
    claim(bloom, workers.worker_id("shop"), ["https://example.com/"])
    done = shop("failed")
    assert (done.code, done.err) == (0, "")
    assert ": 0 pages failed, 0 of them are due\n" in done.out
    assert shop("failed", "--json").json["pages"] == []


def test_a_page_with_all_that_is_known(shop: Call, bloom: BloomFilter, client: Redis) -> None:
    fail(bloom, ["https://example.com/a?x=1"])
    before = everything(client)
    (page,) = shop("failed", "--json").json["pages"]
    assert (page["url"], page["reason"]) == ("https://example.com/a?x=1", "HTTP 503")
    assert (page["name"], page["spider"], page["attempts"]) == ("default", "shop", 1)
    assert 540 < page["due"] - int(client.time()[0]) <= 600
    assert page["due_utc"].startswith("20")
    done = shop("failed")
    heading, line, total = done.out.splitlines()
    assert heading.split() == ["attempts", "next", "try", "(UTC)", "reason", "URL"]
    assert line.split()[0] == "1"
    assert line.endswith("  HTTP 503  https://example.com/a?x=1")
    assert total.endswith(": 1 page failed, 0 of them are due")
    assert everything(client) == before


def test_pages_that_are_due_come_first(shop: Call, bloom: BloomFilter) -> None:
    """And --limit lists these; all claims are read, page by page."""
    for place in (3, 1, 2, 0):
        fail(bloom, [f"https://example.com/{place}"], seconds=1_000 * place)
    urls = [f"https://example.com/{place}" for place in range(4)]
    done = shop("failed", "--json")
    assert [page["url"] for page in done.json["pages"]] == urls
    assert (done.json["failed"], done.json["due"]) == (4, 1)
    assert "; 2 are not shown (--limit 0 shows all)" in shop("failed", "--limit", "2").out
    fail(bloom, [f"https://example.com/more/{place}" for place in range(700)], seconds=9_000)
    pages = shop("failed", "--json").json["pages"]
    assert ([page["url"] for page in pages[:4]], len(pages)) == (urls, 100)
    pages = shop("failed", "--json", "--limit", "0").json["pages"]
    assert len({page["url"] for page in pages}) == len(pages) == 704


def test_what_is_not_known_of_a_page_is_said(shop: Call, bloom: BloomFilter) -> None:
    """Its request is no longer kept, or an earlier version has stored no reason."""
    fail(bloom, ["https://example.com/a"], attempts=1)
    fail(bloom, ["https://example.com/b"], reason="")
    pages = shop("failed", "--json").json["pages"]
    assert {(page["url"], page["reason"]) for page in pages} == {
        (None, "HTTP 503"),
        ("https://example.com/b", ""),
    }
    text = shop("failed").out
    assert "(its request is not kept)" in text
    assert "  (not known)  " in text


def test_neither_credentials_nor_control_characters_are_printed(
    shop: Call, bloom: BloomFilter
) -> None:
    fail(bloom, [f"https://user:{SECRET}@example.com/a"], reason="\x1b[31m red")
    done = shop("failed")
    assert SECRET not in done.out
    assert "https://***@example.com/a" in done.out
    assert "\x1b" not in done.out
    assert SECRET not in shop("failed", "--json").out


def test_windows_are_named_if_there_are_several(
    shop: Call, bloom: BloomFilter, client: Redis
) -> None:
    windows = {"BLOOM_RECRAWL_RULES": [("/l", "1 day"), ("/unused", "1 week")]}
    fail(bloom, ["https://example.com/a"], seconds=60)
    fail(BloomFilter(client, f"{KEY}:1-day", blocks=3), ["https://example.com/l"], seconds=30)
    pages = shop("failed", "--json", **windows).json["pages"]
    assert [page["name"] for page in pages] == ["1-day", "default"]
    done = shop("failed", **windows)
    assert "window" in done.out.splitlines()[0]
    assert "1-day" in done.out.splitlines()[1]
    assert f"{KEY}, {KEY}:1-day on " in done.out
    (page,) = shop("failed", "--json", "--window", "1-day", **windows).json["pages"]
    assert page["url"] == "https://example.com/l"


def test_spiders_that_share_a_filter(call: Call, bloom: BloomFilter, server: Server) -> None:
    settings = SHARED | {"spiders": (Shop, Other), "BLOOM_REDIS_URL": server.unix_url}
    fail(bloom, ["https://example.com/a"])
    fail(bloom, ["https://example.com/b"], spider="other")
    pages = call("failed", "--json", **settings).json["pages"]
    assert {page["spider"] for page in pages} == {"shop", "other"}
    done = call("failed", "--json", "--spider", "other", **settings)
    assert [page["url"] for page in done.json["pages"]] == ["https://example.com/b"]
    assert done.json["failed"] == 1


def test_a_time_beyond_the_calendar_counts_as_due(
    shop: Call, bloom: BloomFilter, client: Redis
) -> None:
    owner = workers.failed_id("shop")
    client.hset(
        Keys(KEY).claims(0), "ab", f'{owner} !HTTP+503 999999999999 1 {{"url":"http://x/"}}'
    )
    (page,) = shop("failed", "--json").json["pages"]
    assert page["due"] <= time.time(), "a failure is noted for BLOOM_RETRY_AFTER at most"
    assert "999999999999" not in shop("failed").out
    assert shop("pending").code == 0


@pytest.fixture
def bloom(client: Redis) -> BloomFilter:
    return opened(client, KEY)


def opened(client: Redis, key: str) -> BloomFilter:
    bloom = BloomFilter(client, key, blocks=3, window="6 months")
    bloom.open()
    return bloom


def note(
    client: Redis,
    url: str,
    *,
    times: int = 2,
    first: int = 1_800_000_000,
    why: str = "!HTTP+404",
    key: str = KEY,
) -> None:
    """Note a missing page, as prelude_ledger.lua does."""
    value = f"{first} {first + 100} {times} {why} {url}"
    client.hset(Keys(key).missing(len(url) % 3), f"{url}-field".encode().hex(), value)


def test_what_scripts_note_is_listed(shop: Call, bloom: BloomFilter) -> None:
    """That they note it: test_ledger_protocol.py."""
    assert bloom.run(partial(ledger_protocol.missing, block=0, count=9)) == []
    done = shop("gone")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith(": 0 pages are gone; crawls note them with BLOOM_LEDGER = True\n"), (
        done.out
    )
    assert shop("gone", BLOOM_LEDGER=True).out.endswith(": 0 pages are gone\n")
    assert shop("gone", "--json").json["pages"] == []


def test_a_page_that_is_gone_with_all_that_is_known(
    shop: Call, bloom: BloomFilter, client: Redis
) -> None:
    note(client, "https://example.com/a?x=1")
    note(client, "https://example.com/once", times=1)
    before = everything(client)
    document = shop("gone", "--json").json
    assert (document["gone"], document["missing"]) == (1, 2)
    (page,) = document["pages"]
    assert (page["url"], page["reason"]) == ("https://example.com/a?x=1", "HTTP 404")
    assert (page["name"], page["windows"]) == ("default", 2)
    assert (page["first"], page["last"]) == (1_800_000_000, 1_800_000_100)
    assert (page["first_utc"], page["last_utc"]) == ("2027-01-15T08:00:00Z", "2027-01-15T08:01:40Z")
    heading, line, total = shop("gone").out.splitlines()
    assert heading.split() == [*("windows", "since", "(UTC)", "last", "(UTC)", "reason", "URL")]
    assert line.split()[0] == "2"
    assert line.endswith("https://example.com/a?x=1")
    assert total.endswith("1 page is gone; 1 was missing in one window so far (--all lists them)")
    assert everything(client) == before


def test_forget_deletes_the_notes(shop: Call, bloom: BloomFilter, client: Redis) -> None:
    note(client, "https://example.com/a")
    done = shop("gone", "--forget")
    assert "https://example.com/a" in done.out
    assert "1 page is gone; the notes are deleted" in done.out
    assert shop("gone", "--forget", "--json").json["forgotten"] is True
    assert not client.keys("*missing*")
    assert shop("gone", "--json").json["pages"] == []


def test_neither_is_printed_of_pages_that_are_gone(
    shop: Call, bloom: BloomFilter, client: Redis
) -> None:
    note(client, f"https://user:{SECRET}@example.com/\x1b[31m", why="!%1B[31m+red")
    done = shop("gone")
    assert SECRET not in done.out
    assert "\x1b" not in done.out
    assert SECRET not in shop("gone", "--json").out


def test_pages_that_are_missing_longest_come_first(
    shop: Call, bloom: BloomFilter, client: Redis
) -> None:
    for place in (3, 1, 2, 0):
        note(client, f"https://example.com/{'x' * place}", first=1_800_000_000 + place)
    urls = [f"https://example.com/{'x' * place}" for place in range(4)]
    assert [page["url"] for page in shop("gone", "--json").json["pages"]] == urls
    limited = shop("gone", "--json", "--limit", "2").json
    assert [page["url"] for page in limited["pages"]] == urls[:2]
    assert limited["gone"] == 4
    assert "; 2 are not shown (--limit 0 shows all)" in shop("gone", "--limit", "2").out
