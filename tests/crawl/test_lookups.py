"""Many lookups at once: in rounds, for all that wait, and whoever is cancelled meanwhile."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from unittest import mock

import pytest
import redis
from scrapy import Request, Spider
from scrapy.utils.test import get_crawler
from support.servers import Server

from scrapy_bloom import BloomDupeFilter, BloomFilter
from scrapy_bloom.bloom.protocol.cached_ring import Verdict
from scrapy_bloom.crawl import request_codec
from scrapy_bloom.crawl.local_state import FRESH_SECONDS
from scrapy_bloom.crawl.lookups import Lookup

URL = "https://example.com/"
NEW, SEEN, UNKNOWN = Verdict.NEW, Verdict.SEEN, Verdict.UNKNOWN
PATIENCE = 20.0

Scenario = Callable[[BloomDupeFilter], Awaitable[None]]
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(server: Server, client: redis.Redis) -> Run:
    """Run a scenario with an open dupefilter on an empty server, in a loop; return the stats."""

    def run(scenario: Scenario, **settings: Any) -> dict[str, Any]:
        settings = {
            "BLOOM_REDIS_URL": server.url,
            "BLOOM_CAPACITY": 10_000,
            "BLOOM_REMEMBER": "scheduled",
            **settings,
        }
        crawler = get_crawler(Spider, settings)
        crawler.spider = crawler._create_spider("asking")

        async def bounded() -> None:
            dupefilter = BloomDupeFilter.from_crawler(crawler)
            dupefilter.open()
            try:
                await asyncio.wait_for(scenario(dupefilter), PATIENCE)
            finally:
                closing = dupefilter._close()
                if closing is not None:
                    await closing

        asyncio.run(bounded())
        return crawler.stats.get_stats()

    return run


def page(dupefilter: BloomDupeFilter, name: str, links: int = 30) -> list[Lookup]:
    """Return the lookups about a page's links."""
    prepare = dupefilter._crawl.decider.prepare
    lookups = [prepare(Request(f"{URL}{name}/{n}")) for n in range(links)]
    return [lookup for lookup in lookups if lookup is not None]


def verdicts(lookups: Sequence[Lookup]) -> set[Verdict | None]:
    return {lookup.verdict for lookup in lookups}


def test_pages_that_come_together_are_asked_about_in_one_round(run: Run) -> None:
    async def scenario(dupefilter: BloomDupeFilter) -> None:
        await dupefilter._crawl.decider.decide_many(page(dupefilter, "first"))  # loads the script
        before = dupefilter._crawl.server.async_round_trips
        pages = [page(dupefilter, f"{number}") for number in range(20)]
        await asyncio.gather(*map(dupefilter._crawl.decider.decide_many, pages))
        assert dupefilter._crawl.server.async_round_trips == before + 1
        assert all(verdicts(lookups) == {NEW} for lookups in pages)

    run(scenario)


@pytest.mark.parametrize("remember", ["scheduled", "crawled"])
def test_a_url_is_looked_up_once_in_a_round_for_all_pages_that_link_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, remember: str
) -> None:
    dump = mock.Mock(wraps=request_codec.dump)
    monkeypatch.setattr(request_codec, "dump", dump)

    async def scenario(dupefilter: BloomDupeFilter) -> None:
        pages = [page(dupefilter, "same"), page(dupefilter, "same"), page(dupefilter, "other")]
        await asyncio.gather(*map(dupefilter._crawl.decider.decide_many, pages))
        assert [verdicts(lookups) for lookups in pages] == [{NEW}, {SEEN}, {NEW}]
        requests = [[lookup.request for lookup in lookups] for lookups in pages]
        assert dupefilter.request_seen(requests[1][0]) is False  # it comes before the first page's
        assert [*map(dupefilter.request_seen, requests[0])] == [True] + 29 * [False]
        assert all(map(dupefilter.request_seen, requests[1]))

    stats = run(scenario, BLOOM_REMEMBER=remember)
    assert dump.call_count == (60 if remember == "crawled" else 0)
    assert stats["bloom/new"] == 30


def test_with_a_shared_queue_what_another_page_has_claimed_is_looked_up_with_the_others(
    run: Run,
) -> None:
    """Other workers may end the claim, so that it is no answer for the next page."""

    async def scenario(dupefilter: BloomDupeFilter) -> None:
        first = page(dupefilter, "same")
        await dupefilter._crawl.decider.decide_many(first)
        second = page(dupefilter, "same")
        await dupefilter._crawl.decider.decide_many(second)
        assert len(first) == len(second)
        assert all(lookup.is_duplicate for lookup in second)
        assert not any(dupefilter.request_seen(lookup.request) for lookup in first)

    shared = {"SCHEDULER": "scrapy_redis.scheduler.Scheduler"}
    run(scenario, BLOOM_REMEMBER="crawled", **shared)


@pytest.mark.parametrize(("name", "rounds", "verdict"), [("same", 1, SEEN), ("other", 2, NEW)])
def test_what_comes_during_a_round_is_part_of_it_or_of_the_next(
    run: Run, name: str, rounds: int, verdict: Verdict
) -> None:
    async def scenario(dupefilter: BloomDupeFilter) -> None:
        await dupefilter._crawl.decider.decide_many(page(dupefilter, "first"))  # loads the script
        before = dupefilter._crawl.server.async_round_trips
        first, second = page(dupefilter, "same"), page(dupefilter, name)
        asking = asyncio.ensure_future(dupefilter._crawl.decider.decide_many(first))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # it is under way
        await dupefilter._crawl.decider.decide_many(second)
        assert asking.done()
        assert verdicts(first) == {NEW}
        assert verdicts(second) == {verdict}
        assert dupefilter._crawl.server.async_round_trips == before + rounds

    run(scenario)


