"""Whose claims are taken over, what a worker knows of others, and which of them it waits for."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from scrapy_bloom.bloom.protocol.claim_protocol import StoredClaim
from scrapy_bloom.bloom.protocol.worker_protocol import MAX_NAMED, WorkerEntries
from scrapy_bloom.crawl import workers
from scrapy_bloom.crawl.liveness import GRACE_SECONDS, Heartbeats, KnownWorkers, WorkerView
from scrapy_bloom.crawl.workers import Process, Worker

NOW = 1_000_000
FAR = Process("far", 7, "another machine", 99)


def worker(until: int, spider: str = "shop", *, process: Process = FAR, queue: str = "") -> Worker:
    return Worker(workers.worker_id(spider), until, 30.0, process, queue)


ME = worker(NOW + 61)
ALIVE, SILENT, STOPPED = worker(NOW + 1), worker(NOW), worker(0)
QUEUE = workers.queue_id("shop", "redis shop:requests")
FAILED = workers.failed_id("shop")


def crew(*others: Worker, **fields: Any) -> WorkerView:
    return WorkerView(ME, {w.id: w for w in others}, NOW, **fields)


def claim(owner: str, time: int = NOW - 1_000) -> StoredClaim:
    return StoredClaim("f", owner, "nonce", time, 0, 10)


def test_claims_of_the_dead_are_free_and_its_own_if_nobody_told_it_what_they_are() -> None:
    mine = crew(ALIVE, SILENT, STOPPED)
    is_free = [mine.is_free(claim(owner.id)) for owner in (ME, ALIVE, SILENT, STOPPED)]
    assert is_free == [False, False, True, True]
    away = replace(mine, trusts_silence=False)
    assert not away.is_free(claim(SILENT.id)), "the server was away"
    assert away.is_free(claim(STOPPED.id))
    assert crew(lost={"nonce"}).is_free(claim(ME.id))


def test_workers_of_other_spiders_stay_and_show_what_they_left() -> None:
    dead = worker(0, "other")
    assert crew(dead, SILENT).dead == [SILENT]
    assert not crew(dead).has_left_claims
    assert crew(dead, awaited={dead.id}).has_left_claims
    assert crew(replace(dead, queue="qother"), awaited={"qother"}).has_left_claims
    assert not crew(dead).has_kin
    assert crew(dead, SILENT).has_kin


def test_a_process_that_is_gone_is_dead_at_once() -> None:
    gone = replace(ALIVE, process=replace(Process.own(), started=1))
    assert crew(gone).is_free(claim(gone.id)) is bool(gone.process.place)


def test_what_failed_is_free_when_it_is_due() -> None:
    assert crew().is_free(claim(FAILED, NOW))
    assert not crew().is_free(claim(FAILED, NOW + 1))


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


# -- what is known of the others --


ONE, TWO, THREE = worker(NOW + 40), worker(NOW + 50), worker(NOW + 60)


def reply(
    *listed: Worker, now: int = NOW, version: str = "v1", is_all: bool = False
) -> WorkerEntries:
    entries = {one.member: str(one.until) for one in listed}
    return WorkerEntries(now, entries, is_all, {}, 3, version)


def test_of_the_others_those_that_are_not_listed_live() -> None:
    known = KnownWorkers()
    known.update(reply(ONE, TWO, THREE, is_all=True))
    known.update(reply(replace(ONE, until=0), TWO, worker(0), now=TWO.until))
    assert known.by_id[ONE.id].until == 0
    assert known.by_id[TWO.id] == TWO
    assert len(known.by_id) == 4
    assert known.by_id[THREE.id].until > TWO.until
    known.update(reply(now=TWO.until + 1))
    assert known.by_id[ONE.id].until > TWO.until + 1, "it was dead, and lives again"


def test_a_version_counts_as_known_when_all_workers_were_read() -> None:
    known = KnownWorkers()
    known.update(reply(ONE, TWO, is_all=True))
    known.update(reply(version="v2"))
    assert known.version == "v1"
    known.update(reply(TWO, version="v3", is_all=True))
    assert known.version == "v3"
    assert known.by_id == {TWO.id: TWO}


# -- whom an idle worker waits for --

#: Since when it is idle: 10 seconds.
SINCE = NOW - 10
#: ``until`` of a worker that has sent its last heartbeat just before.
LAST_SEEN = SINCE + ME.life


def waits(others: Mapping[str, Worker], soon: Mapping[str, int], **fields: Any) -> bool:
    view = WorkerView(ME, others, NOW, idle_since=SINCE, soon=soon, **fields)
    return view.may_lose_workers


@pytest.mark.parametrize("heartbeat", [30.0, 1.0])
def test_a_heartbeat_since_the_crawl_is_idle_is_enough(heartbeat: float) -> None:
    one = replace(ONE, heartbeat=heartbeat)
    assert waits({one.id: one}, {one.id: SINCE + one.life})
    assert not waits({one.id: one}, {one.id: SINCE + one.life + 1})
    assert not waits({one.id: one}, {one.id: SINCE + one.life}, is_partial=True)


def test_other_spiders_this_worker_and_processes_that_can_be_seen_are_not_awaited() -> None:
    other, near = worker(0, "other"), worker(0, process=Process.own())
    if not near.process.is_near:
        pytest.skip("nothing can be seen of other processes here")
    soon = {other.id: LAST_SEEN, near.id: LAST_SEEN, ME.id: LAST_SEEN}
    assert not waits({one.id: one for one in (other, near)}, soon)


def test_workers_of_other_spiders_are_awaited_whose_claims_have_requests_of_this_one() -> None:
    other = replace(worker(LAST_SEEN, "other"), queue="q-other")
    for awaited in ({other.id}, {"q-other"}):
        assert waits({other.id: other}, {other.id: LAST_SEEN}, awaited=awaited)
    assert not waits({other.id: other}, {other.id: LAST_SEEN}, awaited={"q-others"})


def test_a_worker_that_is_new_and_many_that_are_not_named_are_awaited() -> None:
    assert waits({}, {ONE.id: LAST_SEEN})
    others = {f"{ONE.id}{number}": LAST_SEEN + 1 for number in range(MAX_NAMED)}
    known = dict.fromkeys(others, ONE)
    assert waits(known, others)
    others.popitem()
    assert not waits(known, others)


def test_nothing_is_awaited_for_longer_than_a_heartbeat_allows() -> None:
    slow, soon = replace(ONE, heartbeat=60.0), {ONE.id: NOW + 1}
    for idle_for, is_awaited in ((ME.life - 1, True), (ME.life + 1, False)):
        view = WorkerView(ME, {ONE.id: slow}, NOW, idle_since=NOW - idle_for, soon=soon)
        assert view.may_lose_workers is is_awaited


def test_after_an_outage_the_silence_of_others_says_nothing_for_some_time() -> None:
    clock = [0.0]

    async def run(*_: object) -> WorkerEntries:
        return reply(SILENT, is_all=True)

    server = SimpleNamespace(filters=SimpleNamespace(by_window={"default": None}), run=run)
    context: Any = SimpleNamespace(
        server=server,
        report=None,
        clock=lambda: clock[0],
        token=lambda _: "",
        settings=SimpleNamespace(retry_after=0),
    )
    beats, trusts = Heartbeats(context, ME), []
    for event in (
        lambda: None,
        beats.distrust_silence,
        lambda: clock.append(clock.pop() + GRACE_SECONDS),
    ):
        event()
        asyncio.run(beats.send(is_idle=False))
        trusts.append(beats.views["default"].trusts_silence)
    assert trusts == [True, False, True]
