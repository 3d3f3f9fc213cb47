"""Requests that share an object: the last one to finish makes an item of what all have found.

A copy of such a request, in another worker or after a kill, would share nothing.
"""

from typing import Any

import pytest
from support.odd_site import Lab, LabOf, page, star

DOWNLOADS = 2
SETTINGS: dict[str, Any] = {"BLOOM_HEARTBEAT": 1, "CONCURRENT_REQUESTS": DOWNLOADS}
ITEMS = 40
OTHERS = [f"/other/{number}" for number in range(30)]
#: The parts of item 7 are /7/a, /7/b and /7/c. An item is written with its parts and its worker.
SPIDER = """
import os
from scrapy.loader import ItemLoader

class PartsSpider(OddSpider):
    custom_settings = {"ITEM_PIPELINES": {Keep: 1}}

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
                if self.settings.getbool("LOADER"):
                    shared = ItemLoader(shared, response=response)
            if part != "c" or not self.settings.getbool("PASSES_ON"):
                yield self.request(response, link, shared)
            if part == "a" and self.settings.getbool("AWAITS"):
                await self.download(response.urljoin("/inline"))

    def request(self, response, link, shared):
        given = {self.settings["GIVEN"]: {"shared": shared}}
        return response.follow(link, self.parse_part, priority=-1, **given)

    def parse_part(self, response, shared=None):
        shared = shared or response.meta["shared"]
        if isinstance(shared, ItemLoader):
            shared.add_value("parts", response.url[-1])
            item = {"item": shared.item["item"], "parts": shared.get_collected_values("parts")}
        else:
            shared["parts"].append(response.url[-1])
            item = shared
        if len(item["parts"]) == 3:
            yield {**item, "worker": os.getpid()}
        if response.url.endswith("/a") and self.settings.getbool("PASSES_ON"):
            yield self.request(response, response.url[:-1] + "c", shared)
"""
#: How items are found: on a page each or on one page, by what their requests share, and how.
WAYS = pytest.mark.parametrize(
    ("pages", "settings"),
    [
        (ITEMS, {"GIVEN": "cb_kwargs"}),
        (ITEMS, {"GIVEN": "meta"}),
        (1, {"GIVEN": "cb_kwargs"}),
        (ITEMS, {"GIVEN": "cb_kwargs", "AWAITS": True}),
        (ITEMS, {"GIVEN": "cb_kwargs", "LOADER": True}),
        (ITEMS, {"GIVEN": "cb_kwargs", "PASSES_ON": True}),
    ],
    ids=["cb_kwargs", "meta", "one page", "awaits", "item loader", "passes on"],
)


def shop(lab_of: LabOf, pages: int) -> Lab:
    """Make a lab whose site has items on so many pages, and other pages."""
    parts = [f"/{number}/{part}" for number in range(ITEMS) for part in "abc"]
    each = len(parts) // pages
    lists = {f"/items/{n}": page(*parts[n * each : (n + 1) * each]) for n in range(pages)}
    paths = dict.fromkeys([*parts, *OTHERS, "/inline"], page())
    return lab_of({"/": page(*lists, *OTHERS), **lists, **paths})


def assert_complete(lab: Lab) -> None:
    """Each item was written, and each page is remembered."""
    items = lab.items()
    assert {item["item"] for item in items} == {str(number) for number in range(ITEMS)}
    assert {"".join(sorted(item["parts"])) for item in items} == {"abc"}
    assert lab.recorded() >= lab.site.pages.keys() - {"/", "/inline"}
    assert not lab.claims()


@WAYS
def test_workers_share_other_requests_and_no_item_is_split(
    lab_of: LabOf, pages: int, settings: dict[str, Any]
) -> None:
    # On a busy machine, a worker may send no heartbeat for some seconds.
    lab, settings = shop(lab_of, pages), {**SETTINGS, "BLOOM_HEARTBEAT": 5, **settings}
    lab.site.hold(*OTHERS)
    with lab.start(SPIDER, **settings) as giver:
        giver.until(lambda: lab.site.held == DOWNLOADS, "the giver has found the items")
        with lab.start(SPIDER, **settings, START="") as taker:
            taker.until(lambda: lab.site.held > DOWNLOADS, "the other one has requests")
            lab.site.release()
            giver.wait()
            taker.wait()
    assert len(lab.items()) == ITEMS
    assert_complete(lab)
    assert lab.fetched_twice() <= {"/inline"}


@WAYS
def test_no_item_is_missing_after_a_kill(
    lab_of: LabOf, pages: int, settings: dict[str, Any]
) -> None:
    """Items may be written twice."""
    lab, settings = shop(lab_of, pages), SETTINGS | settings
    halfway = ("/10/b", "/20/b")  # one more part of each is fetched by then
    lab.site.hold(*halfway)
    with lab.start(SPIDER, **settings) as crawl:
        crawl.until(lambda: lab.site.held == len(halfway), "it's halfway")
        crawl.kill()
    lab.crawl(SPIDER, **settings)
    assert_complete(lab)


# -- what is stored and given as ever, and what isn't --

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
    lab = lab_of(star(20))
    with lab.midway(1, IMMUTABLE, **SETTINGS):
        stored = {path for path, claim in lab.claims().items() if claim.request}
        assert stored == lab.site.pages.keys() - {"/"}
