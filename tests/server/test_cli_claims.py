"""``scrapy bloom pending``: requests that workers have, that wait, or that failed."""

import os
from socket import gethostname
from typing import Any

from redis import Redis
from scrapy import Request
from scrapy.utils.request import RequestFingerprinter
from support.cli import KEY, SECRET, Call, Shop, claim, fail, in_shop, unchanged
from support.replicas import wait_for_link, with_replica

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.protocol.claims import MAX_ATTEMPTS, NewClaim
from scrapy_bloom.bloom.protocol.notes import note_crawl
from scrapy_bloom.bloom.protocol.workers import Workers
from scrapy_bloom.crawl.owners import Worker
from scrapy_bloom.crawl.request_codec import dump

PAGES = [f"https://example.com/{place}" for place in range(1_000)]


def test_requests_are_listed_by_worker(shop: Call, bloom: BloomFilter, client: Redis) -> None:
    """One that runs, one that has stopped, and a queue."""
    running, queue = Worker.own("-", life=60), Worker("w2", "elsewhere", 1, 1, "queue-1", "-", 60)
    for worker in (running, queue):
        bloom.run(Workers(in_shop(bloom)).beat(worker.member, 60))
    for owner, pages in ((running.id, PAGES[:2]), ("w9", PAGES[2:4]), ("queue-1", PAGES[4:5])):
        claim(bloom, pages, owner)
    with unchanged(client):
        done, text = shop("pending", "--json"), shop("pending").out
    assert (done.json["pending"], done.json["failed"]) == (5, 0)
    rows = {row["url"]: row for row in done.json["rows"]}
    states = ["running", "running", "waiting", "waiting", "in a queue"]
    assert [rows[url]["state"] for url in PAGES[:5]] == states
    shown = f"{gethostname()}:{os.getpid()}"
    assert rows[PAGES[0]]["worker"] == shown
    assert {row["worker"] for row in rows.values()} == {shown, None}
    assert all(row["since"] and row["next_try"] is None for row in rows.values())
    heading, *_, summary = text.splitlines()
    assert heading.split() == ["state", "worker", "since", "attempts", "url"]
    assert summary.startswith(KEY)
    assert summary.endswith(": 5 pending requests, 0 of them failed")


def test_requests_to_one_url_are_told_apart(shop: Call, bloom: BloomFilter) -> None:
    spider = Shop.__new__(Shop)
    post = Request(PAGES[0], spider.parse_item, "POST", body=b"1")
    made = [
        NewClaim(("default", RequestFingerprinter().fingerprint(one)), "-", dump(one, spider))
        for one in (Request(PAGES[0]), post)
    ]
    bloom.run(in_shop(bloom).claim(made, "w1"))
    rows = shop("pending", "--json").json["rows"]
    shown = {(row["method"], row["callback"], row["url"]) for row in rows}
    assert shown == {(None, None, PAGES[0]), ("POST", "parse_item", PAGES[0])}


def test_pages_that_failed_come_with_the_reason_those_that_are_due_first(
    shop: Call, bloom: BloomFilter
) -> None:
    claim(bloom, PAGES[9:10])
    for place, reason in ((3, "HTTP-503"), (1, "TimeoutError"), (2, "pipeline:KeyError")):
        fail(bloom, PAGES[place : place + 1], 1_000 * place, reason)
    done = shop("pending", "--failed", "--json")
    assert (done.json["pending"], done.json["failed"]) == (4, 3)
    rows = done.json["rows"]
    assert [row["url"] for row in rows] == PAGES[1:4]
    assert [row["reason"] for row in rows] == ["TimeoutError", "pipeline:KeyError", "HTTP-503"]
    assert {(row["state"], row["attempts"], row["since"]) for row in rows} == {("failed", 1, None)}
    heading, *_ = shop("pending", "--failed").out.splitlines()
    assert heading.split() == ["state", "next", "try", "attempts", "reason", "url"]


def test_requests_are_listed_with_the_arguments_of_the_runs_that_they_wait_for(
    shop: Call, bloom: BloomFilter
) -> None:
    """A run with others doesn't pick them up."""
    claim(bloom, PAGES[:1], owner="w9.domain=a")
    fail(bloom, PAGES[1:2], owner="-.domain=b&page=2")
    claim(bloom, PAGES[2:3], owner="w9.")
    fail(bloom, PAGES[3:4])
    rows = {row["url"]: row["arguments"] for row in shop("pending", "--json").json["rows"]}
    assert [rows[url] for url in PAGES[:4]] == ["domain=a", "domain=b&page=2", None, None]
    heading, *_ = shop("pending").out.splitlines()
    assert heading.split()[-2:] == ["arguments", "url"]


