"""A page's links are looked up together, in rounds; else, crawls go as with Scrapy's filter."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import redis
from scrapy import Request
from support.counting import COUNTING, PAGES, REMEMBER, assert_ended_well, plain, spider
from support.loops import in_loop
from support.odd_site import LabOf, page, tree
from support.servers import Server
from support.workers import Worker, put

from scrapy_bloom.bloom.errors import NotReadyError
from scrapy_bloom.bloom.protocol.rings import Operation
from scrapy_bloom.bloom.protocol.session import Verdict
from scrapy_bloom.crawl.lookups import Lookup
from scrapy_bloom.crawl.ops import OpKind

URL = "https://example.com/"
NEW, SEEN = Verdict.NEW, Verdict.SEEN
CLAIMED, UNKNOWN = Verdict.CLAIMED, Verdict.UNKNOWN

pytestmark = pytest.mark.usefixtures("client")  # the server is empty


def worker(server: Server, **settings: Any) -> Worker:
    # On a busy machine, there would be outages after the usual time.
    return Worker(server.url, **{"BLOOM_TIMEOUT": 20, "BLOOM_REMEMBER": "scheduled", **settings})


def links_of(one: Worker, name: str, links: int = 30) -> list[Lookup]:
    """Return the lookups about a page's links."""
    requests = [Request(f"{URL}{name}/{number}") for number in range(links)]
    lookups = [one.crawl._duplicates.lookups.prepare(request) for request in requests]
    return [lookup for lookup in lookups if lookup is not None]


def verdicts(lookups: Sequence[Lookup]) -> set[Verdict | None]:
    return {lookup.verdict for lookup in lookups}


def offered(one: Worker, lookups: Sequence[Lookup]) -> list[bool]:
    """Offer the links of a page to the scheduler; return which are seen."""
    return [one.dupefilter.request_seen(lookup.request) for lookup in lookups]


async def under_way(one: Worker, lookups: Sequence[Lookup]) -> "asyncio.Future[None]":
    """Begin to look a page up; return when its round is under way."""
    asking = asyncio.ensure_future(one.crawl._duplicates.lookups.look_up(lookups))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return asking


@in_loop
async def test_pages_that_come_together_are_asked_about_in_one_round(server: Server) -> None:
    async with worker(server) as one:
        # Loads the script, and reads the rings of all blocks.
        await one.crawl._duplicates.lookups.look_up(links_of(one, "first", links=500))
        before = one.server.round_trips[1]
        pages = [links_of(one, f"{number}") for number in range(20)]
        await asyncio.gather(*map(one.crawl._duplicates.lookups.look_up, pages))
        assert one.server.round_trips[1] == before + 1
        assert all(verdicts(lookups) == {NEW} for lookups in pages)


@REMEMBER
@in_loop
async def test_a_url_is_new_to_one_of_the_pages_that_link_it_in_one_round(
    server: Server, remember: str
) -> None:
    async with worker(server, BLOOM_REMEMBER=remember) as one:
        pages = [links_of(one, "same"), links_of(one, "same"), links_of(one, "other")]
        await asyncio.gather(*map(one.crawl._duplicates.lookups.look_up, pages))
        of_another = CLAIMED if remember == "crawled" else SEEN
        assert [verdicts(lookups) for lookups in pages] == [{NEW}, {of_another}, {NEW}]
        first, second, _ = pages
        assert offered(one, second[:1]) == [False]  # it comes before the first page's
        assert offered(one, first) == [True] + 29 * [False]
        assert all(offered(one, second))
        assert one.stat("new") == 30


@REMEMBER
@in_loop
async def test_links_of_all_windows_are_looked_up_in_one_round(
    server: Server, remember: str
) -> None:
    settings = {"BLOOM_RECRAWL_RULES": [("/day/", "1 day"), ("/weeks/", "2 weeks")]}
    async with worker(server, **settings) as one:
        for name in ("day", "weeks", "other"):
            assert not any(offered(one, links_of(one, name, links=10)))
    async with worker(server, **settings, BLOOM_REMEMBER=remember) as two:
        look_up = two.crawl._duplicates.lookups.look_up
        for name in ("day", "weeks", "other"):  # reads the rings of all blocks
            await look_up(links_of(two, f"{name}/first", links=500))
        before = two.server.round_trips
        pages = [links_of(two, name, links=20) for name in ("day", "weeks", "other")]
        await look_up([lookup for lookups in pages for lookup in lookups])
        for lookups in pages:
            assert [lookup.verdict for lookup in lookups] == [SEEN] * 10 + [NEW] * 10
            assert not any(offered(two, lookups[10:]))
        assert [two.stat(f"{name}new") for name in ("", "1-day/", "2-weeks/")] == [30, 10, 10]
        assert two.server.round_trips == (before[0], before[1] + 1)


