"""Whose claims are taken over, and whether a crawl may end: by rules, and on a real server."""

import time
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import redis

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.client.connection import Connection
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.protocol import claim_protocol, worker_protocol
from scrapy_bloom.bloom.protocol.claim_protocol import RetryPolicy, StoredClaim
from scrapy_bloom.crawl.claims import pace, workers
from scrapy_bloom.crawl.claims.claim_sweep import Reclaimed
from scrapy_bloom.crawl.claims.reclaimer import Reclaimer, ReclaimerStatus
from scrapy_bloom.crawl.claims.worker_view import WorkerView
from scrapy_bloom.crawl.claims.workers import Process, Worker
from scrapy_bloom.crawl.filters import Filters

NOW = 1_000_000
FAR = Process("far", 7, "another machine", 99)


def worker(until: int, *, spider: str = "shop", queue: str = "") -> Worker:
    return Worker(workers.worker_id(spider), until, 30.0, FAR, queue)


ME = worker(NOW + 60)
ALIVE, SILENT, STOPPED = worker(NOW + 1), worker(NOW), worker(0)
QUEUE = workers.queue_id("shop", "redis shop:requests")
FAILED = workers.failed_id("shop")


def crew(*others: Worker, **fields: Any) -> WorkerView:
    return WorkerView(ME, "shop", {w.id: w for w in others}, NOW, **fields)


def claim(owner: str, time: int = NOW - 1_000) -> StoredClaim:
    return StoredClaim("f", owner, "nonce", time, 0, 10)


@pytest.mark.parametrize(
    ("owner", "is_free"), [(ME, False), (ALIVE, False), (SILENT, True), (STOPPED, True)]
)
def test_claims_of_the_dead_are_free(owner: Worker, is_free: bool) -> None:
    assert crew(ALIVE, SILENT, STOPPED).is_free(claim(owner.id)) is is_free


def test_workers_of_other_spiders_stay_and_show_what_they_left() -> None:
    dead = worker(0, spider="other")
    assert crew(dead, SILENT).dead == [SILENT]
    assert not crew(dead).has_left_claims
    assert crew(dead, awaited={dead.id}).has_left_claims
    assert crew(replace(dead, queue="qother"), awaited={"qother"}).has_left_claims
    assert not crew(dead).has_kin
    assert crew(dead, SILENT).has_kin


def test_its_own_claims_are_free_if_nobody_told_it_of_what_they_are() -> None:
    assert not crew().is_free(claim(ME.id))
    assert crew(lost={"nonce"}).is_free(claim(ME.id))


def test_silence_says_nothing_while_the_server_was_away() -> None:
    mine = crew(SILENT, STOPPED, trusts_silence=False)
    assert not mine.is_free(claim(SILENT.id))
    assert mine.is_free(claim(STOPPED.id))


def test_a_process_that_is_gone_is_dead_at_once() -> None:
    gone = replace(ALIVE, process=replace(Process.own(), started=1))
    assert crew(gone).is_free(claim(gone.id)) is bool(gone.process.place)


@pytest.mark.parametrize(("due", "is_free"), [(NOW - 1, True), (NOW, True), (NOW + 1, False)])
def test_what_failed_is_free_when_it_is_due(due: int, is_free: bool) -> None:
    assert crew().is_free(claim(FAILED, due)) is is_free


@pytest.mark.parametrize(("known_for", "is_free"), [(None, False), (59.0, False), (60.0, True)])
def test_an_owner_nobody_knows_gets_time_to_show_up(known_for: float | None, is_free: bool) -> None:
    owner = workers.worker_id("shop")
    unknown = {} if known_for is None else {owner: known_for}
    mine = crew(ALIVE, unknown=unknown)
    assert mine.is_free(claim(owner)) is is_free
    assert mine.is_to_be_awaited(claim(owner))


@pytest.mark.parametrize(
    ("idle_since", "made", "is_free"),
    [
        (0, NOW - 10_000, False),
        (NOW - 4, NOW - 10_000, False),
        (NOW - 5, NOW - 5, True),
        (NOW - 5, NOW - 4, False),
        (NOW - 20, NOW - 9, False),
        (NOW - 20, NOW - 10, True),
    ],
)
def test_what_was_claimed_and_is_not_in_the_queue_is_lost(
    idle_since: int, made: int, is_free: bool
) -> None:
    mine = replace(crew(idle_since=idle_since), me=replace(ME, queue=QUEUE))
    assert mine.is_free(claim(QUEUE, made)) is is_free
    assert mine.is_to_be_awaited(claim(QUEUE, made))


