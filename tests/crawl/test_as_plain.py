"""Spiders and projects get what they get from plain Scrapy, and no page is lost by it."""

import logging

import pytest
from support.counting import assert_ended_well
from support.dupefilters import Make, spider_of
from support.odd_site import DENIED, LabOf, Reply, page

from scrapy_bloom import FilterMismatchError, StorageError

# -- spider middlewares that raise, or that handle what a callback raises --

CAPTCHA = """
from scrapy.exceptions import IgnoreRequest

class Captcha:
    def process_spider_input(self, response, spider=None):
        if b"captcha" in response.body:
            raise ValueError if response.url.endswith("/value") else IgnoreRequest

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
    assert {path: claim.kind for path, claim in done.claims.items()} == {
        "/value": "-",
        "/ignore": "-",
    }
    assert done.recorded == {"/denied", "/fine", "/from-errback"}
    lab.make_due()
    done = lab.crawl(CAPTCHA, **settings)
    assert done.recorded == lab.site.pages.keys() - {"/"}
    assert_ended_well(done)


HANDLING = """
class Handles:
    def process_spider_exception(self, response, exception, spider=None):
        is_empty = not response.url.endswith("/generator")
        return [] if is_empty else [response.follow("/from-middleware")]

class HandledSpider(OddSpider):
    custom_settings = {"SPIDER_MIDDLEWARES": {Handles: 100}}

    def parse(self, response):
        for request in self.links(response):
            name = request.url.rpartition("/")[2]
            yield request.replace(callback=getattr(self, f"parse_{name}"))

    def parse_fine(self, response):
        pass

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


def test_a_page_has_failed_whose_callbacks_exception_a_middleware_handles(lab_of: LabOf) -> None:
    """What it has yielded before, and what the middleware yields, is crawled."""
    raising = ["/call", "/generator", "/coroutine", "/asynchronous"]
    fine = ["/fine", "/from-generator", "/from-asynchronous", "/from-middleware"]
    lab = lab_of({"/": page(*raising, "/fine"), **dict.fromkeys([*raising, *fine], page())})
    done = lab.crawl(HANDLING)
    assert done.recorded == set(fine)
    assert {path: claim.kind for path, claim in done.claims.items()} == dict.fromkeys(raising, "-")


# -- the log --

LIBRARY = """
from scrapy_bloom import BloomFilter

class LibrarySpider(OddSpider):
    async def start(self):
        BloomFilter("redis://127.0.0.1:1/0", "own").add("a")
        yield Request(self.settings["SITE_URL"] + "/")
"""


def test_an_error_of_a_filter_of_the_projects_own_is_logged_by_scrapy(lab_of: LabOf) -> None:
    done = lab_of({"/": page()}).crawl(LIBRARY)
    assert "Traceback" in done.log
    assert "can't be reached" in done.log
    assert "the crawl doesn't start" not in done.log


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
    headline = ("twisted", "Unhandled error in Deferred:")
    assert [(one.name, one.getMessage()[:44]) for one in errors] == [
        *(headline, ("twisted", "")),
        ("scrapy_bloom.crawl.short_errors", "Bloom filter: the crawl doesn't start. The f"),
        *(headline, ("twisted", "")) * 2,
        ("scrapy.utils.signal", "CoreStats.spider_closed"),
    ]
    assert [one.exc_info[1] for one in errors if one.exc_info] == [other, other, library, closed]
