"""Other plug-ins of Scrapy, each with a spider of ``odd_site`` that uses it.

Each is the real one. Only its service isn't: there is no browser, and Zyte API is ``ZyteAPI``.
"""

import base64
import json
from contextlib import closing
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

#: A spider follows all links of pages, and yields an item a page. Those of plug-ins say how a
#: request is made, and by what the plug-in shows that it's in use.
BASE = """
from urllib.parse import urlsplit


class Base(OddSpider):
    def request(self, url):
        return Request(url)

    def parse(self, response):
        assert self.is_used(response)
        yield {"path": urlsplit(response.url).path}
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
        self.links = (await page.to_item())["links"]
        for found in super().parse(response):
            yield found

    def is_used(self, response):
        return self.links
"""
ZYTE_API = """
class PluginSpider(Base):
    def is_used(self, response):
        return response.raw_api_response
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

    def is_used(self, response):
        handler = self.crawler.engine.downloader.handlers._get_handler("http")
        methods = [one.method for one in response.meta["playwright_page_methods"]]
        expected = ["wait_for_selector"] if response.meta["depth"] else []
        return hasattr(handler, "browser_provider") and methods == expected
"""
IMPERSONATE = """
class PluginSpider(Base):
    def is_used(self, response):
        return "impersonate" in response.flags
"""
SPIDERMON = """
from spidermon import MonitorSuite
from spidermon.contrib.scrapy.monitors import ErrorCountMonitor, FinishReasonMonitor


class Monitors(MonitorSuite):
    monitors = [ErrorCountMonitor, FinishReasonMonitor]


class PluginSpider(Base):
    custom_settings = {
        "SPIDERMON_SPIDER_CLOSE_MONITORS": [Monitors],
        "SPIDERMON_VALIDATION_SCHEMAS": [{"required": ["path"]}],
        "SPIDERMON_MAX_ERRORS": 0,
    }

    def is_used(self, response):
        return self.crawler.stats.get_value("spidermon/validation/validators")
"""
#: A callback waits for two requests. They aren't filtered, because each run crawls the start page
#: (docs/how-to/other-plug-ins.md).
INLINE_REQUESTS = """
from inline_requests import inline_requests


class PluginSpider(Base):
    def request(self, url):
        return Request(url, self.parse)  # without a callback, the generator would wait for it

    @inline_requests
    def parse(self, response):
        for part in ("?one", "?two"):
            reply = yield Request(response.url + part, dont_filter=True)
            assert reply.url == response.url + part
        yield from super().parse(response)

    def is_used(self, response):
        return True
"""
ROTATING_PROXIES = """
class PluginSpider(Base):
    def is_used(self, response):
        return response.meta["_rotating_proxy"]
"""
UVLOOP = """
import asyncio


class PluginSpider(Base):
    def is_used(self, response):
        return type(asyncio.get_running_loop()).__module__ == "uvloop"
"""

KEEP = {"support.spiders.Keep": 900}
MONITORED = {
    "SPIDERMON_ENABLED": True,
    "EXTENSIONS": {
        "support.spiders.StatsFile": 0,
        "spidermon.contrib.scrapy.extensions.Spidermon": 500,
    },
    "ITEM_PIPELINES": {"spidermon.contrib.scrapy.pipelines.ItemValidationPipeline": 800, **KEEP},
}
#: Its add-on needs more packages where scrapy-poet is installed, too.
TRANSPARENT = {
    "ZYTE_API_KEY": "a",
    "ZYTE_API_TRANSPARENT_MODE": True,
    "DOWNLOAD_HANDLERS": {"http": "scrapy_zyte_api.ScrapyZyteAPIDownloadHandler"},
    "DOWNLOADER_MIDDLEWARES": {"scrapy_zyte_api.ScrapyZyteAPIDownloaderMiddleware": 633},
    "SPIDER_MIDDLEWARES": {"scrapy_zyte_api.ScrapyZyteAPISpiderMiddleware": 100},
    "REQUEST_FINGERPRINTER_CLASS": "scrapy_zyte_api.ScrapyZyteAPIRequestFingerprinter",
}
PROXIES = {
    "rotating_proxies.middlewares.RotatingProxyMiddleware": 610,
    "rotating_proxies.middlewares.BanDetectionMiddleware": 620,
}
#: Modules, with spiders and settings that use them.
PLUGINS: dict[str, tuple[str, dict[str, Any]]] = {
    "scrapy_poet": (POET, {"ADDONS": {"scrapy_poet.Addon": 300}}),
    "scrapy_zyte_api": (ZYTE_API, TRANSPARENT),
    "scrapy_playwright": (
        PLAYWRIGHT,
        {
            "DOWNLOAD_HANDLERS": {
                "http": "scrapy_playwright.handler.ScrapyPlaywrightDownloadHandler"
            }
        },
    ),
    "scrapy_impersonate": (
        IMPERSONATE,
        {
            "DOWNLOAD_HANDLERS": {"http": "scrapy_impersonate.ImpersonateDownloadHandler"},
            "DOWNLOADER_MIDDLEWARES": {"scrapy_impersonate.RandomBrowserMiddleware": 1000},
        },
    ),
    "spidermon": (SPIDERMON, MONITORED),
    "inline_requests": (INLINE_REQUESTS, {}),
    "rotating_proxies": (ROTATING_PROXIES, {"DOWNLOADER_MIDDLEWARES": PROXIES}),
    "uvloop": (UVLOOP, {"ASYNCIO_EVENT_LOOP": "uvloop.Loop"}),
}


class ZyteAPI(BaseHTTPRequestHandler):
    """Fetches pages, as Zyte API does."""

    def do_POST(self) -> None:
        query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        url = urlsplit(query["url"])
        with closing(HTTPConnection(url.netloc)) as site:
            site.request("GET", url._replace(scheme="", netloc="").geturl())
            response = site.getresponse()
            body = base64.b64encode(response.read()).decode()
            headers = [{"name": "Content-Type", "value": response.headers["Content-Type"]}]
        reply = {"url": query["url"], "statusCode": response.status, "httpResponseBody": body}
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(reply | {"httpResponseHeaders": headers}).encode())

    def log_message(self, *_args: object) -> None:
        """Keep the terminal for the tests."""
