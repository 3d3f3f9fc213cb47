"""Attempts to reach a server, on a clock of the test's; and epochs."""

import pytest

from scrapy_bloom.crawl.server_state import (
    FIRST_RETRY_SECONDS,
    LAST_RETRY_SECONDS,
    RECOVERED_AFTER_SECONDS,
    ServerState,
)


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_intervals_double_up_to_the_longest_one(clock: Clock) -> None:
    server = ServerState(clock)
    intervals = [server.next_retry() for _ in range(10)]
    assert intervals[:3] == [2 * FIRST_RETRY_SECONDS, 4 * FIRST_RETRY_SECONDS, 0.8]
    assert intervals == sorted(intervals)
    assert intervals[-1] == LAST_RETRY_SECONDS


@pytest.mark.parametrize("uptime", [0.5, RECOVERED_AFTER_SECONDS + 0.5])
def test_intervals_begin_small_again_after_a_long_uptime_only(clock: Clock, uptime: float) -> None:
    server = ServerState(clock)
    for _ in range(10):
        server.fail()
        server.next_retry()
    server.recover()
    clock.now += uptime
    server.fail()
    is_long = uptime > RECOVERED_AFTER_SECONDS
    assert server.next_retry() == (2 * FIRST_RETRY_SECONDS if is_long else LAST_RETRY_SECONDS)


def test_a_long_outage_is_no_uptime(clock: Clock) -> None:
    server = ServerState(clock)
    server.recover()
    clock.now += RECOVERED_AFTER_SECONDS + 1
    for _ in range(10):
        server.fail()
        server.next_retry()
        clock.now += RECOVERED_AFTER_SECONDS + 1
    assert server.next_retry() == LAST_RETRY_SECONDS


def test_an_outage_is_one_epoch_whoever_notices_it(clock: Clock) -> None:
    server = ServerState(clock)
    server.identify("a")
    assert [server.fail(), server.fail()] == [1, 1]
    # What was claimed since the outage began is written after it.
    assert server.identify("b")
    assert (server.restarted, server.epoch) == (1, 1)


def test_each_failure_of_a_part_and_a_restart_after_it_begin_an_epoch(clock: Clock) -> None:
    server = ServerState(clock)
    server.identify("a,b")
    assert [server.fail(is_partial=True), server.fail(is_partial=True), server.fail()] == [1, 2, 3]
    assert server.identify("a,c")
    assert (server.restarted, server.epoch) == (4, 4)
    server.recover()
    assert [server.fail(), server.fail()] == [5, 5]
