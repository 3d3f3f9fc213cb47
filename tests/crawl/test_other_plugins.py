"""Crawls beside other plug-ins: the same pages and items, each once, and all of them after a kill.

Each plug-in is the real one. Only its service is not: nothing is rendered, and no API is called.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.odd_site import Lab, LabOf, tree

PAGES = 30
#: Pages after which a crawl is killed.
MIDWAY = 12

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


@dataclass(frozen=True)
class Plugin:
    """A plug-in in use.

    Args:
        spider: the class ``PluginSpider``, after ``BASE``.
        modules: which have to be there.
        settings: that switch it on.
    """

    spider: str = PLAIN
    modules: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)


PLUGINS = {
    "scrapy-poet": Plugin(POET, ("scrapy_poet",), {"ADDONS": {"scrapy_poet.Addon": 300}}),
    "zyte-api": Plugin(
        modules=("scrapy_zyte_api",),
        settings={
            "REQUEST_FINGERPRINTER_CLASS": "scrapy_zyte_api.ScrapyZyteAPIRequestFingerprinter",
            "ZYTE_API_TRANSPARENT_MODE": True,
            "ZYTE_API_KEY": "none",
        },
    ),
    "playwright": Plugin(PLAYWRIGHT, ("scrapy_playwright",)),
    "uvloop": Plugin(modules=("uvloop",), settings={"ASYNCIO_EVENT_LOOP": "uvloop.Loop"}),
}


@pytest.fixture(params=PLUGINS)
def plugin(request: pytest.FixtureRequest) -> Plugin:
    plugin = PLUGINS[request.param]
    for module in plugin.modules:
        pytest.importorskip(module)
    return plugin


@pytest.fixture
def lab(lab_of: LabOf) -> Lab:
    return lab_of(tree(PAGES))


@pytest.fixture
def settings(plugin: Plugin) -> dict[str, Any]:
    """Settings of the plug-in, as the command line has them."""
    return {k: json.dumps(v) if isinstance(v, dict) else v for k, v in plugin.settings.items()}


def crawl(lab: Lab, plugin: Plugin, settings: dict[str, Any]) -> tuple[Counter[str], int]:
    """Return what a crawl fetches, and how many items it scrapes."""
    before = lab.site.hits()
    with lab.start(BASE + plugin.spider, **settings) as running:
        stats = running.wait()
    assert "ERROR" not in running.log
    return lab.site.hits() - before, stats.get("item_scraped_count", 0)


def test_the_same_pages_and_items_and_then_nothing_new(
    plugin: Plugin, lab: Lab, settings: dict[str, Any]
) -> None:
    assert crawl(lab, plugin, settings) == (Counter([*tree(PAGES)]), PAGES + 1)
    pages, items = crawl(lab, plugin, settings)
    assert pages.keys() <= {"/"}
    assert items <= 1


@pytest.mark.parametrize("plugin", ["scrapy-poet"], indirect=True)
def test_no_page_is_lost_with_a_kill(plugin: Plugin, lab: Lab, settings: dict[str, Any]) -> None:
    lab.kill_midway(MIDWAY, BASE + plugin.spider, **settings)
    crawl(lab, plugin, settings)
    assert not lab.missing()