def test_a_worker_that_lived_before_the_clock_was_corrected_is_not_running(
    shop: Call, bloom: BloomFilter
) -> None:
    worker = Worker("w1", "elsewhere", 1, 1, "-", "-", 60)
    bloom.run(Workers(in_shop(bloom)).beat(worker.member, 3_600))
    claim(bloom, PAGES[:1])
    assert [row["state"] for row in shop("pending", "--json").json["rows"]] == ["waiting"]


def test_a_big_crawl_is_listed_in_part(shop: Call, bloom: BloomFilter) -> None:
    claim(bloom, PAGES)
    text = ": 1,000 pending requests, 0 of them failed"
    for options, shown, hidden in (
        ("", 100, ". 900 aren't shown (--limit 0 shows all)"),
        ("--limit 7", 7, ". 993 aren't shown (--limit 0 shows all)"),
        ("--limit 0", 1_000, ""),
        ("--failed", 0, ""),
    ):
        lines = shop("pending", *options.split()).out.splitlines()
        assert len(lines) == shown + (2 if shown else 1)
        assert lines[-1].endswith(text + hidden)
        assert shop("pending", *options.split(), "--json").json["pending"] == 1_000


def test_a_page_that_was_given_up_has_no_next_try(shop: Call, bloom: BloomFilter) -> None:
    for _ in range(MAX_ATTEMPTS):
        fail(bloom, PAGES[:1], seconds=0)
    (row,) = shop("pending", "--json").json["rows"]
    assert (row["attempts"], row["next_try"]) == (MAX_ATTEMPTS, None)


def test_requests_of_other_spiders_are_not_listed(shop: Call, bloom: BloomFilter) -> None:
    bloom.run(note_crawl(bloom.session, "other"))
    claim(bloom, PAGES[:1])
    assert shop("pending", "--json").json["pending"] == 1
    given: dict[str, Any] = {"spiders": (), "SPIDER_MODULES": []}
    done = shop("pending", "--key", KEY, **given)
    done.refused("There are several spiders. Choose one of other, shop with --spider")
    other = shop("pending", "--key", KEY, "--spider", "other", "--json", **given)
    assert (other.code, other.json["rows"]) == (0, [])


def test_a_read_only_replica_lists_what_its_primary_has(call: Call, any_binary: str) -> None:
    with with_replica(any_binary) as (primary, copy):
        with primary.client() as client:
            bloom = BloomFilter(client, KEY, blocks=3)
            worker = Worker("w1", "here", 7, 1, "-", "-", 60)
            claim(bloom, PAGES[:5], owner="w1")
            bloom.run(Workers(in_shop(bloom)).beat(worker.member, 60))
        wait_for_link(copy, primary)
        found = [
            call("pending", "--json", spiders=(Shop,), BLOOM_REDIS_URL=one.url)
            for one in (primary, copy)
        ]
    assert [(done.code, done.json["pending"]) for done in found] == [(0, 5)] * 2
    assert found[0].json["rows"] == found[1].json["rows"]
    assert {row["state"] for row in found[1].json["rows"]} == {"running"}


def test_absurd_claims(shop: Call, bloom: BloomFilter, client: Redis) -> None:
    """They can be stored, but no crawl writes them."""
    bloom.run(Workers(in_shop(bloom)).beat("w1 elsewhere 007 01 - - 060", 60))
    absurd = {
        b"aa": b'w1 n 999999999999 1 {"url":"http://x/"}',
        b"bb": b"w1 n 1 1 [1]",
        b"cc": b"w1 n 1 1 " + b"[" * 50_000,
        b"dd": b'- \\x1b[31m 1 1 {"url":"\\u001b[31m\\u202e"}',
        b"ee": f'w1 n 1 1 {{"url":"https://user:{SECRET}@x/"}}'.encode(),
        b"ff": b"\xff no claim",
        b"0f": b"w1 n 1 1 ",
        b"0a": b'w1 n 1 1 {"url":"http://x/","method":[7],"callback":"\\u001b"}',
        b"1f": b'w1 n 1 1 {"url":"http://' + b"x" * 70_000 + b'"}',
    }
    client.hset(Keys(KEY).claims("shop", 2), mapping=absurd)  # type: ignore[arg-type]
    done, text = shop("pending", "--json"), shop("pending").out
    assert done.json["pending"] == 8
    assert [row["url"] for row in done.json["rows"]].count("(not saved)") == 4
    assert "9999-12-31 23:59" in text
    assert "https://***@x/" in text
    for hidden in (SECRET, "\x1b", "\u202e"):
        assert hidden not in text
    assert SECRET not in done.out