@in_loop
async def test_a_url_that_another_worker_gives_up_is_new_again(server: Server) -> None:
    """Nobody would crawl it if it were known as seen since it was pending there."""
    settings = {"BLOOM_REMEMBER": "crawled"}
    async with worker(server, **settings) as one, worker(server, **settings) as two:
        assert not one.sees(0)
        assert two.sees(0)
        put(one, OpKind.RELEASE, 0)
        await one.crawl._writer.flush()
        assert not two.sees(0)


@in_loop
async def test_a_url_is_new_that_only_the_lookup_under_way_has_made_seen(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page redirects to itself meanwhile, and the reply is lost: one of both is fetched."""
    async with worker(server) as one:
        lookups = links_of(one, "page", links=1)
        run = one.server.run

        async def lose_reply(operation: Operation[Any]) -> Any:
            await run(operation)
            assert offered(one, lookups) == [True]
            raise NotReadyError("the reply is lost")

        monkeypatch.setattr(one.server, "run", lose_reply)
        await one.crawl._duplicates.lookups.look_up(lookups)
        assert offered(one, lookups) == [False]


@in_loop
async def test_claims_for_a_page_that_is_cancelled_are_given_back_at_the_end(
    server: Server, client: redis.Redis
) -> None:
    """Also if the round that makes them is under way when the crawl closes; no other is sent."""
    async with worker(server, BLOOM_REMEMBER="crawled") as one:
        await one.crawl._duplicates.lookups.look_up(links_of(one, "first"))
        client.client_pause(300, all=False)
        asked, waiting = links_of(one, "asked"), links_of(one, "waiting")
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
        await one.crawl._duplicates.lookups.look_up(links_of(one, "first"))
        client.client_pause(10_000, all=False)
        try:
            first, second = links_of(one, "same"), links_of(one, "same")
            asking = await under_way(one, first)
            await one.crawl._duplicates.lookups.look_up(second)
            await asking
            assert verdicts(first) == verdicts(second) == {UNKNOWN}
            # The first of the two to be scheduled is new, the other is not.
            assert not any(offered(one, first))
            assert all(offered(one, second))
        finally:
            client.client_unpause()
        assert one.stat("unknown") == 30


# -- crawls: each is a process of its own, and the site is in this one --

# -- as Scrapy does --

SELECT = {"TWISTED_REACTOR": "twisted.internet.selectreactor.SelectReactor"}
STATS = ("scheduler/enqueued", "dupefilter/filtered", "test/dropped")


@pytest.fixture(scope="module")
def expected(lab_of: LabOf) -> tuple[Counter[str], dict[str, Any]]:
    """What Scrapy alone fetches, and its stats."""
    return plain(lab_of(tree(PAGES)))


@pytest.mark.parametrize(
    ("settings", "is_batched"),
    [
        ({}, True),
        # From Scrapy 2.19 on; older ones do not know the setting.
        ({"TWISTED_REACTOR_ENABLED": False}, True),
        ({"BLOOM_REMEMBER": "scheduled", **SELECT}, False),
    ],
)
def test_the_same_pages_are_fetched_as_by_scrapy_alone(
    lab_of: LabOf,
    expected: tuple[Counter[str], dict[str, Any]],
    settings: dict[str, Any],
    is_batched: bool,
) -> None:
    lab, (hits, stats) = lab_of(tree(PAGES)), expected
    done = lab.crawl(COUNTING, **settings)
    assert done.hits == hits == Counter(lab.site.pages.keys())
    assert [done.stats[stat] for stat in STATS] == [stats[stat] for stat in STATS]
    assert done.recorded == lab.site.pages.keys() - {"/"}
    assert bool(done.stats["bloom/async_round_trips"]) is is_batched
    assert_ended_well(done)


def test_receivers_that_connect_during_the_crawl_get_signals(lab_of: LabOf) -> None:
    lab = lab_of({"/": page("/a"), "/a": page("/a", "/")})
    # Its from_crawler connects nothing.
    code = "from scrapy_bloom.crawl import outputs\n" + spider("""
@classmethod
def from_crawler(cls, crawler, *args, **kwargs):
    return super(CountingSpider, cls).from_crawler(crawler, *args, **kwargs)

async def parse(self, response):
    self.crawler.signals.connect(self.on_dropped, signals.request_dropped)
    await asyncio.sleep(2 * outputs.RECEIVERS_SECONDS)
    for request in super().parse(response):
        yield request
""")
    done = lab.crawl(code)
    assert done.hits == Counter(["/", "/a"])
    assert done.stats["test/dropped"] == done.stats["dupefilter/filtered"] >= 1


# -- what a page yields --


# -- what is new and is not scheduled --
