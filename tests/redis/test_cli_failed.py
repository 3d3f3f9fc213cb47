"""``scrapy bloom failed``: which pages it lists, in which order, and what it shows of them."""

import time
from typing import Any

import redis
from scrapy import Spider
from support.cli import KEY, SECRET, Call, Shop, claim, everything, fail
from support.servers import Server

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.keys import Keys
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


def test_a_page_with_all_that_is_known(shop: Call, bloom: BloomFilter, client: redis.Redis) -> None:
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
    shop: Call, bloom: BloomFilter, client: redis.Redis
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
    shop: Call, bloom: BloomFilter, client: redis.Redis
) -> None:
    owner = workers.failed_id("shop")
    client.hset(
        Keys(KEY).claims(0), "ab", f'{owner} !HTTP+503 999999999999 1 {{"url":"http://x/"}}'
    )
    (page,) = shop("failed", "--json").json["pages"]
    assert page["due"] <= time.time(), "a failure is noted for BLOOM_RETRY_AFTER at most"
    assert "999999999999" not in shop("failed").out
    assert shop("pending").code == 0