def test_what_another_queue_has_is_its_workers_business() -> None:
    assert not crew(replace(ALIVE, queue=QUEUE)).is_free(claim(QUEUE))
    assert crew(replace(SILENT, queue=QUEUE)).is_free(claim(QUEUE))
    assert crew(ALIVE).is_free(claim(QUEUE))


def test_what_a_jobdir_has_is_left_to_it_until_it_is_empty() -> None:
    stopped = replace(STOPPED, queue="dir /jobs")
    mine = replace(crew(stopped), me=replace(ME, queue="dir /jobs"))
    assert not mine.is_free(claim(stopped.id))
    assert replace(mine, idle_since=NOW).is_free(claim(stopped.id))
    assert crew(stopped).is_free(claim(stopped.id)), "another run without that JOBDIR"


def test_nobody_is_waited_for_whose_fate_is_known() -> None:
    mine = crew(ALIVE, SILENT)
    for owner in (ME.id, ALIVE.id, SILENT.id, FAILED):
        assert not mine.is_to_be_awaited(claim(owner))


# -- on a server --


class Crawl:
    """A crawl's side of the takeover: collects what is found."""

    def __init__(
        self, bloom: BloomFilter, client: redis.Redis, queue: str = "", heartbeat: float = 1.0
    ) -> None:
        self.filters = Filters({"default": bloom}, Connection(client, ""))
        self.taken: dict[str, str] = {}
        self.ended = 0
        self.is_awaiting = False
        #: Number of the idle period.
        self.number = 1
        me = Worker(workers.worker_id("shop"), 0, heartbeat, Process.own(), queue)
        self.me, self.takeover = me, Reclaimer(me, "shop", self, lambda event: event())

    # The events of the reclaimer:

    def found(self, found: Reclaimed) -> None:
        self.taken |= found.requests
        self.takeover.resume()
        self.takeover.go_on()

    def dropped(self, window: str, fields: Collection[str], begun: float) -> None:
        pass

    def wanted(self) -> None:
        self.takeover.go_on()

    def looked(self, status: ReclaimerStatus) -> None:
        self.ended += status.may_end == self.number > 0
        self.number += status.may_end == self.number > 0

    def work(self, rounds: int = 40) -> None:
        for _ in range(rounds):
            self.takeover.run(self.filters)

    def wait(self) -> None:
        """Have it work until it lets the crawl end, or finds something to do."""
        self.takeover.idle(self.number, is_awaiting=self.is_awaiting)
        deadline = time.monotonic() + 20
        while not self.ended and not self.taken and time.monotonic() < deadline:
            self.takeover.run(self.filters)
            time.sleep(0.02)
        assert self.ended or self.taken
        self.work()


@pytest.fixture
def bloom(client: redis.Redis) -> BloomFilter:
    bloom = BloomFilter(client, "k", blocks=4, capacity=1_000)
    bloom.open()
    return bloom


@pytest.fixture
def crawl(bloom: BloomFilter, client: redis.Redis) -> Crawl:
    return Crawl(bloom, client)


def leave(bloom: BloomFilter, owner: str, count: int = 10, request: str = "{}") -> set[str]:
    """Claim something for an owner; return the fields."""
    items = [f"{owner} {number}".encode()[-30:] for number in range(count)]
    bloom.run(lambda session: claim_protocol.claim(session, items, [request] * count, owner, "n"))
    return {field_of(item) for item in items}


def enter(bloom: BloomFilter, entry: Worker, life: int) -> None:
    bloom.run(lambda session: worker_protocol.heartbeat(session, entry.member, life, nonce="n"))


def entries(bloom: BloomFilter) -> set[str]:
    return {member.split()[0] for member in bloom.run(worker_protocol.heartbeat).entries}


def test_a_worker_enters_itself_and_leaves(bloom: BloomFilter, crawl: Crawl) -> None:
    crawl.work(1)
    assert entries(bloom) == {crawl.me.id}
    crawl.takeover.end(crawl.filters)
    assert entries(bloom) == set()


def test_a_worker_that_leaves_claims_behind_says_that_it_has_stopped(
    bloom: BloomFilter, client: redis.Redis, crawl: Crawl
) -> None:
    crawl.work(1)
    fields = leave(bloom, crawl.me.id)
    crawl.takeover.end(crawl.filters)
    second = Crawl(bloom, client)
    second.work()
    assert set(second.taken) == fields
    assert entries(bloom) == {second.me.id}


def test_ten_thousand_claims_of_a_dead_worker_are_taken_over_as_they_are_wanted(
    bloom: BloomFilter, crawl: Crawl
) -> None:
    dead = worker(0)
    fields = leave(bloom, dead.id, 10_000)
    enter(bloom, dead, 0)
    crawl.takeover.run(crawl.filters)
    crawl.takeover._wants_more = False
    assert len(crawl.taken) <= 512, "a page at a time (a small hash is one page)"
    for _ in range(200):
        crawl.takeover.go_on()
        crawl.takeover.run(crawl.filters)
    assert set(crawl.taken) == fields
    assert dead.id not in entries(bloom)


