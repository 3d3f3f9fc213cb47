"""What a process knows of URLs, and what it forgets when the server has lost them."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from scrapy_bloom.bloom.protocol.session import Key
from scrapy_bloom.crawl.local import LocalUrls
from scrapy_bloom.crawl.rule import Known

A, B, C = (("default", name * 20) for name in (b"a", b"b", b"c"))
RECORDED, STORED, FAILED, DROPPED = Known.RECORDED, Known.STORED, Known.FAILED, Known.DROPPED


def make(*, keeps_own: bool = True) -> LocalUrls:
    """Return a cache in which A is the process's own, B another's, and C is new."""
    local = LocalUrls(keeps_own=keeps_own)
    local.see(A, is_own=True)
    local.see(B)
    return local


def known(local: LocalUrls, *keys: Key) -> list[Known | None]:
    return [local.known(key) for key in keys]


def change(local: LocalUrls, event: str, seconds: float = 600, window: str = "default") -> None:
    """Tell of a ring that is to change so many seconds later."""
    view: Any = SimpleNamespace(ring=SimpleNamespace(window=window), until=1_000 + seconds)
    local.ring_changed(event, view, 1_000)


def test_what_is_known_until_the_run_ends_comes_first() -> None:
    local = make()
    local.taken = {A[1]: DROPPED, C[1]: FAILED}
    assert known(local, A, C) == [DROPPED, FAILED]
    local.clear()
    assert known(local, A, C) == [DROPPED, FAILED]


# -- outages --


def test_a_url_that_is_found_in_an_outage_is_seen_once_the_server_has_it() -> None:
    local = make()
    local.late[C[1]] = STORED
    assert known(local, C) == [STORED]
    assert local.stored_late(C)
    assert (known(local, C), local.late) == ([RECORDED], {})


@pytest.mark.parametrize("found", [STORED, Known.ELSEWHERE, None])
def test_a_url_that_fails_in_an_outage_is_not_seen_when_the_server_is_back(
    found: Known | None,
) -> None:
    """What claims it is written before what lets it wait."""
    local = make()
    if found:
        local.late[A[1]] = found
    local.fail(A)
    assert known(local, A) == [FAILED]
    assert not local.stored_late(A)
    assert known(local, A) == [FAILED]
    del local.late[A[1]]  # it's written
    assert known(local, A) == [None]


# -- losses --


def test_what_is_a_process_own_survives_a_loss_but_no_restart() -> None:
    """It has these requests still, but not what the server had before it was restarted."""
    local = make()
    local.lose()
    assert known(local, A, B) == [RECORDED, None]
    local.restart()
    assert known(local, A, B) == [None, None]
    local = make()
    local.clear()
    assert known(local, A, B) == [None, None]


def test_failed_urls_are_new_after_a_loss_because_their_requests_may_be_lost() -> None:
    local = make()
    local.taken = {A[1]: FAILED, B[1]: DROPPED, C[1]: RECORDED}
    local.lose()
    assert known(local, B, C) == [DROPPED, RECORDED]
    assert A[1] not in local.taken


@pytest.mark.parametrize("what", ["lose", "restart"])
def test_nothing_survives_where_the_queue_was_on_the_server(what: str) -> None:
    local = make(keeps_own=False)
    local.taken = {A[1]: DROPPED, C[1]: RECORDED}
    getattr(local, what)()
    assert known(local, A, B, C) == [None, None, None]
    assert not local.taken


@pytest.mark.parametrize(
    ("event", "is_known"),
    [
        ("read", [True, True]),
        ("grown", [True, True]),
        ("lost", [True, False]),
        ("rotated", [False, False]),
    ],
)
def test_a_ring_that_has_lost_or_forgotten_something_voids_the_cache(
    event: str, is_known: list[bool]
) -> None:
    local = make()
    change(local, event)
    assert [one is RECORDED for one in known(local, A, B)] == is_known


def test_the_cache_is_void_when_a_ring_forgets_its_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    """But in an outage: nothing says that the server has forgotten it."""
    local, now = make(), time.monotonic()
    change(local, "read", seconds=60)
    for seconds, found in ((58, RECORDED), (60, None)):
        monkeypatch.setattr(time, "monotonic", lambda at=now + seconds: at)
        assert known(local, A, B) == [found, found]
        assert local.known(A, is_up=False) is RECORDED
    change(local, "read", seconds=60)
    assert local.known(A, is_up=False) is None
    local.see(A)
    assert known(local, A) == [RECORDED]


def test_of_the_rings_of_a_window_the_first_one_voids_its_urls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    local, now = make(), time.monotonic()
    change(local, "read", seconds=30, window="week")
    for seconds in (60, 600):  # another shard
        change(local, "read", seconds)
    week = "week", b"w" * 20
    local.see(week)
    for seconds, found in ((10, [RECORDED] * 2), (40, [RECORDED, None]), (70, [None, None])):
        monkeypatch.setattr(time, "monotonic", lambda at=now + seconds: at)
        assert known(local, A, week) == found
