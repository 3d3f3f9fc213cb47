"""Whose claims are taken over, by the rules."""

from dataclasses import replace
from typing import Any

from scrapy_bloom.bloom.protocol.claim_protocol import StoredClaim
from scrapy_bloom.crawl import workers
from scrapy_bloom.crawl.liveness import WorkerView
from scrapy_bloom.crawl.workers import Process, Worker

NOW = 1_000_000
FAR = Process("far", 7, "another machine", 99)


def worker(until: int, *, spider: str = "shop", queue: str = "") -> Worker:
    return Worker(workers.worker_id(spider), until, 30.0, FAR, queue)


ME = worker(NOW + 60)
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
    dead = worker(0, spider="other")
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