def test_a_claim_whose_request_is_not_kept_becomes_new(bloom: BloomFilter, crawl: Crawl) -> None:
    dead = worker(0)
    leave(bloom, dead.id, request="")
    enter(bloom, dead, 0)
    crawl.work()
    assert not crawl.taken
    assert bloom.info().claims == 0


def test_two_workers_share_what_a_third_has_left(
    bloom: BloomFilter, client: redis.Redis, crawl: Crawl
) -> None:
    dead = worker(0)
    fields = leave(bloom, dead.id, 2_000)
    enter(bloom, dead, 0)
    second = Crawl(BloomFilter(client, "k"), client)
    for _ in range(100):
        crawl.takeover.run(crawl.filters)
        second.takeover.run(second.filters)
    assert set(crawl.taken) | set(second.taken) == fields
    assert not set(crawl.taken) & set(second.taken)


def test_a_crawl_alone_may_end_at_once(crawl: Crawl) -> None:
    crawl.work()
    assert not crawl.takeover.status.has_peers
    crawl.wait()
    assert crawl.ended == 1


def test_a_crawl_waits_for_one_that_may_be_dead_and_takes_over(
    bloom: BloomFilter, crawl: Crawl
) -> None:
    ghost = worker(0)
    fields = leave(bloom, ghost.id)
    enter(bloom, ghost, 2)
    crawl.work()
    assert not crawl.taken
    crawl.wait()
    assert set(crawl.taken) == fields


def test_a_crawl_does_not_wait_for_one_that_shows_it_is_alive(
    bloom: BloomFilter, crawl: Crawl
) -> None:
    other = replace(worker(0), heartbeat=1.0)
    enter(bloom, other, other.life)
    crawl.takeover.idle(crawl.number, is_awaiting=False)
    for _ in range(4):
        crawl.work(2)
        time.sleep(0.3)
    assert not crawl.ended
    enter(bloom, other, other.life)
    crawl.wait()
    assert crawl.ended
    assert not crawl.taken


def test_claims_of_an_owner_without_an_entry_are_taken_over_after_a_while(
    bloom: BloomFilter, crawl: Crawl
) -> None:
    fields = leave(bloom, workers.worker_id("shop"))
    crawl.work()
    assert not crawl.taken
    crawl.wait()
    assert set(crawl.taken) == fields


def test_what_a_queue_has_lost_is_found_when_it_is_empty(
    bloom: BloomFilter, client: redis.Redis
) -> None:
    crawl = Crawl(bloom, client, QUEUE)
    fields = leave(bloom, QUEUE)
    crawl.work()
    assert not crawl.taken
    crawl.wait()
    assert set(crawl.taken) == fields
    assert bloom.run(lambda v: claim_protocol.claim(v, [b"new"], ["{}"], QUEUE, "m")) == ["1"]


def test_failures_that_are_due_are_taken_up_and_those_without_a_request_forgotten(
    bloom: BloomFilter, crawl: Crawl
) -> None:
    for name, request, seconds in (("due", "{}", 0), ("bare", "", 0), ("later", "{}", 900)):
        item = name.encode()
        claim = partial(claim_protocol.claim, items=[item], requests=[request])
        bloom.run(partial(claim, owner="w", nonce="n"))
        failure = RetryPolicy(FAILED, seconds, 5)
        bloom.run(partial(claim_protocol.release, items=[item], owner="w", failure=failure))
    crawl.work()
    assert crawl.taken == {b"due".hex(): "{}"}
    assert bloom.info().claims == 2


def test_after_an_outage_the_others_get_time_to_come_back(bloom: BloomFilter, crawl: Crawl) -> None:
    crawl.work()
    ghost = worker(0)
    leave(bloom, ghost.id)
    enter(bloom, ghost, 1)
    time.sleep(1.1)
    crawl.takeover.recovered()
    crawl.work()
    assert not crawl.taken


# -- many workers --


