"""Pages that wait for requests that are not kept: whichever are settled, in whatever order."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.crawl.jobs import JobKind
from scrapy_bloom.crawl.pages import InFlightRequest, UnkeptRequests
from scrapy_bloom.fingerprinter import Key

CONFIRM, FAIL, LATER = JobKind.CONFIRM, JobKind.FAIL, JobKind.LATER
RELEASE, REPEAT = JobKind.RELEASE, JobKind.REPEAT

LIMIT = 8


def claim(number: int) -> Key:
    return "default", b"%d" % number


def flight(number: int, kind: JobKind | None = None) -> InFlightRequest:
    return InFlightRequest({claim(number): 0}, kind=kind)


class Crawl(RuleBasedStateMachine):
    """A crawl in which no request is kept, against a model that looks at the whole tree."""

    def __init__(self) -> None:
        super().__init__()
        self.unkept = UnkeptRequests(time.monotonic, LIMIT)
        self.flights = {0: flight(0)}
        self.parents: dict[int, int] = {}
        self.settled: dict[int, JobKind] = {}
        self.given_up: set[int] = set()

    def number_of(self, one: InFlightRequest) -> int:
        return next(number for number, other in self.flights.items() if other is one)

    def pending(self, page: int) -> list[int]:
        """The requests that a page waits for."""
        return [c for c, p in self.parents.items() if p == page and c not in self.settled]

    def end(self, page: int) -> None:
        """Settle a page that is complete, and those that waited for it only."""
        ending = [self.flights[page]]
        while ending:
            one = ending.pop()
            number = self.number_of(one)
            assert not self.pending(number), "it was settled before a request of its own"
            assert number not in self.given_up
            self.settled[number] = one.end()
            ending += self.unkept.settle(claim(number), self.settled[number])

    @precondition(lambda self: any(not f.kind for f in self.flights.values()))
    @rule(data=st.data())
    def yield_request(self, data: st.DataObject) -> None:
        open_pages = [n for n, f in self.flights.items() if not f.kind and n not in self.settled]
        if not open_pages:
            return
        parent, child = data.draw(st.sampled_from(open_pages)), len(self.flights)
        self.flights[child] = flight(child)
        self.parents[child] = parent
        given_up = self.unkept.add(claim(child), self.flights[parent])
        self.given_up |= {self.number_of(one) for one in given_up}

    @rule(data=st.data(), kind=st.sampled_from([CONFIRM, RELEASE, FAIL]))
    def finish(self, data: st.DataObject, kind: JobKind) -> None:
        under_way = [n for n, f in self.flights.items() if not f.kind and n not in self.settled]
        if not under_way:
            return
        page = data.draw(st.sampled_from(under_way))
        self.flights[page].kind = kind
        if self.flights[page].is_complete:
            self.end(page)

    @invariant()
    def pages_are_settled_as_soon_as_they_wait_for_nothing(self) -> None:
        for number, one in self.flights.items():
            is_over = bool(one.kind) or number in self.settled
            waits = bool(self.pending(number)) or number in self.given_up
            assert (number in self.settled) == (is_over and not waits)

    @invariant()
    def a_page_is_not_recorded_if_a_request_has_failed(self) -> None:
        for child, kind in self.settled.items():
            parent = self.parents.get(child)
            if kind in (FAIL, LATER) and parent in self.settled:
                assert self.settled[parent] in (FAIL, LATER, RELEASE)

    @invariant()
    def a_page_that_waits_for_one_that_is_given_up_is_given_up_too(self) -> None:
        assert {self.parents[n] for n in self.given_up if n in self.parents} <= self.given_up

    @invariant()
    def memory_is_bounded(self) -> None:
        assert len(self.unkept) <= LIMIT


Crawl.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestCrawl = Crawl.TestCase


@given(st.integers(1, 3_000))
def test_a_long_chain_of_pages_is_settled_from_its_end(length: int) -> None:
    unkept = UnkeptRequests(time.monotonic)
    flights = [flight(number, CONFIRM) for number in range(length)]
    for number in range(1, length):
        unkept.add(claim(number), flights[number - 1])
    for number in range(length - 1, 0, -1):
        assert unkept.settle(claim(number), CONFIRM) == [flights[number - 1]]
    assert not unkept


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


@pytest.mark.parametrize("length", [0, 1, 5])
def test_no_page_waits_for_itself_by_way_of_others(length: int) -> None:
    """A start page yields the first of them, and the last one yields the first again."""
    unkept = UnkeptRequests(time.monotonic)
    flights = [flight(number, CONFIRM) for number in range(length + 1)]
    unkept.add(claim(0), None)
    for number in range(length):
        unkept.add(claim(number + 1), flights[number])
    unkept.adopt(claim(0), flights[-1])
    assert flights[-1].is_complete