def test_one_page_that_is_cancelled_leaves_the_others_their_answers(run: Run) -> None:
    async def scenario(dupefilter: BloomDupeFilter) -> None:
        cancelled, other = page(dupefilter, "cancelled"), page(dupefilter, "other")
        tasks = [
            asyncio.ensure_future(dupefilter._crawl.decider.decide_many(one))
            for one in (cancelled, other)
        ]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.wait(tasks)
        assert tasks[0].cancelled()
        assert verdicts(other) == {NEW}

    assert "bloom/unknown" not in run(scenario)


def test_closing_does_not_wait_for_a_lookup_of_a_cancelled_page(
    run: Run, client: redis.Redis
) -> None:
    """It was to be part of the next round: it is never sent, and nothing is claimed for it."""

    async def scenario(dupefilter: BloomDupeFilter) -> None:
        asked, cancelled = page(dupefilter, "asked"), page(dupefilter, "cancelled")
        task = asyncio.ensure_future(dupefilter._crawl.decider.decide_many(asked))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # it is under way
        waiting = asyncio.ensure_future(dupefilter._crawl.decider.decide_many(cancelled))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([task, waiting])
        assert waiting.cancelled()
        assert verdicts(asked) == {NEW}
        assert verdicts(cancelled) == {None}
        closing = dupefilter._close()
        assert closing is not None
        await closing

    stats = run(scenario, BLOOM_REMEMBER="crawled")
    assert "bloom/unknown" not in stats
    assert not list(client.scan_iter("*claims"))


def test_claims_for_a_page_that_is_cancelled_are_given_back_at_the_end(
    run: Run, client: redis.Redis
) -> None:
    """Also if the round that makes them is under way when the crawl closes."""

    async def scenario(dupefilter: BloomDupeFilter) -> None:
        await dupefilter._crawl.decider.decide_many(page(dupefilter, "first"))
        client.client_pause(300, all=False)
        lookups = page(dupefilter, "cancelled")
        task = asyncio.ensure_future(dupefilter._crawl.decider.decide_many(lookups))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # it is under way
        task.cancel()
        await asyncio.wait([task])
        assert verdicts(lookups) == {None}
        closing = dupefilter._close()
        assert closing is not None
        await closing
        assert verdicts(lookups) == {NEW}

    stats = run(scenario, BLOOM_REMEMBER="crawled")
    assert stats["bloom/released"] == 60
    assert not list(client.scan_iter("*claims"))


def test_a_page_that_is_cancelled_hides_nothing(run: Run) -> None:
    """Its links are perhaps claimed: whoever is offered one of them in this process takes it."""

    async def scenario(dupefilter: BloomDupeFilter) -> None:
        lookups = page(dupefilter, "cancelled")
        task = asyncio.ensure_future(dupefilter._crawl.decider.decide_many(lookups))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await dupefilter._crawl.decider.decide_many(page(dupefilter, "other"))
        assert not any(dupefilter.request_seen(lookup.request) for lookup in lookups)
        assert all(dupefilter.request_seen(lookup.request) for lookup in lookups)

    run(scenario)


def test_after_a_failure_nobody_who_waits_is_told_seen(run: Run, client: redis.Redis) -> None:
    async def scenario(dupefilter: BloomDupeFilter) -> None:
        await dupefilter._crawl.decider.decide_many(page(dupefilter, "first"))
        client.client_pause(10_000, all=False)
        try:
            first, second = page(dupefilter, "same"), page(dupefilter, "same")
            asking = asyncio.ensure_future(dupefilter._crawl.decider.decide_many(first))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await dupefilter._crawl.decider.decide_many(second)
            await asking
            assert verdicts(first) == verdicts(second) == {UNKNOWN}
            # The first of the two to be scheduled is new, the other is not.
            assert not any(dupefilter.request_seen(lookup.request) for lookup in first)
            assert all(dupefilter.request_seen(lookup.request) for lookup in second)
        finally:
            client.client_unpause()

    assert run(scenario, BLOOM_TIMEOUT=0.2)["bloom/unknown"] == 30


def test_a_rotation_by_another_process_does_not_bring_back_what_was_cached_before_it(
    run: Run, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lookup that notices it was sent under the old ring, and answered under the new one."""

    async def scenario(dupefilter: BloomDupeFilter) -> None:
        decider, local = dupefilter._crawl.decider, dupefilter._crawl.context.local
        first = page(dupefilter, "first")
        await decider.decide_many(first)
        assert not any(dupefilter.request_seen(lookup.request) for lookup in first)
        assert verdicts(page(dupefilter, "first")) == {SEEN}
        BloomFilter(client, "asking:bloom").clear()
        later = time.monotonic() + FRESH_SECONDS + 1
        for part in (local, decider.lookups):
            monkeypatch.setattr(part, "_clock", lambda: later)
        other = page(dupefilter, "other", links=1)
        await decider.decide_many(other)
        assert verdicts(other) == {NEW}
        again = page(dupefilter, "first")
        assert verdicts(again) == {None}
        await decider.decide_many(again)
        assert verdicts(again) == {NEW}

    run(scenario, BLOOM_BLOCKS=1)
