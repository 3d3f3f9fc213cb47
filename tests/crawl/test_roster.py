"""Heartbeats, scans and retries by a clock of the test, on a real server."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
from support.cli import KEY, URLS, claim, claims, fail
from support.clock import MovedServer
from support.loops import in_loop
from support.servers import Server
from support.workers import Worker as Crawler

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.protocol.claims import NewClaim
from scrapy_bloom.crawl import leftovers, recovery, roster
from scrapy_bloom.crawl.engine import FEW_REQUESTS
from scrapy_bloom.crawl.leftovers import DUE_SECONDS, Leftovers
from scrapy_bloom.crawl.ops import Op, OpKind
from scrapy_bloom.crawl.owners import Worker
from scrapy_bloom.crawl.roster import Roster

HEARTBEAT = 10
FAR = {"BLOOM_HEARTBEAT": 3_600}
ENTRIES = f"{{{KEY}:0}}:workers:shop"


class Clock:
    """The clock of the process, as heartbeats, scans and retries see it."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (roster, leftovers, recovery):
        monkeypatch.setattr(module, "time", clock)
    return clock


def enter(server: Server, numbers: range, *, left: int = HEARTBEAT) -> set[str]:
    """Note a last heartbeat of other workers, after which so many seconds are left."""
    workers = [Worker(f"w{n}.", "elsewhere", 7, 99, "", "", 2 * HEARTBEAT) for n in numbers]
    with server.client() as client:
        until = client.time()[0] + left
        if workers:
            client.zadd(ENTRIES, {one.member: until for one in workers})
    return {one.id for one in workers}


def recovery_of(crawler: Crawler) -> tuple[Roster, Leftovers]:
    """Return a roster and leftovers that do only what the test says."""
    context = crawler.crawl._context
    roster = Roster(context)
    return roster, Leftovers(context, roster, crawler.crawl._writer, crawler.offers)


# -- many workers --


@pytest.mark.parametrize(
    ("shares", "is_idle", "others", "pause"),
    [
        (True, False, 100, 1),
        (True, False, 300, 3),
        (True, False, 999, HEARTBEAT * 0.999),
        (True, True, 100, 0.5),
        (False, True, 300, 1.5),
        (False, False, 300, HEARTBEAT),
    ],
)
def test_pauses_between_heartbeats_grow_with_the_workers_up_to_the_setting(
    own_server: Server, clock: Clock, *, shares: bool, is_idle: bool, others: int, pause: float
) -> None:
    @in_loop
    async def beat() -> None:
        settings = {"BLOOM_HEARTBEAT": HEARTBEAT, "BLOOM_SHARE_WORK": shares}
        async with Crawler(own_server.url, **settings) as crawler:
            mine, _ = recovery_of(crawler)
            mine.is_idle = is_idle
            enter(own_server, range(others))
            await mine.beat()  # it shows how many there are
            await mine.beat()
            assert mine.next_beat - clock.now == pytest.approx(pause)

    beat()


@in_loop
async def test_all_of_300_workers_keep_their_claims_however_many_have_died(
    own_server: Server,
) -> None:
    async with Crawler(own_server.url, **FAR) as crawler:
        dead, alive = enter(own_server, range(300, 1_500), left=-60), enter(own_server, range(300))
        with own_server.client() as client:
            bloom = BloomFilter(client, KEY)
            for url, owner in zip(URLS, ["w0.", "w299.", "w300.", "w1499."], strict=False):
                claim(bloom, [url], owner)
            mine, left = recovery_of(crawler)
            await mine.beat()
            assert mine.alive == alive
            assert not mine.owners() & dead
            await left.free()
            owners = [claims(client)[url][0] for url in URLS[:4]]
            assert owners == ["w0.", "w299.", "-.", "-."]


@in_loop
async def test_a_worker_that_came_after_the_last_heartbeat_keeps_its_claims(
    own_server: Server,
) -> None:
    async with Crawler(own_server.url, **FAR) as crawler:
        mine, left = recovery_of(crawler)
        await mine.beat()
        enter(own_server, range(1))
        with own_server.client() as client:
            claim(BloomFilter(client, KEY), URLS[:1], "w0.")
            await left.free()
            assert claims(client)[URLS[0]][0] == "w0."
            assert left.may_have_more is False


