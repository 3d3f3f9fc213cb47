"""Spiders and projects get what they get from plain Scrapy, and no page is lost by it."""

import logging
from collections import Counter

import pytest
from support.counting import assert_ended_well
from support.dupefilters import Make, spider_of
from support.odd_site import DENIED, LabOf, Reply, kinds, page, star

from scrapy_bloom import FilterMismatchError, StorageError

# -- CONCURRENT_ITEMS --

SLOW_ITEMS = """
import asyncio

class Pipeline:
    under_way = most = 0
    is_full = asyncio.Event()

    async def process_item(self, item, *args):
        Pipeline.under_way += 1
        Pipeline.most = max(Pipeline.most, Pipeline.under_way)
        if Pipeline.under_way == LIMIT:
            self.is_full.set()
        await self.is_full.wait()  # however busy the machine is
        await asyncio.sleep(0.02)
        Pipeline.under_way -= 1
        ItemSpider.ahead -= 1
        return item

class ItemSpider(OddSpider):
    custom_settings = {"CONCURRENT_ITEMS": LIMIT, "ITEM_PIPELINES": {Pipeline: 1}}
    ahead = furthest = 0

    def next_item(self):
        ItemSpider.ahead += 1
        ItemSpider.furthest = max(self.ahead, self.furthest)
        return {}

    def closed(self, reason):
        self.crawler.stats.set_value("test/most", Pipeline.most)
        self.crawler.stats.set_value("test/furthest", self.furthest)
"""
SYNC = """
    def parse(self, response):
        for _ in range(300):
            yield self.next_item()
"""
ASYNC = """
    async def parse(self, response):
        for _ in range(300):
            yield self.next_item()
            await asyncio.sleep(0)
"""


@pytest.mark.parametrize("parse", [SYNC, ASYNC], ids=["sync", "async"])
@pytest.mark.parametrize("limit", [3, 100])
def test_a_callback_is_asked_for_no_more_while_as_many_items_are_processed_as_may_be(
    lab_of: LabOf, parse: str, limit: int
) -> None:
    done = lab_of({"/": page()}).crawl(SLOW_ITEMS.replace("LIMIT", str(limit)) + parse)
    assert done.stats["item_scraped_count"] == 300
    assert (done.stats["test/most"], done.stats["test/furthest"]) == (limit, limit)
    assert_ended_well(done)


BEHIND = """
import asyncio

class Pipeline:
    async def process_item(self, item, *args):
        async with asyncio.timeout(30):
            await BehindSpider.all_fetched.wait()
        return item

class BehindSpider(OddSpider):
    custom_settings = {"CONCURRENT_ITEMS": 2, "ITEM_PIPELINES": {Pipeline: 1}}
    left = 150

    def parse(self, response):
        BehindSpider.all_fetched = asyncio.Event()
        yield {}
        yield from self.links(response, callback=self.count)

    def count(self, response):
        BehindSpider.left -= 1
        if not self.left:
            self.all_fetched.set()
"""


def test_requests_behind_a_slow_item_are_crawled(lab_of: LabOf) -> None:
    done = lab_of(star(150)).crawl(BEHIND)
    assert done.stats["item_scraped_count"] == 1
    assert_ended_well(done)


# -- a project's own dupefilter or scheduler --

FORCE = """
from scrapy.core.scheduler import Scheduler as Plain
from scrapy_bloom import BloomDupeFilter

class Filter(BloomDupeFilter):
    def request_seen(self, request):
        return False if request.meta.get("force") else super().request_seen(request)

class Scheduler(Plain):
    def enqueue_request(self, request):
        if request.meta.get("force"):
            request = request.replace(dont_filter=True)
        return super().enqueue_request(request)

class ForceSpider(OddSpider):
    def links(self, response):
        for request in super().links(response):
            request.meta.update({"force": True} if "force" in request.url else {})
            yield request
"""


