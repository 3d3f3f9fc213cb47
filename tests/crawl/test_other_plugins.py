"""Crawls beside other plug-ins: the same pages and items, each once, and all of them after a kill.

Each plug-in is the real one. Only its service is not: nothing is rendered, and no API is called.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import redis
from example_site.build import Site
from example_site.serve import SiteServer, serve
from scrapy import version_info
from support.crawling import PLAIN_SCRAPY, options, run_scrapy
from support.servers import Server

STORIES = 8
#: What each run fetches: the start request, and what Scrapy itself asks for.
EACH_RUN = {"/", "/robots.txt"}
#: Pages after which a crawl kills itself.
MIDWAY = 12

#: A spider follows all links of pages and yields an item a page; plug-ins override ``request`` and
#: ``parse``.
BASE = """
import os
import signal

from scrapy import Request, Spider
from scrapy.linkextractors import LinkExtractor


class Base(Spider):
    name = "plugins"
    allowed_domains = ["127.0.0.1"]
    links = LinkExtractor()
    pages = 0

    async def start(self):
        for request in self.start_requests():
            yield request

    def start_requests(self):
        # Spider middlewares of older plug-ins require it.
        yield Request(self.settings["SITE_URL"] + "/")

    def request(self, url):
        return Request(url)

    def parse(self, response):
        yield from self.found(response)

    def found(self, response):
        self.pages += 1
        if self.pages == self.settings.getint("KILL_AT"):
            os.kill(os.getpid(), signal.SIGKILL)
        yield {"url": response.url}
        for link in self.links.extract_links(response):
            yield self.request(link.url)

"""
POET = """
import attrs
from scrapy.http import TextResponse
from web_poet import WebPage


class Heading(WebPage):
    async def to_item(self):
        return {"heading": self.css("title::text").get(default="")}


class PluginSpider(Base):
    async def parse(self, response, page: Heading):
        assert (await page.to_item())["heading"]
        for found in self.found(response):
            yield found
"""
PLAYWRIGHT = """
from scrapy_playwright.page import PageMethod


class PluginSpider(Base):
    def request(self, url):
        methods = [PageMethod("wait_for_selector", "h1")]
        return Request(url, meta={"playwright_page_methods": methods})
"""
#: As in docs/how-to/other-plug-ins.md: what is stored is JSON.
PLAYWRIGHT_RECIPE = """
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
SPLASH = """
from scrapy_splash import SplashRequest


class PluginSpider(Base):
    def request(self, url):
        return SplashRequest(url, args={"wait": 0.5})
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
        last_scrapy: the newest release of Scrapy's that it works with.
    """

    spider: str = PLAIN
    modules: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    last_scrapy: tuple[int, int] = (9, 99)


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
    "playwright-recipe": Plugin(PLAYWRIGHT_RECIPE, ("scrapy_playwright",)),
    "splash": Plugin(
        SPLASH,
        ("scrapy_splash",),
        {
            "REQUEST_FINGERPRINTER_CLASS": "scrapy_splash.SplashRequestFingerprinter",
            "DOWNLOADER_MIDDLEWARES": {
                "scrapy_splash.SplashCookiesMiddleware": 723,
                "scrapy_splash.SplashMiddleware": 725,
            },
            "SPIDER_MIDDLEWARES": {"scrapy_splash.SplashDeduplicateArgsMiddleware": 100},
        },
        last_scrapy=(2, 13),
    ),
    "deltafetch": Plugin(
        modules=("scrapy_deltafetch",),
        settings={
            "SPIDER_MIDDLEWARES": {"scrapy_deltafetch.DeltaFetch": 100},
            "DELTAFETCH_ENABLED": True,
        },
        last_scrapy=(2, 13),
    ),
    "uvloop": Plugin(modules=("uvloop",), settings={"ASYNCIO_EVENT_LOOP": "uvloop.Loop"}),
}


