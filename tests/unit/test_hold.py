"""What pages wait for: a pipeline that holds an item, and a file of a feed."""

import asyncio
from threading import get_ident
from types import SimpleNamespace
from typing import Any

import pytest
from support.loops import eventually, in_loop

from scrapy_bloom.crawl.endings import Page
from scrapy_bloom.crawl.feeds import Hold, _File


@pytest.mark.parametrize("is_here", [True, False])
@in_loop
async def test_an_item_arrives_once_in_the_thread_of_the_event_loop(is_here: bool) -> None:
    arrived = list[tuple[str, int]]()
    pages: Any = SimpleNamespace(arrived=lambda _, error: arrived.append((error, get_ident())))
    hold = Hold(pages, [Page({})])

    def end() -> None:
        hold.fail("full")
        hold.release()

    end() if is_here else await asyncio.to_thread(end)
    await eventually(lambda: arrived)
    assert arrived == [("pipeline:full", get_ident())]


@pytest.mark.parametrize("is_damaged", [True, False])
def test_pages_wait_for_ever_for_a_file_that_a_full_disk_may_have_cut_off(is_damaged: bool) -> None:
    page, arrived = Page({}), list[Page]()
    storage = SimpleNamespace(store=lambda _: None)
    slot: Any = SimpleNamespace(start_exporting=lambda: None, storage=storage, file="is open")
    feeds: Any = SimpleNamespace(taking=[page], endings=SimpleNamespace(arrived=arrived.append))
    file = _File(slot, feeds)
    slot.start_exporting()
    file.is_damaged = is_damaged
    slot.storage.store(slot.file)
    assert arrived == [page] * (not is_damaged)
