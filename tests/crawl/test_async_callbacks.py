"""Callbacks that wait: what they have yielded goes on, and a page that isn't done isn't remembered.

A callback hands over what it has yielded while it waits, for example for a download or a database.
"""

from typing import Any

import pytest
from support.odd_site import Lab, LabOf, kinds, page

#: The first duplicate that nobody knows here can't be logged: /page waits until that has failed.
FAILING = """
import asyncio
from scrapy_bloom import BloomDupeFilter

def log(self, request, spider):
    WaitingSpider.has_failed.set()
    raise LookupError

BloomDupeFilter.log = log

class WaitingSpider(OddSpider):
    has_failed = asyncio.Event()

    async def parse(self, response):
        for request in self.links(response):
            yield request
        if response.url.endswith("/page"):
            await self.has_failed.wait()
            yield response.follow("/later")
"""


def test_a_page_has_failed_whose_links_were_not_all_scheduled_while_it_waited(
    lab_of: LabOf,
) -> None:
    """What it yields afterwards is crawled. The next run gets the links behind the failure."""
    lab = lab_of({"/": page("/known"), "/known": page(), "/page": page("/a", "/known", "/b")})
    lab.site.pages |= dict.fromkeys(("/a", "/b", "/later"), page())
    lab.crawl()
    lab.site.pages["/"] = page("/page")
    done = lab.crawl(FAILING)
    assert done.recorded == {"/known", "/a", "/later"}
    assert kinds(done.claims) == {"/page": "-"}
    lab.make_due()
    done = lab.crawl()
    assert done.recorded == {"/known", "/page", "/a", "/b", "/later"}
    assert not done.claims


#: /waits yields an item and a link, waits for a download, and yields another link.
WAITING = """
class WaitingSpider(OddSpider):
    async def parse(self, response):
        for request in self.links(response):
            yield request
        if response.url.endswith("/waits"):
            yield {"url": response.url}
            await self.download(response.urljoin("/inline"))
            yield response.follow("/after")
"""
CANCELLED = """
    async def download(self, url):
        gone = __import__("asyncio").get_running_loop().create_future()
        gone.cancel()
        await gone
"""
SETTINGS: dict[str, Any] = {"BLOOM_HEARTBEAT": 1}
SITE = {"/": page("/waits"), "/waits": page("/before")}
SITE |= dict.fromkeys(("/before", "/after", "/inline"), page())


def assert_complete_after_a_rerun(lab: Lab, *, fetched: bool) -> None:
    """Nothing links /waits any more."""
    lab.site.pages["/"] = page()
    done = lab.crawl(WAITING, **SETTINGS)
    assert done.hits["/waits"] == fetched
    assert done.recorded == {"/before", "/waits", "/after"}
    assert not done.claims


@pytest.mark.parametrize("is_done", [True, False], ids=["closed", "stopped"])
def test_a_crawl_that_ends_while_a_callback_waits_loses_none_of_its_links(
    lab_of: LabOf, is_done: bool
) -> None:
    """After one Ctrl-C the callback gets its download, and its page is remembered."""
    lab = lab_of(SITE)
    lab.site.hold("/inline")
    with lab.start(WAITING, **SETTINGS) as crawl:
        crawl.until(lambda: "/before" in lab.recorded(), "the callback waits")
        crawl.until(lambda: lab.site.held, "its download is under way")
        crawl.ask_to_stop()
        if is_done:
            lab.site.release()
        else:
            crawl.ask_to_stop(at_once=True)
        crawl.wait()
    assert lab.recorded() == {"/before", *(["/waits"] if is_done else [])}
    assert lab.claims().keys() == {"/after" if is_done else "/waits"}
    assert_complete_after_a_rerun(lab, fetched=not is_done)


def test_a_page_is_not_remembered_whose_callback_is_cancelled_while_it_waits(
    lab_of: LabOf,
) -> None:
    """What it has yielded before is crawled. The crawl is killed, as Scrapy's wouldn't end."""
    lab = lab_of(SITE)
    with lab.start(WAITING + CANCELLED, **SETTINGS) as crawl:
        crawl.until(lambda: "/before" in lab.recorded(), "its link is crawled")
        crawl.kill()
    assert lab.recorded() == {"/before"}
    assert_complete_after_a_rerun(lab, fetched=True)
