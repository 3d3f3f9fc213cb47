"""``Outputs`` gathers what a callback has ready, looks it up together and passes it on."""

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from scrapy.http import Response
from support.loops import in_loop
from support.scraping import (
    FORMS,
    ITEM,
    PAGE,
    RESPONSE,
    Scraper,
    ScraperLab,
    link,
    links,
    one_turn,
)
from twisted.python.failure import Failure

from scrapy_bloom import ConfigurationError
from scrapy_bloom.bloom.protocol.session import Key, Verdict
from scrapy_bloom.crawl import outputs as outputs_module
from scrapy_bloom.crawl.duplicates import Lookup

SEEN = Verdict.SEEN


@FORMS
@in_loop
async def test_what_is_ready_is_looked_up_once_and_passed_on_as_a_list(form: Any) -> None:
    lab, (first, second) = ScraperLab(), links(2)
    outputs = [first, ITEM, second, None]
    await lab.handle(form(outputs))
    assert lab.filter.rounds == [[first, second]]
    assert lab.scraper.lists == [outputs]
    assert lab.scraper.concurrent_items == len(outputs)
    assert lab.filter.noted == outputs


@FORMS
@in_loop
async def test_duplicates_only_are_not_passed_on(form: Any) -> None:
    lab, (known, other) = ScraperLab(), links(2)
    lab.filter.known, lab.filter.verdicts = [known], {other: SEEN}
    await lab.handle(form([known, other]))
    await lab.handle(form([]))
    assert lab.filter.rounds == [[other]]
    assert lab.filter.dropped == [known, other]
    assert lab.scraper.lists == []
    assert lab.filter.noted == [other]  # before its lookup


@in_loop
async def test_a_link_without_a_fingerprint_is_dropped_and_the_others_go_on() -> None:
    lab, (first, broken, last) = ScraperLab(), links(3)
    lab.filter.broken = [broken]
    await lab.handle([first, broken, last])
    assert lab.scraper.flat == [first, last]
    assert lab.filter.lost == [PAGE]


@in_loop
async def test_what_is_offsite_is_passed_on_and_not_looked_up() -> None:
    """Scrapy drops it, and it would stay claimed."""
    lab, (near, far, allowed) = ScraperLab(), links(3)
    lab.offsite = [far, allowed]
    allowed.meta["allow_offsite"] = True
    await lab.handle([near, far, allowed])
    assert lab.filter.rounds == [[near, allowed]]
    assert lab.scraper.flat == [near, far, allowed]


@in_loop
async def test_a_page_whose_outputs_cannot_be_handed_over_has_failed() -> None:
    """It would count as crawled, without its links."""
    lab, (same, other) = ScraperLab(), links(2)
    lab.filter.verdicts = {same: SEEN}

    def count_seen(key: Key) -> None:
        raise LookupError

    lab.filter.count_seen = count_seen  # type: ignore[method-assign]

    async def callback() -> AsyncIterator[Any]:
        yield same
        for _ in range(9):
            await asyncio.sleep(0)
        yield other

    with pytest.raises(LookupError):
        await lab.handle(callback())
    assert lab.filter.lost == [PAGE]
    assert lab.scraper.flat == [other]


# -- many outputs --


@FORMS
@in_loop
async def test_many_links_are_looked_up_in_batches_and_the_loop_goes_on(
    form: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs_module, "BATCH", 10)
    lab, requests, turns = ScraperLab(), links(1_000), 0

    async def other() -> None:
        nonlocal turns
        while len(lab.scraper.done) < 1_000:
            turns += 1
            await asyncio.sleep(0)

    await asyncio.gather(lab.handle(form(requests)), other())
    assert [len(some) for some in lab.filter.rounds] == [10] * 100
    assert lab.scraper.flat == requests
    assert turns >= 1_000 // outputs_module.MAX_PER_TURN


@FORMS
@in_loop
async def test_so_many_items_are_processed_at_a_time(form: Any) -> None:
    lab = ScraperLab(Scraper(3))
    lab.scraper.pipeline = one_turn
    await lab.handle(form([*[ITEM] * 20, *links(5)]))
    assert lab.scraper.most_parallel == 3
    assert len(lab.scraper.done) == 25


# -- methods of another form --


class SynchronousScraper(Scraper):
    def handle_spider_output_async(self, result: Any, request: Any, response: Any) -> Any: ...


def test_an_unknown_form_is_an_error_before_the_first_page() -> None:
    with pytest.raises(ConfigurationError, match="handle_spider_output_async takes"):
        ScraperLab(SynchronousScraper())


# -- items whose pipeline raises --


@in_loop
async def test_the_page_of_an_item_that_fails_is_the_one_whose_response_it_has() -> None:
    """Two requests may have got one response; and the response's request may be a copy."""
    lab, error = ScraperLab(), OSError("down")

    async def fail(_: Any) -> None:
        await asyncio.sleep(0.01)  # both are under way
        for response in (RESPONSE, None, Response("https://shop.example/other")):
            lab.outputs.item_failed(response, Failure(error))
        await asyncio.sleep(0.01)

    lab.scraper.pipeline = fail
    await asyncio.gather(lab.handle([ITEM]), lab.handle([ITEM]))
    assert lab.filter.failed == [(PAGE, error)] * 4
    lab.outputs.item_failed(RESPONSE, Failure(error))
    assert len(lab.filter.failed) == 4, "no page is under way"


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
        for number in range(50):
            yield link(number)
            for _ in range(5):
                await asyncio.sleep(0)
        gc.collect()
        held.extend(one for one in gc.get_objects() if isinstance(one, asyncio.Task))

    await lab.handle(callback())
    assert len(lab.scraper.done) == 50
    assert len(held) < 10


@in_loop
async def test_requests_keep_their_order_though_some_are_looked_up_and_others_not() -> None:
    lab, goes_on = ScraperLab(), asyncio.Event()
    first, second = link(1), link(2).replace(dont_filter=True)
    ask = lab.filter.look_up

    async def slow(lookups: Sequence[Lookup]) -> None:
        await goes_on.wait()
        await ask(lookups)

    async def callback() -> AsyncIterator[Any]:
        yield first
        await asyncio.sleep(0)
        yield second
        await asyncio.sleep(0)
        goes_on.set()

    lab.filter.look_up = slow  # type: ignore[method-assign]
    await lab.handle(callback())
    assert lab.scraper.flat == [first, second]


@in_loop
async def test_a_page_ends_if_all_tasks_are_cancelled() -> None:
    """A second Ctrl-C does that where there is no reactor, and waits for the tasks to end."""
    lab, stored, others = ScraperLab(Scraper(1)), asyncio.Event(), asyncio.all_tasks()
    lab.scraper.pipeline = lambda _: stored.wait()
    page = asyncio.ensure_future(lab.handle([ITEM] * 9))
    while not lab.scraper.parallel:
        await asyncio.sleep(0)
    for task in asyncio.all_tasks() - others:
        task.cancel()
    await asyncio.wait({page}, timeout=1)
    stored.set()
    assert page.cancelled()
    assert lab.filter.cancelled == [PAGE]