@pytest.mark.parametrize(
    "own", [{"DUPEFILTER_CLASS": "odd_spider.Filter"}, {"SCHEDULER": "odd_spider.Scheduler"}]
)
def test_an_override_decides_about_each_link(lab_of: LabOf, own: dict[str, str]) -> None:
    """Whether a link is remembered or new. A claim that nobody asked for isn't left."""
    forced = [f"/force{number}" for number in range(4)]
    lab = lab_of({"/": page("/a", *forced, *forced), **dict.fromkeys(["/a", *forced], page())})
    lab.crawl()
    lab.site.pages |= {"/": page("/a", *forced, *forced, "/force-new"), "/force-new": page()}
    for _ in range(2):
        done = lab.crawl(FORCE, **own)
        assert done.hits == Counter(["/", *forced, *forced, "/force-new"])
        assert done.recorded == {"/a", *forced}
        assert_ended_well(done)


def test_an_override_that_asks_the_filter_costs_no_more_round_trips(lab_of: LabOf) -> None:
    """Whether links are remembered or pending: those that are denied have failed."""
    denied, known = ([f"/{name}{number}" for number in range(30)] for name in ("denied", "known"))
    lab = lab_of({"/": page(*denied, *known)})
    lab.site.pages |= {**dict.fromkeys(denied, DENIED), **dict.fromkeys(known, page())}
    lab.crawl(FORCE)
    usual, own = lab.crawl(FORCE), lab.crawl(FORCE, DUPEFILTER_CLASS="odd_spider.Filter")
    assert usual.hits == own.hits == Counter(["/"])
    for stat in ("bloom/round_trips", "bloom/duplicates", "dupefilter/filtered"):
        assert own.stats[stat] == usual.stats[stat]


# -- responses --

NAMESPACES = """
import asyncio
from scrapy.http import XmlResponse

class Xml:
    def process_response(self, request, response, spider=None):
        return response.replace(cls=XmlResponse)

class Pipeline:
    async def process_item(self, item, *args):
        await asyncio.sleep(0.01)
        FeedSpider.found += item["feed"].xpath("//entry").getall()
        return item

class FeedSpider(OddSpider):
    custom_settings = {"DOWNLOADER_MIDDLEWARES": {Xml: 1}, "ITEM_PIPELINES": {Pipeline: 1}}
    found = []

    def parse(self, response):
        response.selector.remove_namespaces()
        yield response.follow("/a", self.parse_more, cb_kwargs={"feed": response})
        yield {"feed": response}

    def parse_more(self, response, feed):
        self.found.extend(feed.xpath("//entry").getall())

    def closed(self, reason):
        self.crawler.stats.set_value("test/found", len(self.found))
"""


def test_a_response_keeps_its_selector(lab_of: LabOf) -> None:
    """Also in a pipeline, and in the callback of a request that carries the response."""
    feed = b'<feed xmlns="http://www.w3.org/2005/Atom"><entry>1</entry></feed>'
    lab = lab_of({"/": Reply(body=feed), "/a": page()})
    assert lab.crawl(NAMESPACES).stats["test/found"] == 2


# -- spider middlewares that raise, or that handle what a callback raises --

CAPTCHA = """
from scrapy.exceptions import CloseSpider, IgnoreRequest

ERRORS = {"value": ValueError, "ignore": IgnoreRequest, "banned": CloseSpider("banned")}

class Captcha:
    def process_spider_input(self, response, spider=None):
        if b"captcha" in response.body:
            raise ERRORS[response.url.rpartition("/")[2]]

class CaptchaSpider(OddSpider):
    custom_settings = {"SPIDER_MIDDLEWARES": {Captcha: 1000}}

    def parse(self, response):
        yield from self.links(response, errback=self.failed)

    def failed(self, failure):
        yield Request(self.settings["SITE_URL"] + "/from-errback")
"""


def test_a_page_has_failed_whose_callback_a_middleware_keeps_from_running(lab_of: LabOf) -> None:
    """Whatever its errback does. The status of a page decides as before."""
    captcha = Reply(["/never"], text="captcha")
    lab = lab_of({"/": page("/value", "/ignore", "/denied", "/fine"), "/denied": DENIED})
    lab.site.pages |= {"/value": (captcha, page("/more")), "/ignore": (captcha, page())}
    lab.site.pages |= dict.fromkeys(("/fine", "/more", "/from-errback"), page())
    settings = {"BLOOM_CRAWLED_HTTP_CODES": "200,403"}
    done = lab.crawl(CAPTCHA, **settings)
    assert kinds(done.claims) == {"/value": "-", "/ignore": "-"}
    assert done.recorded == {"/denied", "/fine", "/from-errback"}
    lab.make_due()
    done = lab.crawl(CAPTCHA, **settings)
    assert done.recorded == lab.site.pages.keys() - {"/"}
    assert_ended_well(done)