class SharedLooks:
    """Two idle workers of many, where no worker may look for a long time after another one."""

    def __init__(self, bloom: BloomFilter, client: redis.Redis) -> None:
        self._client = client
        self.first, self.second = (Crawl(bloom, client, QUEUE) for _ in range(2))
        self._turns: Any = self.second.takeover._turns
        for crawl in (self.first, self.second):
            crawl.takeover.begin(crawl.filters)
            crawl.takeover.idle(crawl.number, is_awaiting=False)

    def look(self, *, clean: bool) -> None:
        """Let a third worker look at all claims."""
        time.sleep(0.002)  # a look counts that began after another millisecond
        bloom, group = self.second.filters.default, self._turns._group(self.second.filters)
        begin = partial(worker_protocol.begin_look, group=group, since=0, pause=0, clean=clean)
        begun = bloom.run(begin).now
        bloom.run(partial(worker_protocol.end_look, group=group, begun=begun, clean=clean))

    def may_end(self) -> bool:
        """Whether the second worker may end."""
        return self.second.ended > 0

    @property
    def scans(self) -> int:
        """How often claims were scanned."""
        stats: Any = self._client.info("commandstats")
        return int(stats.get("cmdstat_hscan", {"calls": 0})["calls"])


@pytest.fixture
def shared(bloom: BloomFilter, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> SharedLooks:
    monkeypatch.setattr(pace, "pause_seconds", lambda *_, **__: 500.0)
    monkeypatch.setattr(pace, "retry_seconds", lambda *_: 0.0)
    return SharedLooks(bloom, client)


def test_an_idle_worker_leaves_the_look_to_another(shared: SharedLooks) -> None:
    shared.first.work()
    assert shared.first.ended == 1
    before = shared.scans
    shared.second.work()
    assert not shared.may_end(), "the look of the first began before"
    shared.look(clean=False)
    shared.second.work()
    assert not shared.may_end(), "claims were found"
    shared.look(clean=True)
    shared.second.work()
    assert shared.may_end()
    assert shared.scans == before


def test_a_look_before_a_worker_was_found_dead_does_not_count(
    shared: SharedLooks, bloom: BloomFilter
) -> None:
    shared.first.work()
    shared.second.work()
    shared.look(clean=True)
    dead = worker(0)
    enter(bloom, dead, 0)
    shared.second.work()
    assert not shared.may_end()


def test_a_worker_that_knows_of_free_claims_looks_itself(
    shared: SharedLooks, bloom: BloomFilter
) -> None:
    shared.first.work()
    shared.second.work()
    shared.look(clean=True)
    before = shared.scans
    shared.second.takeover.look_soon()
    shared.second.work()
    assert shared.scans > before
    assert shared.may_end()


@pytest.fixture
def reads_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker use the list of workers that it has read for a long time."""
    monkeypatch.setattr(pace, "read_seconds", lambda _: 1e9)


@pytest.mark.usefixtures("reads_once")
def test_a_look_knows_the_workers_that_are_new(bloom: BloomFilter, crawl: Crawl) -> None:
    crawl.work()
    new = worker(0)
    enter(bloom, new, 60)
    leave(bloom, new.id)
    crawl.takeover.look_soon()
    crawl.work()
    sweep: Any = crawl.takeover._claims
    assert not sweep.met
    assert not crawl.taken


@pytest.mark.usefixtures("reads_once")
def test_a_process_that_has_left_in_order_is_not_looked_for(
    bloom: BloomFilter, crawl: Crawl, client: redis.Redis
) -> None:
    gone = replace(worker(0), process=replace(Process.own(), started=1))
    if not gone.process.is_gone:
        pytest.skip("nothing can be seen of other processes here")
    near = replace(gone, process=Process.own())
    enter(bloom, near, 60)
    crawl.work()
    heartbeats: Any = crawl.takeover._heartbeats
    known = heartbeats._known["default"].by_id
    assert not crawl.takeover._claims.views["default"].dead
    known[near.id] = replace(known[near.id], process=gone.process)
    remove = partial(worker_protocol.remove_workers, entries={near.member: ""}, nonce="m")
    bloom.run(remove)
    heartbeats.send(crawl.filters, is_idle=False)
    assert not crawl.takeover._claims.views["default"].dead


def test_few_workers_notice_a_dead_one_as_soon_as_it_counts_as_dead(
    bloom: BloomFilter, client: redis.Redis
) -> None:
    crawl = Crawl(bloom, client, heartbeat=30.0)
    crawl.takeover.begin(crawl.filters)
    assert crawl.takeover.run(crawl.filters) > 20
    enter(bloom, worker(0), 7)
    crawl.takeover._heartbeats.send(crawl.filters, is_idle=False)
    assert crawl.takeover.run(crawl.filters) <= 7


def test_at_its_end_a_worker_scans_few_claims(bloom: BloomFilter, crawl: Crawl) -> None:
    crawl.work(1)
    leave(bloom, workers.worker_id("shop"), 10_000)
    crawl.takeover.end(crawl.filters)
    # It may have claims of its own among the others: the next look removes it if it has none.
    assert entries(bloom) == {crawl.me.id}
    Crawl(bloom, crawl.filters.connection.client).work()
    assert crawl.me.id not in entries(bloom)
