"""Pages that wait for requests that are not kept; the simulator tries any order of their ends."""

import time

import pytest

from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.crawl.jobs import JobKind
from scrapy_bloom.crawl.pages import InFlightRequest, UnkeptRequests
from scrapy_bloom.fingerprinter import Key

CONFIRM, REPEAT = JobKind.CONFIRM, JobKind.REPEAT


def claim(number: int) -> Key:
    return "default", b"%d" % number


def flight(number: int, kind: JobKind | None = None) -> InFlightRequest:
    return InFlightRequest({claim(number): 0}, kind=kind)


def chain(unkept: UnkeptRequests, length: int) -> list[InFlightRequest]:
    """Return pages that are crawled, each but the last of which waits for the next one."""
    flights = [flight(number, CONFIRM) for number in range(length)]
    for number in range(1, length):
        unkept.add(claim(number), flights[number - 1])
    return flights


def test_a_long_chain_of_pages_is_settled_from_its_end() -> None:
    unkept = UnkeptRequests(time.monotonic)
    flights = chain(unkept, 3_000)
    for number in range(2_999, 0, -1):
        assert unkept.settle(claim(number), CONFIRM) == [flights[number - 1]]
    assert not unkept


def test_beyond_the_limit_the_pages_that_wait_longest_are_given_up() -> None:
    """And those that wait for them: their claims stay for the next run."""
    unkept = UnkeptRequests(time.monotonic, limit=8)
    flights, other = [flight(number, CONFIRM) for number in range(9)], flight(20, CONFIRM)
    for number in range(8, 0, -1):
        unkept.add(claim(number), flights[number - 1])
    unkept.add(claim(8), flights[0])
    assert unkept.add(claim(21), other) == [flights[0], *flights[7:0:-1]]
    assert not any(one.is_complete for one in flights[:8])
    assert len(unkept) == 1
    assert unkept.settle(claim(21), CONFIRM) == [other]


def test_a_page_yields_a_request_again_that_is_lost() -> None:
    unkept, page = UnkeptRequests(lambda: 7.0), flight(1, CONFIRM)
    unkept.add(claim(2), page)
    fields = [field_of(claim(2)[1])]
    assert unkept.find("default", fields, 7.1) == [claim(2)]
    assert unkept.find("daily", fields, 7.1) == []
    # What was free at 7.0 was not this claim, which is newer.
    assert unkept.find("default", fields, 7.0) == []
    assert unkept.settle(claim(2), REPEAT) == [page]
    assert page.end() == REPEAT


def test_a_page_adopts_what_no_page_waits_for() -> None:
    """Such as what the spider schedules when it is idle: nothing else would bring it back."""
    unkept, page = UnkeptRequests(time.monotonic), flight(2, CONFIRM)
    unkept.add(claim(3), None)
    unkept.adopt(claim(3), page)
    assert page.unkept == 1
    assert unkept.settle(claim(3), CONFIRM) == [page]
    assert unkept.adopt(claim(3), flight(4)) == []


@pytest.mark.parametrize("length", [1, 6])
def test_no_page_waits_for_itself_by_way_of_others(length: int) -> None:
    """A start page yields the first of them, and the last one yields the first again."""
    unkept = UnkeptRequests(time.monotonic)
    unkept.add(claim(0), None)
    flights = chain(unkept, length)
    unkept.adopt(claim(0), flights[-1])
    assert flights[-1].is_complete
