"""Requests that share an object: the last one to finish makes an item of what all have found.

A copy of such a request, in another worker or after a kill, would share nothing.
"""

import json
from contextlib import ExitStack
from typing import Any

import pytest
from support.odd_site import Crawl, Lab, LabOf, page
from support.polling import until

DOWNLOADS = 2
SETTINGS: dict[str, Any] = {"BLOOM_HEARTBEAT": 1, "CONCURRENT_REQUESTS": DOWNLOADS}
ITEMS = 40
OTHERS = [f"/other/{number}" for number in range(30)]
#: The parts of item 7 are /7/a, /7/b and /7/c. An item is written with its parts and its worker.
SPIDER = """
import json
import os
from scrapy import version_info
from scrapy.utils.defer import maybe_deferred_to_future

class Keep:
    @classmethod
    def from_crawler(cls, crawler):
        self = cls()
        self.path = crawler.settings["ITEMS_FILE"]
        return self

    def process_item(self, item, spider=None):
        with open(self.path, "a") as file:
            file.write(json.dumps(item) + "\\n")
        return item

class PartsSpider(OddSpider):
    custom_settings = {"ITEM_PIPELINES": {Keep: 1}}

    async def start(self):
        if self.settings.getbool("STARTS", True):
            yield Request(self.settings["SITE_URL"] + "/")

    def parse(self, response):
        for request in self.links(response):
            name = request.url.removeprefix(self.settings["SITE_URL"])
            callback = self.parse_other if name.startswith("/other") else self.parse_items
            yield request.replace(callback=callback, priority=int(name.startswith("/items")))

    def parse_other(self, response):
        pass

    async def parse_items(self, response):
        shared = {}
        for link in response.css("a::attr(href)").getall():
            _, number, part = link.split("/")
            if part == "a":
                shared = {"item": number, "parts": []}
            given = {self.settings["GIVEN"]: {"shared": shared}}
            yield response.follow(link, self.parse_part, priority=-1, **given)
            if part == "a" and self.settings.getbool("AWAITS"):
                await self.download(Request(response.urljoin("/inline")))

    def parse_part(self, response, shared=None):
        shared = shared or response.meta["shared"]
        shared["parts"].append(response.url[-1])
        if len(shared["parts"]) == 3:
            yield {**shared, "worker": os.getpid()}

    async def download(self, request):
        if version_info >= (2, 14):
            return await self.crawler.engine.download_async(request)
        return await maybe_deferred_to_future(self.crawler.engine.download(request))
"""
#: How items are found: on a page each or on one page, by what their requests share, and how.
WAYS = pytest.mark.parametrize(
    ("pages", "settings"),
    [
        (ITEMS, {"GIVEN": "cb_kwargs"}),
        (ITEMS, {"GIVEN": "meta"}),
        (1, {"GIVEN": "cb_kwargs"}),
        (ITEMS, {"GIVEN": "cb_kwargs", "AWAITS": True}),
    ],
    ids=["cb_kwargs", "meta", "one page", "awaits"],
)


def shop(lab_of: LabOf, pages: int) -> Lab:
    """Make a lab whose site has items on so many pages, and other pages."""
    parts = [f"/{number}/{part}" for number in range(ITEMS) for part in "abc"]
    each = len(parts) // pages
    lists = {f"/items/{n}": page(*parts[n * each : (n + 1) * each]) for n in range(pages)}
    paths = dict.fromkeys([*parts, *OTHERS, "/inline"], page())
    return lab_of({"/": page(*lists, *OTHERS), **lists, **paths})


def items_of(lab: Lab) -> list[dict[str, Any]]:
    """Return the items that were written."""
    return [json.loads(line) for line in (lab.directory / "items").read_text().splitlines()]


def assert_complete(lab: Lab) -> None:
    """Each item was written, and each page is remembered."""
    items = items_of(lab)
    assert {item["item"] for item in items} == {str(number) for number in range(ITEMS)}
    assert {"".join(sorted(item["parts"])) for item in items} == {"abc"}
    assert lab.recorded() >= lab.site.pages.keys() - {"/", "/inline"}
    assert not lab.claims()


