"""Requests are collected; nothing else is."""

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request

from scrapy_bloom.crawl.basket import Basket, Fate


def link(number: int = 0) -> Request:
    return Request(f"https://example.com/{number}")


OUTPUTS = st.lists(st.sampled_from([*Fate, "item"]), max_size=40)
Kinds = list[Fate | str]


def make(kinds: Kinds) -> tuple[list[Any], Callable[[Request], Fate]]:
    """Return outputs of these kinds, and what decides what becomes of the requests."""
    outputs = [{"item": n} if kind == "item" else link(n) for n, kind in enumerate(kinds)]
    fates = {id(output): kind for output, kind in zip(outputs, kinds, strict=True)}
    return outputs, lambda request: Fate(fates[id(request)])


@given(kinds=OUTPUTS, size=st.integers(1, 8))
def test_all_is_passed_on_but_what_is_dropped_and_requests_keep_their_order(
    kinds: Kinds, size: int
) -> None:
    outputs, decide = make(kinds)
    basket = Basket(size, decide)
    passed = [one for output in outputs for one in basket.add(output)] + basket.empty()
    assert [one for one in passed if isinstance(one, Request)] == [
        output
        for output in outputs
        if isinstance(output, Request) and decide(output) is not Fate.DROPPED
    ]
    assert [one for one in passed if isinstance(one, dict)] == [
        output for output in outputs if isinstance(output, dict)
    ]


@given(kinds=OUTPUTS, size=st.integers(1, 8))
def test_what_is_no_request_is_passed_on_at_once_and_alone(kinds: Kinds, size: int) -> None:
    outputs, decide = make(kinds)
    basket = Basket(size, decide)
    for output in outputs:
        passed = basket.add(output)
        assert isinstance(output, Request) or passed == [output]


@given(kinds=OUTPUTS, size=st.integers(1, 8))
def test_there_are_never_more_requests_than_the_size(kinds: Kinds, size: int) -> None:
    outputs, decide = make(kinds)
    basket = Basket(size, decide)
    for output in outputs:
        passed = basket.add(output)
        assert len(passed) <= size
        assert len(basket) < size


def test_what_is_held_begins_with_a_request_to_be_asked_about() -> None:
    outputs, decide = make([Fate.PASSED, Fate.ASKED, Fate.PASSED])
    basket = Basket(8, decide)
    assert basket.add(outputs[0]) == [outputs[0]]
    assert basket.add(outputs[1]) == []
    assert basket.add(outputs[2]) == []
    assert basket.empty() == outputs[1:]


def test_an_emptied_basket_holds_nothing() -> None:
    basket = Basket(2, lambda _: Fate.ASKED)
    basket.add(link())
    assert basket.empty()
    assert not basket
    assert basket.empty() == []