class Splash(BaseHTTPRequestHandler):
    """Answers as Splash's endpoint render.html does, with the page as the site sends it."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        try:
            page = urlopen(json.loads(self.rfile.read(length))["url"])
        except HTTPError as error:
            page = error
        with page:
            body = page.read()
        self.send_response(page.status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def splash_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Splash) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class Lab:
    """Crawls of one site with a plug-in.

    Args:
        web: the site.
        directory: for the spider, what it scrapes, and what the plug-in keeps.
        plugin: the plug-in.
        settings: further ones.
    """

    def __init__(self, web: SiteServer, directory: Path, plugin: Plugin, **settings: Any) -> None:
        self._web, self._directory = web, directory
        self._spider = directory / "plugins.py"
        self._spider.write_text(BASE + plugin.spider)
        self._settings = {**plugin.settings, **settings}
        self._runs = 0

    def crawl(self, **settings: Any) -> tuple[Counter[str], Counter[str]]:
        """Run the spider; return the pages it fetched, and the URLs of its items."""
        self._runs += 1
        before, items = self._web.hits(), self._directory / f"items-{self._runs}.jsonl"
        given = {**self._settings, **settings, "DELTAFETCH_DIR": self._directory / "delta"}
        # One buffered line would be lost with a kill.
        given["FEEDS"] = {str(items): {"format": "jsonlines"}}
        texts = {k: json.dumps(v) if isinstance(v, dict) else v for k, v in given.items()}
        done = run_scrapy("runspider", str(self._spider), *options(self._web, texts))
        if "KILL_AT" not in settings:
            assert done.returncode == 0, done.stderr
            assert "ERROR" not in done.stderr, done.stderr
        else:
            assert done.returncode == -9, done.stderr
        lines = items.read_text().splitlines() if items.exists() else []
        found = Counter(json.loads(line)["url"] for line in lines)
        return self._web.hits() - before, found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site.build(tmp_path_factory.mktemp("plugins") / "site", count=STORIES)


@pytest.fixture
def web(site: Site) -> Iterator[SiteServer]:
    with serve(site.directory) as web:
        yield web


#: The one whose requests cannot be stored.
OFTEN = {"playwright"}


@pytest.fixture(params=PLUGINS)
def plugin(request: pytest.FixtureRequest) -> Plugin:
    plugin = PLUGINS[request.param]
    if version_info[:2] > plugin.last_scrapy:
        pytest.skip("it does not work with this Scrapy")
    for module in plugin.modules:
        pytest.importorskip(module)
    return plugin


@pytest.fixture
def settings(server: Server, client: redis.Redis, splash_url: str) -> dict[str, str]:
    """Of crawls on an empty server."""
    return {"BLOOM_REDIS_URL": server.url, "SPLASH_URL": splash_url}


def test_the_same_pages_and_items_and_then_nothing_new(
    plugin: Plugin, web: SiteServer, settings: dict[str, str], tmp_path: Path
) -> None:
    (plain := tmp_path / "plain").mkdir()
    expected = Lab(web, plain, plugin, **settings, **PLAIN_SCRAPY).crawl()
    assert expected[1].total() > STORIES
    ours = Lab(web, tmp_path, plugin, **settings)
    assert ours.crawl() == expected
    pages, items = ours.crawl()
    assert set(pages) <= EACH_RUN
    assert set(items) <= {f"{web.url}/"}


@pytest.mark.parametrize(
    "plugin",
    [pytest.param(one, marks=[] if one in OFTEN else pytest.mark.slow) for one in PLUGINS],
    indirect=True,
)
def test_no_page_is_lost_with_a_kill(
    plugin: Plugin, web: SiteServer, site: Site, settings: dict[str, str], tmp_path: Path
) -> None:
    lab = Lab(web, tmp_path, plugin, **settings)
    lab.crawl(KILL_AT=MIDWAY)
    lab.crawl()
    assert set(web.hits()) >= set(site.truth().crawl())