# -- retries --


def holds(slot: Any, urls: list[str]) -> bool:
    """Return whether some URLs were scheduled, in this order, and no other."""
    return [one.url for one in slot.scheduler] == urls


def schedule_with(crawler: Crawler) -> Any:
    """Give a crawl an engine that schedules what it's given; return the engine's slot."""
    engine: Any = crawler.engine
    slot = SimpleNamespace(scheduler=[], closing=None)

    def crawl(request: Any) -> None:
        crawler.offers.offered(request)
        slot.scheduler.append(request)
        crawler.offers.accepted(request)

    engine._slot, engine.crawl = slot, crawl
    return slot


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_failed_pages_the_first_one_is_retried_first_and_the_second_later(
    moved_server: MovedServer, clock: Clock, order: tuple[int, int]
) -> None:
    first, second = (URLS[number] for number in order)
    seeds = [*range(1, 15)]  # any, but the same in both orders: they decide what is scanned first

    @in_loop
    async def retry() -> None:
        with moved_server.client() as client:
            client.flushall()
            async with Crawler(moved_server.url, BLOOM_SEEDS=seeds, **FAR) as crawler:
                slot, (_, left) = schedule_with(crawler), recovery_of(crawler)
                left.is_next = True
                bloom = BloomFilter(client, KEY)
                fail(bloom, [first], 100)
                fail(bloom, [second], 500)
                for pause, due, retried in ((100, 100, []), (400, 400, [first])):
                    await left.free()
                    while await left.pick_up():
                        pass
                    assert holds(slot, retried)
                    assert left.next_due - clock.now == pytest.approx(due)
                    moved_server.move(pause)
                    clock.now += pause
                await left.free()
                assert await left.pick_up()
                assert holds(slot, [first, second])

    retry()


@in_loop
async def test_failed_pages_are_looked_for_once_a_minute_at_most(own_server: Server) -> None:
    async with Crawler(own_server.url, **FAR) as crawler:
        _, left = recovery_of(crawler)
        with own_server.client() as client:
            fail(BloomFilter(client, KEY), URLS[:1], 5)
        before = time.monotonic()
        await left.free()
        assert before + DUE_SECONDS <= left.next_due <= time.monotonic() + DUE_SECONDS


@in_loop
async def test_what_waits_is_picked_up_when_a_full_queue_has_room(own_server: Server) -> None:
    """Others send heartbeats meanwhile, and don't lose it."""
    async with Crawler(own_server.url, **FAR) as crawler:
        slot, (mine, left) = schedule_with(crawler), recovery_of(crawler)
        left.is_next = True
        slot.scheduler += range(FEW_REQUESTS)
        with own_server.client() as client:
            claim(BloomFilter(client, KEY), URLS[:3], "w9.")
            await left.free()
            for number in range(3):
                enter(own_server, range(number))
                await mine.beat()
                assert not await left.pick_up()
                assert left.is_under_way
            assert {claims(client)[url][0] for url in URLS[:3]} == {"-."}
        slot.scheduler.clear()
        while left.is_under_way:
            await left.pick_up()
        assert {one.url for one in slot.scheduler} == {*URLS[:3]}


# -- scans and writes --


@in_loop
async def test_a_heartbeat_is_sent_during_a_scan_that_takes_long(
    own_server: Server, clock: Clock
) -> None:
    async with Crawler(own_server.url, **FAR) as crawler:
        mine, left = recovery_of(crawler)
        await mine.beat()
        clock.now = mine.next_beat
        await left.free()
        assert mine.next_beat > clock.now


@in_loop
async def test_an_idle_crawl_waits_for_its_writes(own_server: Server) -> None:
    """They may turn out to be of pages that have to be crawled again."""
    async with Crawler(own_server.url, **FAR) as crawler:
        idle = recovery.Idle(count=0, waits_until=0)
        assert not crawler.crawl._recovery._may_find_more(idle)
        crawler.ops.append(Op(OpKind.CLAIM, NewClaim(("default", b"a" * 20))))
        assert crawler.crawl._recovery._may_find_more(idle)
