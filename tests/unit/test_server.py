"""``Server``: attempts to reach it, on a clock of the test's; epochs; and which process it is."""

from typing import cast

import pytest
from support.still_clock import Clock

from scrapy_bloom.bloom.client.connection import Connection
from scrapy_bloom.bloom.errors import StorageError
from scrapy_bloom.crawl.server import (
    FIRST_RETRY_SECONDS,
    LAST_RETRY_SECONDS,
    MAX_REFUSALS,
    RECOVERED_AFTER_SECONDS,
    Filters,
    Server,
)

AWAY = StorageError("it is away")
#: Of one node of a cluster.
IN_PART = StorageError("it is away")
IN_PART.slots = frozenset({1})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(clock: Clock) -> Server:
    return Server(Filters({}, cast("Connection", None)), clock=clock)


def fail(server: Server, error: StorageError = AWAY) -> int:
    """Return the epoch after a failure."""
    server.fail(error)
    return server.epoch


def test_intervals_double_up_to_the_longest_one(server: Server) -> None:
    intervals = [server.next_retry() for _ in range(10)]
    assert intervals[:3] == [2 * FIRST_RETRY_SECONDS, 4 * FIRST_RETRY_SECONDS, 0.8]
    assert intervals == sorted(intervals)
    assert intervals[-1] == LAST_RETRY_SECONDS


def test_intervals_begin_small_again_after_a_long_uptime_only(server: Server, clock: Clock) -> None:
    for _ in range(10):
        fail(server)
        server.next_retry()
        clock.now += RECOVERED_AFTER_SECONDS + 1
    assert server.next_retry() == LAST_RETRY_SECONDS, "a long outage is no uptime"
    for uptime, interval in (
        (0.5, LAST_RETRY_SECONDS),
        (RECOVERED_AFTER_SECONDS + 0.5, 2 * FIRST_RETRY_SECONDS),
    ):
        server.recover()
        clock.now += uptime
        fail(server)
        assert server.next_retry() == interval


def test_an_outage_is_one_epoch_whoever_notices_it(server: Server) -> None:
    server.identify("a")
    assert [fail(server), fail(server)] == [1, 1]
    # What was claimed since the outage began is written after it.
    assert server.identify("b")
    assert (server.restarted, server.epoch) == (1, 1)


def test_each_failure_of_a_part_and_a_restart_after_it_begin_an_epoch(server: Server) -> None:
    server.identify("a,b")
    assert [fail(server, IN_PART), fail(server, IN_PART), fail(server)] == [1, 2, 3]
    assert fail(server) == 3, "nothing is looked up any more"
    server.recover()
    assert [fail(server, IN_PART), server.identify("a,c")] == [4, True]
    assert (server.restarted, server.epoch) == (5, 5)


def test_a_restart_in_an_outage_begins_an_epoch_if_something_was_written_before_it(
    server: Server,
) -> None:
    """What was replayed to the process before may be lost; what is queued still is not."""
    server.identify("a")
    fail(server)
    assert server.identify("b")
    assert (server.restarted, server.epoch) == (1, 1)
    assert server.identify("c", has_replayed=True)
    assert (server.restarted, server.epoch) == (2, 2)
    assert server.identify("d")
    assert (server.restarted, server.epoch) == (2, 2)


def test_a_server_that_is_another_process_each_time_is_not_identified_any_more(
    server: Server,
) -> None:
    server.identify("a")
    assert [server.refused() for _ in range(MAX_REFUSALS)] == [*[False] * (MAX_REFUSALS - 1), True]
    assert not server.identify("b")
    assert (server.id, server.epoch) == ("", 0)