#: With an errback, the exception would close nothing.
BANNED = (
    CAPTCHA
    + """
class BannedSpider(CaptchaSpider):
    parse = OddSpider.parse
"""
)


def test_a_run_that_a_middleware_closes_leaves_its_page_to_the_next_one(lab_of: LabOf) -> None:
    captcha, links = Reply(["/never"], text="captcha"), [f"/{number}" for number in range(30)]
    lab = lab_of({"/": page("/banned", *links), "/banned": (captcha, page("/more"))})
    lab.site.pages |= dict.fromkeys((*links, "/more"), page())
    done = lab.crawl(BANNED, CONCURRENT_REQUESTS=1)
    assert done.stats["finish_reason"] == "banned"
    assert done.claims["/banned"].attempt == 1
    assert done.claims.keys() == {"/banned", *links} - done.recorded
    lab.site.pages["/"] = page()
    done = lab.crawl(BANNED)
    assert done.recorded == lab.site.pages.keys() - {"/"}
    assert_ended_well(done)


HANDLING = """
class Handles:
    def process_spider_exception(self, response, exception, spider=None):
        is_empty = not response.url.endswith("/generator")
        return [] if is_empty else [response.follow("/from-middleware")]

class Raises:
    def process_spider_output(self, response, result, spider=None):
        outputs = list(result)
        self.check(response)
        return outputs

    async def process_spider_output_async(self, response, result, spider=None):
        async for output in result:
            yield output
        self.check(response)

    def check(self, response):
        if response.url.endswith("/middleware"):
            raise ValueError

class HandledSpider(OddSpider):
    custom_settings = {"SPIDER_MIDDLEWARES": {Handles: 100, Raises: 200}}

    def parse(self, response):
        for request in self.links(response):
            name = request.url.rpartition("/")[2]
            yield request.replace(callback=getattr(self, f"parse_{name}"))

    def parse_fine(self, response):
        pass

    parse_middleware = parse_fine

    def parse_call(self, response):
        raise ValueError

    def parse_generator(self, response):
        yield response.follow("/from-generator", self.parse_fine)
        raise ValueError

    async def parse_coroutine(self, response):
        raise ValueError

    async def parse_asynchronous(self, response):
        yield response.follow("/from-asynchronous", self.parse_fine)
        raise ValueError
"""


def test_a_page_has_failed_whose_exception_a_middleware_handles(lab_of: LabOf) -> None:
    """What it has yielded before, and what the middleware yields, is crawled."""
    raising = ["/call", "/generator", "/coroutine", "/asynchronous", "/middleware"]
    fine = ["/fine", "/from-generator", "/from-asynchronous", "/from-middleware"]
    lab = lab_of({"/": page(*raising, "/fine"), **dict.fromkeys([*raising, *fine], page())})
    done = lab.crawl(HANDLING)
    assert done.recorded == set(fine)
    assert kinds(done.claims) == dict.fromkeys(raising, "-")


# -- the log --


def unhandled(error: Exception) -> None:
    """Log an error as Twisted logs those that nobody handles."""
    twisted = logging.getLogger("twisted")
    twisted.critical("Unhandled error in Deferred:")
    twisted.critical("", exc_info=error)


def test_only_the_error_of_a_crawl_that_does_not_start_is_shortened(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Errors of others are whole, before it and after it, and so are those of the library."""
    other, library, closed = LookupError("other"), StorageError("library"), AssertionError()
    dupefilter = make()
    unhandled(other)
    with pytest.raises(FilterMismatchError) as raised:
        make(BLOOM_BLOCKS=3)
    unhandled(raised.value)
    unhandled(other)
    unhandled(library)
    extra = {"spider": spider_of(dupefilter)}
    signals = logging.getLogger("scrapy.utils.signal")
    signals.error("CoreStats.spider_closed", exc_info=closed, extra=extra)
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    (short,) = [one.getMessage() for one in errors if "short_errors" in one.name]
    assert short.startswith("Bloom filter: the crawl doesn't start. The filter")
    assert caplog.text.count("Unhandled error in Deferred:") == 3
    assert [one.exc_info[1] for one in errors if one.exc_info] == [other, other, library, closed]
