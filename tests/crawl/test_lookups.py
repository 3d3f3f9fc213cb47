"""Many lookups at once: in rounds, for all that wait; some are cancelled meanwhile."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import redis
from scrapy import Request
from support.loops import in_loop
from support.servers import Server
from support.workers import Worker

from scrapy_bloom.bloom.protocol.session import Verdict
from scrapy_bloom.crawl.duplicates import Lookup

URL = "https://example.com/"
NEW, SEEN = Verdict.NEW, Verdict.SEEN
CLAIMED, UNKNOWN = Verdict.CLAIMED, Verdict.UNKNOWN

pytestmark = pytest.mark.usefixtures("client")  # the server is empty


def worker(server: Server, **settings: Any) -> Worker:
    # On a busy machine, there would be outages after the usual time.
    return Worker(server.url, **{"BLOOM_TIMEOUT": 20, "BLOOM_REMEMBER": "scheduled", **settings})


def page(one: Worker, name: str, links: int = 30) -> list[Lookup]:
    """Return the lookups about a page's links."""
    requests = [Request(f"{URL}{name}/{number}") for number in range(links)]
    lookups = [one.crawl._duplicates.prepare(request) for request in requests]
    return [lookup for lookup in lookups if lookup is not None]


def verdicts(lookups: Sequence[Lookup]) -> set[Verdict | None]:
    return {lookup.verdict for lookup in lookups}


def offered(one: Worker, lookups: Sequence[Lookup]) -> list[bool]:
    """Offer the links of a page to the scheduler; return which are seen."""
    return [one.dupefilter.request_seen(lookup.request) for lookup in lookups]


async def under_way(one: Worker, lookups: Sequence[Lookup]) -> "asyncio.Future[None]":
    """Begin to look a page up; return when its round is under way."""
    asking = asyncio.ensure_future(one.crawl._duplicates.look_up(lookups))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return asking


@in_loop
async def test_pages_that_come_together_are_asked_about_in_one_round(server: Server) -> None:
    async with worker(server) as one:
        # Loads the script, and reads the rings of all blocks.
        await one.crawl._duplicates.look_up(page(one, "first", links=500))
        before = one.server.round_trips[1]
        pages = [page(one, f"{number}") for number in range(20)]
        await asyncio.gather(*map(one.crawl._duplicates.look_up, pages))
        assert one.server.round_trips[1] == before + 1
        assert all(verdicts(lookups) == {NEW} for lookups in pages)


@pytest.mark.parametrize("remember", ["scheduled", "crawled"])
@in_loop
async def test_a_url_is_new_to_one_of_the_pages_that_link_it_in_one_round(
    server: Server, remember: str
) -> None:
    async with worker(server, BLOOM_REMEMBER=remember) as one:
        pages = [page(one, "same"), page(one, "same"), page(one, "other")]
        await asyncio.gather(*map(one.crawl._duplicates.look_up, pages))
        of_another = CLAIMED if remember == "crawled" else SEEN
        assert [verdicts(lookups) for lookups in pages] == [{NEW}, {of_another}, {NEW}]
        first, second, _ = pages
        assert offered(one, second[:1]) == [False]  # it comes before the first page's
        assert offered(one, first) == [True] + 29 * [False]
        assert all(offered(one, second))
        assert one.stat("new") == 30


@in_loop
async def test_claims_for_a_page_that_is_cancelled_are_given_back_at_the_end(
    server: Server, client: redis.Redis
) -> None:
    """Also if the round that makes them is under way when the crawl closes; no other is sent."""
    async with worker(server, BLOOM_REMEMBER="crawled") as one:
        await one.crawl._duplicates.look_up(page(one, "first"))
        client.client_pause(300, all=False)
        asked, waiting = page(one, "asked"), page(one, "waiting")
        asking = [await under_way(one, asked), await under_way(one, waiting)]
        for task in asking:
            task.cancel()
        await asyncio.wait(asking)
        assert verdicts(asked) == {None}
        await one.close()
        assert (verdicts(asked), verdicts(waiting)) == ({NEW}, {None})
    assert not list(client.scan_iter("*claims*"))


@in_loop
async def test_after_a_failure_no_page_that_waits_is_seen(
    server: Server, client: redis.Redis
) -> None:
    async with worker(server, BLOOM_TIMEOUT=0.2) as one:
        await one.crawl._duplicates.look_up(page(one, "first"))
        client.client_pause(10_000, all=False)
        try:
            first, second = page(one, "same"), page(one, "same")
            asking = await under_way(one, first)
            await one.crawl._duplicates.look_up(second)
            await asking
            assert verdicts(first) == verdicts(second) == {UNKNOWN}
            # The first of the two to be scheduled is new, the other is not.
            assert not any(offered(one, first))
            assert all(offered(one, second))
        finally:
            client.client_unpause()
        assert one.stat("unknown") == 30
