"""What is put between Scrapy's scraper and a page's outputs: nothing is lost, or waits for long."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from scrapy_bloom.crawl.engine import Engine


class Scraper:
    """Takes outputs as Scrapy's does, and counts how often it is asked to."""

    def __init__(self) -> None:
        self.calls = 0
        self.taken: list[Any] = []

    async def handle_spider_output_async(self, result: Any, *_: Any) -> None:
        self.calls += 1
        async for output in result:
            self.taken.append(output)


@pytest.fixture
def scraper() -> Scraper:
    scraper = Scraper()
    crawler: Any = SimpleNamespace(engine=SimpleNamespace(scraper=scraper))
    Engine(crawler).wait_for_first_outputs()
    return scraper


async def produce(*outputs: Any) -> AsyncIterator[Any]:
    for output in outputs:
        await asyncio.sleep(0)
        if isinstance(output, Exception):
            raise output
        yield output


def handle(scraper: Scraper, outputs: Any) -> None:
    asyncio.run(scraper.handle_spider_output_async(outputs, "request", "response"))


def test_all_outputs_arrive_in_their_order(scraper: Scraper) -> None:
    handle(scraper, produce(1, 2, 3))
    assert scraper.taken == [1, 2, 3]


def test_where_there_is_nothing_nobody_is_started(scraper: Scraper) -> None:
    handle(scraper, produce())
    assert scraper.calls == 0


@pytest.mark.parametrize("before", [(), (1,), (1, 2)])
def test_an_exception_comes_after_what_was_yielded_before(
    scraper: Scraper, before: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="of the callback"):
        handle(scraper, produce(*before, ValueError("of the callback")))
    assert scraper.taken == list(before)
    assert scraper.calls == 1


def test_a_callback_that_is_not_read_to_its_end_is_closed(scraper: Scraper) -> None:
    closed = False

    async def callback() -> AsyncIterator[int]:
        nonlocal closed
        try:
            yield 1
            yield 2
        finally:
            closed = True

    async def take_one(result: Any, *_: Any) -> None:
        async for _output in result:
            break
        await result.aclose()

    other: Any = SimpleNamespace(handle_spider_output_async=take_one)
    crawler: Any = SimpleNamespace(engine=SimpleNamespace(scraper=other))
    Engine(crawler).wait_for_first_outputs()
    asyncio.run(other.handle_spider_output_async(callback()))
    assert closed


def test_lists_are_passed_on_as_they_are(scraper: Scraper) -> None:
    passed: list[Any] = []

    async def take(result: Any) -> None:
        passed.append(result)

    other: Any = SimpleNamespace(handle_spider_output_async=take)
    crawler: Any = SimpleNamespace(engine=SimpleNamespace(scraper=other))
    Engine(crawler).wait_for_first_outputs()
    asyncio.run(other.handle_spider_output_async([1]))
    assert passed == [[1]]


def test_a_version_without_workers_stays_as_it_is() -> None:
    old: Any = SimpleNamespace(engine=SimpleNamespace(scraper=SimpleNamespace()))
    Engine(old).wait_for_first_outputs()
    assert vars(old.engine.scraper) == {}
