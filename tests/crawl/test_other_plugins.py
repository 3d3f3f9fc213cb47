"""Crawls beside other plug-ins: the same pages and items, each once, and all of them after a kill.

Each plug-in is the real one. Only its service is not: nothing is rendered, and no API is called.
"""

from collections import Counter
from typing import Any

import pytest
from support.odd_site import LabOf, tree

PAGES = 30

#: A spider follows all links of pages and yields an item a page; plug-ins override ``request`` and
#: ``parse``.
BASE = """
class Base(OddSpider):
    def start_requests(self):
        # Spider middlewares of older plug-ins require it.
        yield Request(self.settings["SITE_URL"] + "/")

    def request(self, url):
        return Request(url)

    def parse(self, response):
        yield from self.found(response)

    def found(self, response):
        yield {"url": response.url}
        for url in response.css("a::attr(href)").getall():
            yield self.request(response.urljoin(url))

"""
POET = """
from web_poet import WebPage


class Links(WebPage):
    async def to_item(self):
        return {"links": self.css("a::attr(href)").getall()}


class PluginSpider(Base):
    async def parse(self, response, page: Links):
        assert (await page.to_item())["links"]
        for found in self.found(response):
            yield found
"""
#: As in docs/how-to/other-plug-ins.md: what is stored is JSON.
PLAYWRIGHT = """
from scrapy_playwright.page import PageMethod


class PageMethods:
    def process_request(self, request, spider=None):
        methods = request.meta.get("page_methods", ())
        request.meta["playwright_page_methods"] = [PageMethod(*method) for method in methods]


class PluginSpider(Base):
    custom_settings = {"DOWNLOADER_MIDDLEWARES": {PageMethods: 100}}

    def request(self, url):
        return Request(url, meta={"page_methods": [["wait_for_selector", "h1"]]})
"""
PLAIN = """
class PluginSpider(Base):
    pass
"""


ZYTE_API = {
    "REQUEST_FINGERPRINTER_CLASS": "scrapy_zyte_api.ScrapyZyteAPIRequestFingerprinter",
    "ZYTE_API_TRANSPARENT_MODE": True,
    "ZYTE_API_KEY": "none",
}
#: Modules, with spiders and settings that use them.
PLUGINS: dict[str, tuple[str, dict[str, Any]]] = {
    "scrapy_poet": (POET, {"ADDONS": '{"scrapy_poet.Addon": 300}'}),
    "scrapy_zyte_api": (PLAIN, ZYTE_API),
    "scrapy_playwright": (PLAYWRIGHT, {}),
    "uvloop": (PLAIN, {"ASYNCIO_EVENT_LOOP": "uvloop.Loop"}),
}


@pytest.mark.parametrize("module", PLUGINS)
def test_the_same_pages_and_items_and_then_nothing_new(lab_of: LabOf, module: str) -> None:
    pytest.importorskip(module)
    lab, (spider, settings) = lab_of(tree(PAGES)), PLUGINS[module]
    first, second = (lab.crawl(BASE + spider, **settings) for _ in range(2))
    assert first.hits == Counter([*tree(PAGES)])
    assert first.stats["item_scraped_count"] == PAGES + 1
    assert second.hits.keys() <= {"/"}
    assert second.stats.get("item_scraped_count", 0) <= 1
    assert "ERROR" not in first.log + second.log


def test_no_page_is_lost_with_a_kill(lab_of: LabOf) -> None:
    pytest.importorskip("scrapy_poet")
    lab, (spider, settings) = lab_of(tree(PAGES)), PLUGINS["scrapy_poet"]
    lab.kill_midway(12, BASE + spider, **settings)
    lab.crawl(BASE + spider, **settings)
    assert not lab.missing()