@WAYS
def test_workers_share_other_requests_and_no_item_is_split(
    lab_of: LabOf, pages: int, settings: dict[str, Any]
) -> None:
    lab = shop(lab_of, pages)
    settings = {**SETTINGS, **settings, "ITEMS_FILE": lab.directory / "items"}
    lab.site.hold(*OTHERS)
    with ExitStack() as stack:

        def start(**more: Any) -> Crawl:
            return stack.enter_context(lab.start(SPIDER, **settings, **more))

        giver = start()
        until(lambda: lab.site.held == DOWNLOADS or giver.is_over, "the giver has found the items")
        taker = start(STARTS=False)
        until(lambda: lab.site.held > DOWNLOADS or taker.is_over, "the other one has requests")
        assert not taker.is_over, taker.log
        lab.site.release()
        giver.wait()
        taker.wait()
    assert len(items_of(lab)) == ITEMS
    assert_complete(lab)
    assert lab.fetched_twice() <= {"/inline"}


@WAYS
def test_no_item_is_missing_after_a_kill(
    lab_of: LabOf, pages: int, settings: dict[str, Any]
) -> None:
    """Items may be written twice."""
    lab = shop(lab_of, pages)
    settings = {**SETTINGS, **settings, "ITEMS_FILE": lab.directory / "items"}
    halfway = ("/10/b", "/20/b")  # one more part of each is fetched by then
    lab.site.hold(*halfway)
    with lab.start(SPIDER, **settings) as crawl:
        until(lambda: lab.site.held == len(halfway) or crawl.is_over, "it's halfway")
        assert not crawl.is_over, crawl.log
        crawl.kill()
    lab.crawl(SPIDER, **settings)
    assert_complete(lab)


# -- what is stored and given as ever, and what isn't --

LINKS = [f"/{number}" for number in range(20)]
IMMUTABLE = """
class ImmutableSpider(OddSpider):
    def parse(self, response):
        given = {"name": "x", "place": ("x", 1), "none": None}
        own = {"handle_httpstatus_list": [404], "download_timeout": 50, "cookiejar": 1}
        meta, kwargs = {**given, **own}, {"given": "x", "place": ("x", 1)}
        return self.links(response, callback=self.parse_page, meta=meta, cb_kwargs=kwargs)

    def parse_page(self, response, **kwargs):
        pass
"""


def test_requests_that_share_what_nobody_changes_are_stored(lab_of: LabOf) -> None:
    """Immutable values, and those of Scrapy's own keys."""
    lab = lab_of({"/": page(*LINKS), **dict.fromkeys(LINKS, page())})
    with lab.midway(1, IMMUTABLE, **SETTINGS):
        stored = {path for path, claim in lab.claims().items() if claim.request}
        assert stored == {*LINKS}


UNFILTERED = """
class UnfilteredSpider(OddSpider):
    custom_settings = {"SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue"}

    async def start(self):
        if self.settings.getbool("STARTS", True):
            yield Request(self.settings["SITE_URL"] + "/")

    def parse(self, response):
        for link in response.css("a::attr(href)").getall():
            yield response.follow(link, dont_filter=True)
"""


def test_a_queue_that_cannot_be_given_stays_as_it_is(lab_of: LabOf) -> None:
    """An idle worker is there for two heartbeats."""
    lab = lab_of({"/": page(*LINKS), **dict.fromkeys(LINKS, page())})
    settings = {**SETTINGS, "CONCURRENT_REQUESTS": 1}
    with lab.midway(1, UNFILTERED, **settings) as busy:
        with lab.start(UNFILTERED, **settings, STARTS=False) as idle:
            idle.wait()
        stats = busy.wait()
    assert [fetch.path for fetch in lab.site.fetches] == ["/", *LINKS]
    assert stats["scheduler/enqueued"] == 1 + len(LINKS)
