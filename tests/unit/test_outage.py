"""``Outage``: when the server is tried again, and which pages have to be crawled again."""

import pytest

from scrapy_bloom.bloom.errors import StorageError
from scrapy_bloom.crawl import outage
from scrapy_bloom.crawl.outage import FIRST_RETRY, LAST_RETRY, Outage

AWAY = StorageError("it is away")


class Clock:
    """The clock of the process."""

    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(outage, "time", clock := Clock())
    return clock


@pytest.fixture
def state() -> Outage:
    state = Outage()
    state.found("a")
    return state


def epochs(state: Outage) -> tuple[int, int]:
    """Return the epoch of the last restart, and this one."""
    return state.restarted, state.epoch


def test_an_outage_is_one_epoch_whoever_notices_it(state: Outage) -> None:
    noticed: list[Exception] = []
    state.began.append(noticed.append)
    state.fail(AWAY)
    state.fail(StorageError("another one"))
    assert (state.is_up, state.epoch, noticed) == (False, 1, [AWAY])
    for _ in range(2):
        state.found("b")
        state.miss(AWAY)  # for example, it loads its data
    # What was claimed since the outage began is written after it.
    assert epochs(state) == (1, 1)


def test_an_outage_without_a_restart_voids_nothing(state: Outage) -> None:
    ended: list[None] = []
    state.ended.append(lambda: ended.append(None))
    for number in (1, 2):
        state.fail(AWAY)
        state.found("a")
        assert epochs(state) == (0, number)
        state.end()
        assert (state.is_up, len(ended)) == (True, number)


def test_what_was_written_before_a_second_restart_in_one_outage_is_void(state: Outage) -> None:
    state.fail(AWAY)
    for number in (1, 2):
        state.found(f"b{number}")
        assert epochs(state) == (number, number)
        state.writes()
    state.end()
    state.fail(AWAY)
    state.found("c")
    assert epochs(state) == (3, 3), "nothing was written in this outage"


def test_a_server_that_hides_its_process_may_be_another_one_after_an_outage() -> None:
    state = Outage()
    state.found("")
    assert epochs(state) == (0, 0)
    state.fail(AWAY)
    state.found("")
    assert epochs(state) == (1, 1)


def test_an_error_is_new_once_in_an_outage(state: Outage) -> None:
    for _ in range(2):
        state.fail(AWAY)
        why = StorageError("why")
        assert [state.miss(one) for one in (AWAY, why, AWAY, why)] == [False, True, False, False]
        state.end()


def test_pauses_between_attempts_double_up_to_the_longest(state: Outage, clock: Clock) -> None:
    state.fail(AWAY)
    pauses = [state.retry_at - clock.now]
    for _ in range(2_000):
        state.miss(AWAY)
        pauses.append(state.retry_at - clock.now)
    expected = [FIRST_RETRY * 2**number for number in range(6)]
    assert pauses[:6] == pytest.approx(expected)
    assert {*pauses[6:]} == {LAST_RETRY}
    assert state.failures == 2_000


def test_pauses_grow_if_each_outage_follows_on_the_last_one(state: Outage, clock: Clock) -> None:
    """For example because the user may not use one of the commands."""
    pauses = []
    for calm in (0, 1, 1, LAST_RETRY, 1):
        clock.now += calm
        state.fail(AWAY)
        pauses.append(state.retry_at - clock.now)
        state.end()
    assert pauses == pytest.approx([FIRST_RETRY * times for times in (1, 2, 4, 1, 2)])
