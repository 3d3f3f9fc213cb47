"""Workers: what is stored of them, and who is dead."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.crawl import workers
from scrapy_bloom.crawl.workers import Process, Worker, parse_all

FAR = Process("far", 7, "another machine", 99)
WORKER = Worker("w-1", 1_000, 30.0, FAR)
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


@given(
    st.integers(0, 10**11),
    st.floats(1, 3600),
    st.text(max_size=50),
    st.integers(0, 2**31),
    st.text(max_size=50),
)
def test_what_is_stored_is_read_back(
    until: int, heartbeat: float, host: str, pid: int, queue: str
) -> None:
    worker = Worker("w", until, heartbeat, Process(host, pid, "p", 5), queue)
    assert Worker.parse(worker.member, str(until)) == worker


GOOD = json.loads(WORKER.describe())


@pytest.mark.parametrize(
    "description",
    [
        "",
        "{}",
        "[]",
        "[" * 1_000,
        json.dumps(GOOD | {"pid": "7"}),
        json.dumps(GOOD | {"pid": -1}),
        json.dumps(GOOD | {"heartbeat": 0}),
        json.dumps(GOOD | {"heartbeat": float("nan")}),
        json.dumps(GOOD | {"heartbeat": 10**400}),
        json.dumps(GOOD | {"more": 1}),
        json.dumps(GOOD | {"host": []}),
        json.dumps(GOOD | {"started": "1"}),
        f" {WORKER.describe()}",
    ],
)
def test_an_entry_that_is_damaged_is_left_out(description: str) -> None:
    assert parse_all({f"bad {description}": "1", WORKER.member: "1000"}) == {"w-1": WORKER}


@pytest.mark.parametrize("until", ["", "soon", "1.5", "inf", "nan", "1e300", "1_0", " 1", "01"])
def test_an_entry_with_a_damaged_time_is_left_out(until: str) -> None:
    assert parse_all({WORKER.member: until}) == {}


@linux
@pytest.mark.parametrize("is_zombie", [False, True])
def test_a_process_that_ended_is_gone(is_zombie: bool) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        started = workers._started(child.pid)
        assert started is not None
        process = replace(Process.own(), pid=child.pid, started=started)
        assert not process.is_gone
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        if not is_zombie:
            child.wait()
        assert process.is_gone


@linux
def test_another_process_with_the_same_number_is_not_it() -> None:
    me = Process.own()
    assert replace(me, started=me.started - 1).is_gone


def test_of_a_process_elsewhere_nothing_is_known() -> None:
    assert not FAR.is_near
    assert not FAR.is_gone


def test_where_nothing_can_be_told_nobody_is_gone() -> None:
    with patch.object(workers, "_place", lambda: ""):
        here = Process("h", os.getpid(), "", 0)
        assert not here.is_near
        assert not here.is_gone


def test_a_sign_of_life_is_good_for_two_heartbeats() -> None:
    assert WORKER.life == 61
    assert replace(WORKER, heartbeat=0.5).life == 2
    assert WORKER.silent(1_000 - 61) == 0
    assert WORKER.silent(1_000) == 61
    assert replace(WORKER, until=0).silent(1_000) == 0


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
