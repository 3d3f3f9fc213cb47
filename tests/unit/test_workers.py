"""Workers: what is stored of them, and who is dead."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from unittest.mock import patch

import pytest

from scrapy_bloom.crawl import workers
from scrapy_bloom.crawl.workers import Process, Worker, parse_all

FAR = Process("far", 7, "another machine", 99)
WORKER = Worker("w-1", 1_000, 30.0, FAR)
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


GOOD = json.loads(WORKER.describe())


@pytest.mark.parametrize(
    "damage",
    [
        {"pid": "7"},
        {"pid": -1},
        {"heartbeat": 0},
        {"heartbeat": float("nan")},
        {"heartbeat": 10**400},
        {"more": 1},
        {"host": []},
    ],
)
def test_an_entry_that_is_damaged_is_left_out(damage: dict[str, object]) -> None:
    bad = json.dumps(GOOD | damage)
    assert parse_all({f"bad {bad}": "1", WORKER.member: "1000"}) == {"w-1": WORKER}


def test_an_entry_that_is_none_or_has_a_damaged_time_is_left_out() -> None:
    for description in ("", "{}", "[]", "[" * 1_000, f" {WORKER.describe()}"):
        assert parse_all({f"bad {description}": "1"}) == {}
    for until in ("", "soon", "1.5", "1e300", "1_0", " 1", "01"):
        assert parse_all({WORKER.member: until}) == {}


@linux
def test_a_process_that_ended_is_gone() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        started = workers._started(child.pid)
        assert started is not None
        process = replace(Process.own(), pid=child.pid, started=started)
        assert not process.is_gone
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert process.is_gone, "a zombie"
        child.wait()
        assert process.is_gone


@linux
def test_another_process_with_the_same_number_is_not_it() -> None:
    me = Process.own()
    assert replace(me, started=me.started - 1).is_gone


def test_where_nothing_can_be_told_nobody_is_gone() -> None:
    assert not FAR.is_near
    assert not FAR.is_gone
    with patch.object(workers, "_place", lambda: ""):
        here = Process("h", os.getpid(), "", 0)
        assert not here.is_near
        assert not here.is_gone


def test_owners_say_what_they_are_and_whose_spiders() -> None:
    worker, queue = workers.worker_id("shop"), workers.queue_id("shop", "redis shop:requests")
    failed = workers.failed_id("shop")
    assert (worker[0], queue[0], failed[0]) == ("w", "q", "-")
    for owner in (worker, queue, failed):
        assert workers.is_of(owner, "shop")
        assert not workers.is_of(owner, "other")
    assert workers.worker_id("shop") != worker
    assert workers.queue_id("shop", "redis shop:requests") == queue
    assert workers.queue_id("shop", "redis other") != queue
