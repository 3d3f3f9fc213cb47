"""``Outputs`` and callbacks that wait, are cancelled or time out."""

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from support.loops import in_loop
from support.scraping import ITEM, Scraper, ScraperLab, link, one_turn

from scrapy_bloom.crawl import outputs as outputs_module
from scrapy_bloom.crawl.lookups import Lookup

# -- callbacks that wait --


@in_loop
async def test_a_callback_may_wait_for_what_it_has_yielded() -> None:
    """If the output were held until the callback goes on, both would wait for ever."""
    lab, output, last = ScraperLab(), link(), link("last")

    async def callback() -> AsyncIterator[Any]:
        yield output
        while output not in lab.scraper.done:
            await asyncio.sleep(0)
        yield last

    await lab.handle(callback())
    assert lab.scraper.lists == [[output], [last]]


@in_loop
async def test_what_is_processed_is_forgotten_though_the_callback_goes_on() -> None:
    """It may run as long as the crawl, and yield what it waits for, one by one."""
    lab, held = ScraperLab(), list[Any]()

    async def callback() -> AsyncIterator[Any]:
        for number in range(200):
            yield link(number)
            for _ in range(5):
                await asyncio.sleep(0)
        gc.collect()
        held.extend(one for one in gc.get_objects() if isinstance(one, asyncio.Task))

    await lab.handle(callback())
    assert len(lab.scraper.done) == 200
    assert len(held) < 10


@in_loop
async def test_requests_keep_their_order_though_some_are_looked_up_and_others_not() -> None:
    lab, goes_on = ScraperLab(), asyncio.Event()
    first, second = link(1), link(2).replace(dont_filter=True)
    ask = lab.filter.decide_many

    async def slow(lookups: Sequence[Lookup]) -> None:
        await goes_on.wait()
        await ask(lookups)

    async def callback() -> AsyncIterator[Any]:
        yield first
        await asyncio.sleep(0)
        yield second
        await asyncio.sleep(0)
        goes_on.set()

    lab.filter.decide_many = slow  # type: ignore[method-assign]
    await lab.handle(callback())
    assert lab.scraper.flat == [first, second]


@in_loop
async def test_a_page_ends_if_all_tasks_are_cancelled() -> None:
    """A second Ctrl-C does that where there is no reactor, and waits for the tasks to end."""
    lab, stored, others = ScraperLab(scraper=Scraper(1)), asyncio.Event(), asyncio.all_tasks()
    lab.scraper.pipeline = lambda _: stored.wait()
    page = asyncio.ensure_future(lab.handle([ITEM] * 9))
    while not lab.scraper.parallel:
        await asyncio.sleep(0)
    for task in asyncio.all_tasks() - others:
        task.cancel()
    await asyncio.wait({page}, timeout=1)
    stored.set()
    assert page.cancelled()


# -- time-outs of the callback --


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop has its turn after each output."""
    monkeypatch.setattr(outputs_module, "MAX_PER_TURN", 1)


@pytest.mark.usefixtures("short_turns")
@pytest.mark.parametrize("limit", [1, 100])
@in_loop
async def test_a_time_out_ends_what_the_callback_waits_for(limit: int) -> None:
    """It expires while the loop has its turn, or the pipeline has no room for the next item."""
    lab = ScraperLab(scraper=Scraper(limit))

    async def callback() -> AsyncIterator[Any]:
        try:
            async with asyncio.timeout(60) as scope:
                yield ITEM
                scope.reschedule(0)
                for _ in range(5):
                    yield ITEM
                await asyncio.Event().wait()
        except TimeoutError:
            yield "timed out"
        await asyncio.sleep(0)
        yield "over"

    lab.scraper.pipeline = one_turn
    await lab.handle(callback())
    assert lab.scraper.flat == [*[ITEM] * 6, "timed out", "over"]
    assert lab.scraper.errors == []
