"""``scrapy bloom recrawl``: what it leaves. Crawls: crawl/test_recrawled_urls.py."""

import pytest
from redis import Redis
from support.calls import script_calls
from support.cli import URLS, Call, claims, fail, fingerprints, give, unchanged

from scrapy_bloom import BloomFilter

URL = URLS[0]


def test_a_remembered_url_is_left_for_a_worker(
    shop: Call, bloom: BloomFilter, client: Redis
) -> None:
    bloom.add(fingerprints([URL])[0])
    done = shop("recrawl", URL)
    assert (done.code, done.err) == (0, "")
    _, line, summary = done.out.splitlines()
    assert line.split() == ["will", "be", "crawled", "parse", URL]
    assert summary == "1 URL will be crawled by the current or next run of spider 'shop'"
    owner, nonce, time, attempts, request = claims(client)[URL]
    assert (owner, nonce, attempts) == ("-", "recrawl", 0)
    assert time <= int(client.time()[0])
    assert request == {"url": URL, "dont_filter": True}
    assert bloom.contains(fingerprints([URL])) == [True]
    # Once more changes nothing but the callback.
    for callback in ("parse_item", "parse"):
        shop("recrawl", f"{URL}#fragment", "--callback", callback)
        ((_, _, _, _, request),) = claims(client).values()
        assert request["callback"] == callback
    (row,) = shop("pending", "--json").json["rows"]
    assert (row["state"], row["reason"]) == ("waiting", None)


def test_pages_that_failed_are_ready_now(shop: Call, bloom: BloomFilter, client: Redis) -> None:
    """With their own requests, and all their attempts; they're still listed as failed."""
    fail(bloom, URLS[:3])
    before = {url: one[4] for url, one in claims(client).items()}
    done = shop("recrawl", "--failed", URLS[0], URLS[5], "--json")
    assert [done.json[name] for name in ("retried", "ready", "pending")] == [3, 1, 0]
    states = [row["state"] for row in done.json["rows"]]
    assert states == ["will be retried", "will be crawled"]
    assert [row["callback"] for row in done.json["rows"]] == [None, "parse"]
    after = claims(client)
    assert after.keys() == {*URLS[:3], URLS[5]}
    now = int(client.time()[0])
    for url, request in before.items():
        assert after[url][1] == "HTTP-503"
        assert (after[url][2] <= now, after[url][3], after[url][4]) == (True, 0, request)
    assert shop("pending", "--failed", "--json").json["failed"] == 3
    shop("recrawl", URLS[1], "--callback", "parse_item")
    assert claims(client)[URLS[1]][4]["callback"] == "parse_item"


def test_thousands_of_urls_take_few_round_trips(
    shop: Call, bloom: BloomFilter, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [f"https://example.com/{number}" for number in range(3_000)]
    give(monkeypatch, "\n".join(urls).encode())
    before = script_calls(client)
    done = shop("recrawl", "-", "--json")
    assert (done.code, done.json["ready"]) == (0, 3_000)
    assert [row["url"] for row in done.json["rows"]] == urls
    assert claims(client).keys() == {*urls}
    assert script_calls(client) - before < 40


def test_one_wrong_line_leaves_nothing(
    shop: Call, bloom: BloomFilter, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wrong in ("x", "ftp://example.com/", "http://", "https://a b/", "https://\udcff/", "\x1b"):
        give(monkeypatch, f"{URL}\n{wrong}\n".encode("utf-8", "surrogateescape"))
        with unchanged(client):
            shop("recrawl", "-").refused("isn't the URL of a page")
