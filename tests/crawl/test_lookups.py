"""Many lookups at once: in rounds, for all that wait; some are cancelled meanwhile."""

import asyncio
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import redis
from scrapy import Request
from support.loops import in_loop
from support.servers import Server
from support.workers import Worker

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.protocol.cached_ring import Verdict
from scrapy_bloom.crawl import request_codec
from scrapy_bloom.crawl.local_state import FRESH_SECONDS
from scrapy_bloom.crawl.lookups import Lookup, LookupBatcher

URL = "https://example.com/"
NEW, SEEN, UNKNOWN = Verdict.NEW, Verdict.SEEN, Verdict.UNKNOWN

pytestmark = pytest.mark.usefixtures("client")  # the server is empty


def worker(server: Server, **settings: Any) -> Worker:
    # On a busy machine, there would be outages after the usual time.
    return Worker(server.url, **{"BLOOM_TIMEOUT": 20, "BLOOM_REMEMBER": "scheduled", **settings})


def page(one: Worker, name: str, links: int = 30) -> list[Lookup]:
    """Return the lookups about a page's links."""
    requests = [Request(f"{URL}{name}/{number}") for number in range(links)]
    lookups = [one.crawl.decider.prepare(request) for request in requests]
    return [lookup for lookup in lookups if lookup is not None]


def verdicts(lookups: Sequence[Lookup]) -> set[Verdict | None]:
    return {lookup.verdict for lookup in lookups}


def offered(one: Worker, lookups: Sequence[Lookup]) -> list[bool]:
    """Offer the links of a page to the scheduler; return which are seen."""
    return [one.dupefilter.request_seen(lookup.request) for lookup in lookups]


async def under_way(one: Worker, lookups: Sequence[Lookup]) -> "asyncio.Future[None]":
    """Begin to look a page up; return when its round is under way."""
    asking = asyncio.ensure_future(one.crawl.decider.decide_many(lookups))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return asking


@in_loop
async def test_pages_that_come_together_are_asked_about_in_one_round(server: Server) -> None:
    async with worker(server) as one:
        await one.crawl.decider.decide_many(page(one, "first"))  # loads the script
        before = one.server.async_round_trips
        pages = [page(one, f"{number}") for number in range(20)]
        await asyncio.gather(*map(one.crawl.decider.decide_many, pages))
        assert one.server.async_round_trips == before + 1
        assert all(verdicts(lookups) == {NEW} for lookups in pages)


@pytest.mark.parametrize("remember", ["scheduled", "crawled"])
@in_loop
async def test_a_url_is_looked_up_once_in_a_round_for_all_pages_that_link_it(
    server: Server, monkeypatch: pytest.MonkeyPatch, remember: str
) -> None:
    dump = mock.Mock(wraps=request_codec.dump)
    monkeypatch.setattr(request_codec, "dump", dump)
    async with worker(server, BLOOM_REMEMBER=remember) as one:
        pages = [page(one, "same"), page(one, "same"), page(one, "other")]
        await asyncio.gather(*map(one.crawl.decider.decide_many, pages))
        assert [verdicts(lookups) for lookups in pages] == [{NEW}, {SEEN}, {NEW}]
        first, second, _ = pages
        assert offered(one, second[:1]) == [False]  # it comes before the first page's
        assert offered(one, first) == [True] + 29 * [False]
        assert all(offered(one, second))
        assert dump.call_count == (60 if remember == "crawled" else 0)
        assert one.stat("new") == 30


@in_loop
async def test_claims_for_a_page_that_is_cancelled_are_given_back_at_the_end(
    server: Server, client: redis.Redis
) -> None:
    """Also if the round that makes them is under way when the crawl closes; no other is sent."""
    async with worker(server, BLOOM_REMEMBER="crawled") as one:
        await one.crawl.decider.decide_many(page(one, "first"))
        client.client_pause(300, all=False)
        asked, waiting = page(one, "asked"), page(one, "waiting")
        asking = [await under_way(one, asked), await under_way(one, waiting)]
        for task in asking:
            task.cancel()
        await asyncio.wait(asking)
        assert verdicts(asked) == {None}
        await one.close()
        assert (verdicts(asked), verdicts(waiting)) == ({NEW}, {None})
    assert one.stat("released") == 60
    assert not list(client.scan_iter("*claims"))


@in_loop
async def test_after_a_failure_no_page_that_waits_is_seen(
    server: Server, client: redis.Redis
) -> None:
    async with worker(server, BLOOM_TIMEOUT=0.2) as one:
        await one.crawl.decider.decide_many(page(one, "first"))
        client.client_pause(10_000, all=False)
        try:
            first, second = page(one, "same"), page(one, "same")
            asking = await under_way(one, first)
            await one.crawl.decider.decide_many(second)
            await asking
            assert verdicts(first) == verdicts(second) == {UNKNOWN}
            # The first of the two to be scheduled is new, the other is not.
            assert not any(offered(one, first))
            assert all(offered(one, second))
        finally:
            client.client_unpause()
        assert one.stat("unknown") == 30


@in_loop
async def test_a_rotation_by_another_process_does_not_bring_back_what_was_cached_before_it(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lookup that notices it was sent under the old ring, and answered under the new one."""
    async with worker(server, BLOOM_BLOCKS=1) as one:
        decider = one.crawl.decider
        first = page(one, "first")
        await decider.decide_many(first)
        assert not any(offered(one, first))
        assert verdicts(page(one, "first")) == {SEEN}
        BloomFilter(client, "shop:bloom").clear()
        later = time.monotonic() + FRESH_SECONDS + 1
        for part in (one.crawl.context.local, decider.lookups):
            monkeypatch.setattr(part, "_clock", lambda: later)
        other = page(one, "other", links=1)
        await decider.decide_many(other)
        assert verdicts(other) == {NEW}
        again = page(one, "first")
        assert verdicts(again) == {None}
        await decider.decide_many(again)
        assert verdicts(again) == {NEW}


@in_loop
async def test_a_page_asks_again_where_the_answer_is_another_pages() -> None:
    key, asked, reply = ("default", b"1"), list[str](), asyncio.Event()

    async def run(_: str, verdicts: list[Verdict]) -> list[Verdict]:
        await reply.wait()
        return verdicts

    def look_up(some: Sequence[Lookup]) -> list[Verdict]:
        asked.extend(one.request.url[-3:] for one in some)
        return [
            Verdict.YIELD_AGAIN if one.request.url.endswith("one") else Verdict.NEW for one in some
        ]

    def answered(some: Sequence[Lookup], verdicts: Sequence[Verdict], *_: object) -> None:
        for one, verdict in zip(some, verdicts, strict=True):
            one.verdict = verdict

    server = SimpleNamespace(
        run=run, session=lambda _: SimpleNamespace(held={}), serves=lambda _: True
    )
    lookups = LookupBatcher(server, look_up, answered, lambda _: None, time.monotonic)  # type: ignore[arg-type]
    one, two = (Lookup(key, Request(f"http://shop.example/{name}")) for name in ("one", "two"))
    pages = [asyncio.ensure_future(lookups.look_up([one]))]
    await asyncio.sleep(0.01)
    pages.append(asyncio.ensure_future(lookups.look_up([two])))
    await asyncio.sleep(0.01)
    reply.set()
    await asyncio.gather(*pages)
    assert (asked, one.verdict, two.verdict) == (["one", "two"], Verdict.YIELD_AGAIN, Verdict.NEW)
