"""A page's links are asked about together: in real crawls, nothing else is to change by it.

Each crawl is a process of its own; the site is in this one.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from scrapy import version_info
from support.odd_site import MISSING, Done, Lab, LabOf, labs, moved, page, tree
from support.polling import until
from support.proxy import PASS, Fault, Kind, Proxy

from scrapy_bloom import BloomFilter

REMEMBER = pytest.mark.parametrize("remember", ["scheduled", "crawled"])
PLAIN_SCRAPY = {"DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"}
PAGES = 60

#: Counts signals, and the names of the URLs they are about.
COUNTING = """
import asyncio
from support.odd_site import OddSpider
from scrapy import Request, signals
from scrapy.exceptions import IgnoreRequest

class CountingSpider(OddSpider):
    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        self = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(self.on_scheduled, signals.request_scheduled)
        crawler.signals.connect(self.on_dropped, signals.request_dropped)
        return self

    def on_scheduled(self, request):
        self.crawler.stats.inc_value("test/scheduled")

    def on_dropped(self, request):
        self.crawler.stats.inc_value("test/dropped")

    def at(self, path, **kwargs):
        return Request(self.settings["SITE_URL"] + path, **kwargs)

"""


@pytest.fixture(scope="module")
def lab_of(any_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabOf]:
    """Makes labs."""
    with labs(any_binary, tmp_path_factory.mktemp) as make:
        yield make


def spider(body: str) -> str:
    """Return a spider with these methods and attributes."""
    return COUNTING + "".join(f"    {line}\n" for line in body.strip().splitlines())


def plain(lab: Lab, code: str = COUNTING, **settings: Any) -> tuple[Counter[str], dict[str, Any]]:
    """Crawl with Scrapy alone; return what was fetched, and the stats."""
    before = lab.site.hits()
    with lab.start(code, **PLAIN_SCRAPY, **settings) as crawl:
        stats = crawl.wait()
    return lab.site.hits() - before, stats


def assert_ended_well(done: Done) -> None:
    """No error, and nothing is claimed any more."""
    assert "ERROR" not in done.log
    assert done.stats["finish_reason"] == "finished"
    assert not done.claims
    assert not done.workers


# -- as Scrapy does --


@REMEMBER
def test_the_same_pages_are_fetched_as_by_scrapy_alone(lab_of: LabOf, remember: str) -> None:
    lab = lab_of(tree(PAGES))
    hits, stats = plain(lab)
    done = lab.crawl(COUNTING, BLOOM_REMEMBER=remember)
    assert done.hits == hits == Counter(lab.site.pages.keys())
    for stat in ("scheduler/enqueued", "dupefilter/filtered", "test/dropped"):
        assert done.stats[stat] == stats[stat]
    assert_ended_well(done)


@REMEMBER
def test_a_duplicate_is_counted_logged_and_signalled(lab_of: LabOf, remember: str) -> None:
    lab = lab_of(tree(PAGES))
    done = lab.crawl(COUNTING, BLOOM_REMEMBER=remember, DUPEFILTER_DEBUG=True)
    count = done.stats["dupefilter/filtered"]
    assert count == done.stats["test/dropped"] > PAGES
    assert done.log.count("Filtered duplicate request: <GET") == count
    assert done.stats["bloom/seen"] == count
    assert done.stats["bloom/new"] == PAGES


def test_who_connects_during_the_crawl_is_told_soon(lab_of: LabOf) -> None:
    lab = lab_of({"/": page("/a"), "/a": page("/a", "/")})
    code = spider("""
@classmethod
def from_crawler(cls, crawler, *args, **kwargs):
    return super(CountingSpider, cls).from_crawler(crawler, *args, **kwargs)

async def parse(self, response):
    self.crawler.signals.connect(self.on_dropped, signals.request_dropped)
    await asyncio.sleep(0.2)
    for request in super().parse(response):
        yield request
""")
    done = lab.crawl(code)
    assert done.hits == Counter(["/", "/a"])
    assert done.stats["test/dropped"] == done.stats["dupefilter/filtered"] >= 1


def test_the_first_duplicate_only_is_logged_without_debug(lab_of: LabOf) -> None:
    done = lab_of(tree(PAGES)).crawl(COUNTING)
    assert done.log.count("Filtered duplicate request: <GET") == 1
    assert done.log.count("no more duplicates will be shown") == 1


def test_duplicates_of_the_run_before_do_not_come_as_far_as_the_scheduler(lab_of: LabOf) -> None:
    lab = lab_of({"/": page("/a", "/b"), "/a": page(), "/b": page()})
    lab.crawl(COUNTING)
    done = lab.crawl(COUNTING)
    assert done.hits == Counter(["/"])
    assert done.stats["test/scheduled"] == 1
    assert done.stats["test/dropped"] == done.stats["dupefilter/filtered"] == 2


def test_a_page_takes_a_round_trip_and_not_one_a_link(lab_of: LabOf) -> None:
    links = [f"/{number}" for number in range(50)]
    lab = lab_of({"/": page(*links)} | {link: page() for link in links})
    done = lab.crawl(COUNTING)
    assert done.hits == Counter(["/", *links])
    assert 1 <= done.stats["bloom/async_round_trips"] <= 10


@pytest.mark.parametrize("cache", [0, 200_000])
@REMEMBER
def test_pages_that_link_the_same_at_the_same_time_get_it_fetched_once(
    lab_of: LabOf, remember: str, cache: int
) -> None:
    links = [f"/{number}" for number in range(30)]
    pages = {link: page(*links) for link in links}
    lab = lab_of({"/": page(*links[:10])} | pages)
    done = lab.crawl(COUNTING, BLOOM_REMEMBER=remember, BLOOM_CACHE_SIZE=cache)
    assert done.hits == Counter(["/", *links])
    assert done.stats["bloom/new"] == len(links)
    assert done.recorded == set(links)
    assert_ended_well(done)


# -- what is not to be claimed --


@REMEMBER
def test_what_is_offsite_is_never_claimed(lab_of: LabOf, remember: str) -> None:
    lab = lab_of({})
    offsite, allowed = f"{lab.site.offsite}/other", f"{lab.site.offsite}/allowed"
    lab.site.pages |= {"/": page("/a", offsite, allowed), "/a": page(offsite), allowed: page()}
    code = spider("""
def links(self, response):
    for request in super().links(response):
        request.meta["allow_offsite"] = request.url.endswith("/allowed")
        yield request
""")
    done = lab.crawl(code, BLOOM_REMEMBER=remember)
    assert done.hits == Counter(["/", "/a", allowed])
    assert done.recorded == {"/a", allowed}
    assert done.stats["bloom/new"] == 2
    assert done.stats["offsite/filtered"] == 2
    assert_ended_well(done)


OWN_OFFSITE = """
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware

class Own(OffsiteMiddleware):
    def should_follow(self, request, spider):
        return not request.url.endswith("/forbidden")
"""


@REMEMBER
def test_an_offsite_middleware_of_ones_own_is_asked(lab_of: LabOf, remember: str) -> None:
    lab = lab_of({"/": page("/a", "/forbidden"), "/a": page(), "/forbidden": page()})
    code = OWN_OFFSITE + spider("""
custom_settings = {
    "DOWNLOADER_MIDDLEWARES": {
        "scrapy.downloadermiddlewares.offsite.OffsiteMiddleware": None, Own: 50
    }
}
""")
    done = lab.crawl(code, BLOOM_REMEMBER=remember)
    assert done.hits == Counter(["/", "/a"])
    assert done.recorded == {"/a"}
    assert done.stats["bloom/new"] == 1


@REMEMBER
def test_what_is_not_to_be_filtered_is_neither_asked_about_nor_dropped(
    lab_of: LabOf, remember: str
) -> None:
    lab = lab_of({"/": page(), "/a": page(), "/b": page()})
    code = spider("""
def parse(self, response):
    for _ in range(3):
        yield self.at("/a", dont_filter=True, callback=self.leaf)
        yield self.at("/b", meta={"bloom_enabled": False}, callback=self.leaf)

def leaf(self, response):
    pass
""")
    done = lab.crawl(code, BLOOM_REMEMBER=remember)
    assert done.hits == Counter({"/": 1, "/a": 3, "/b": 3})
    assert not done.recorded
    assert "dupefilter/filtered" not in done.stats
    assert_ended_well(done)


# -- odd pages --


@REMEMBER
def test_a_url_that_a_page_links_twice_is_fetched_once(lab_of: LabOf, remember: str) -> None:
    lab = lab_of({"/": page("/a", "/b", "/a", "/a"), "/a": page(), "/b": page()})
    done = lab.crawl(COUNTING, BLOOM_REMEMBER=remember)
    assert done.hits == Counter(["/", "/a", "/b"])
    assert done.stats["dupefilter/filtered"] == done.stats["test/dropped"] == 2
    assert_ended_well(done)


@REMEMBER
def test_a_request_that_is_yielded_twice_is_fetched_once(lab_of: LabOf, remember: str) -> None:
    lab = lab_of({"/": page(), "/a": page()})
    code = spider("""
def parse(self, response):
    if response.url.endswith("/a"):
        return
    request = self.at("/a")
    yield request
    yield request
    yield {"an": "item"}
    yield request
""")
    done = lab.crawl(code, BLOOM_REMEMBER=remember)
    assert done.hits == Counter(["/", "/a"])
    assert done.stats["dupefilter/filtered"] == 2
    assert_ended_well(done)


@REMEMBER
def test_a_key_identifies_a_request(lab_of: LabOf, remember: str) -> None:
    lab = lab_of({"/": page(), "/a": page(), "/b": page(), "/c": page()})
    code = spider("""
def parse(self, response):
    for path, key in (("/a", "x"), ("/b", "x"), ("/c", "y")):
        yield self.at(path, meta={"bloom_key": key}, callback=self.leaf)

def leaf(self, response):
    pass
""")
    done = lab.crawl(code, BLOOM_REMEMBER=remember)
    assert done.hits == Counter(["/", "/a", "/c"])
    assert_ended_well(done)


@REMEMBER
def test_windows_may_be_mixed_on_a_page(lab_of: LabOf, remember: str) -> None:
    lab = lab_of({"/": page(), **{f"/{n}": page() for n in range(8)}})
    code = spider("""
def parse(self, response):
    windows = ("daily", "lasting", "run", "weekly")
    for number in (*range(8), *range(8)):
        meta = {"bloom_window": windows[number % 4]}
        yield self.at(f"/{number}", meta=meta, callback=self.leaf)

def leaf(self, response):
    pass
""")
    settings = {
        "BLOOM_REMEMBER": remember,
        "BLOOM_WINDOWS": '{"daily": "1 day", "weekly": "7 days"}',
    }
    done = lab.crawl(code, **settings)
    assert done.hits == Counter(lab.site.pages.keys())
    assert done.recorded == {"/1", "/5"}
    assert done.stats["dupefilter/filtered"] == 8
    for window in ("", "daily/", "weekly/"):
        assert done.stats[f"bloom/{window}new"] == 2
    assert_ended_well(done)
    assert lab.crawl(code, **settings).hits == Counter(["/", "/2", "/6"])


THING = """
from dataclasses import dataclass

@dataclass
class Thing:
    url: str
"""


@REMEMBER
def test_items_that_cannot_be_hashed_pass_between_requests(lab_of: LabOf, remember: str) -> None:
    lab = lab_of({"/": page("/a", "/b", "/a"), "/a": page(), "/b": page()})
    code = THING + spider("""
def links(self, response):
    for request in super().links(response):
        yield Thing(request.url)
        yield request
        yield {"url": request.url}
""")
    done = lab.crawl(code, BLOOM_REMEMBER=remember)
    assert done.hits == Counter(["/", "/a", "/b"])
    assert done.stats["item_scraped_count"] == 6
    assert_ended_well(done)


PIPELINE = """
import asyncio

class Pipeline:
    running = 0

    def __init__(self, stats):
        self.stats = stats

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler.stats)

    async def process_item(self, item, spider=None):
        self.running += 1
        self.stats.max_value("test/most_items", self.running)
        for _ in range(5):
            await asyncio.sleep(0)
        self.running -= 1
        return item
"""


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_concurrent_items_bounds_the_items_of_a_page(lab_of: LabOf, limit: int) -> None:
    lab = lab_of({"/": page("/a", "/b"), "/a": page(), "/b": page()})
    code = PIPELINE + spider("""
custom_settings = {"ITEM_PIPELINES": {Pipeline: 1}}

def links(self, response):
    for number in range(10 if response.url.endswith("/") else 0):
        yield {"number": number}
    yield from super().links(response)
""")
    done = lab.crawl(code, CONCURRENT_ITEMS=limit)
    assert done.hits == Counter(lab.site.pages.keys())
    assert done.stats["item_scraped_count"] == 10
    assert done.stats["test/most_items"] == min(limit, 10)
    assert_ended_well(done)


@REMEMBER
def test_what_a_callback_yields_before_it_raises_is_crawled(lab_of: LabOf, remember: str) -> None:
    lab = lab_of({"/": page("/a", "/b", "/c"), **{path: page() for path in ("/a", "/b", "/c")}})
    code = spider("""
def links(self, response):
    yield from super().links(response)
    if response.url.endswith("/"):
        raise ValueError("of the callback")
""")
    done = lab.crawl(code, BLOOM_REMEMBER=remember)
    assert done.hits == Counter(lab.site.pages.keys())
    assert done.log.count("ValueError: of the callback") == 1
    assert done.stats["spider_exceptions/ValueError"] == 1
    assert not done.claims


@REMEMBER
def test_a_callback_may_wait_for_a_page_that_it_has_asked_for(lab_of: LabOf, remember: str) -> None:
    """Were its request held until it has ended, both would wait for ever."""
    lab = lab_of({"/": page(), "/a": page(), "/b": page()})
    code = spider("""
async def parse(self, response):
    self.is_there = asyncio.Event()
    yield self.at("/a", callback=self.leaf)
    await asyncio.wait_for(self.is_there.wait(), 30)
    yield self.at("/b", callback=self.leaf)

def leaf(self, response):
    self.is_there.set()
""")
    done = lab.crawl(code, BLOOM_REMEMBER=remember)
    assert done.hits == Counter(lab.site.pages.keys())
    assert_ended_well(done)


@REMEMBER
def test_start_may_wait_for_its_first_page(lab_of: LabOf, remember: str) -> None:
    lab = lab_of({"/a": page(), "/b": page()})
    code = spider("""
async def start(self):
    self.is_there = asyncio.Event()
    yield self.at("/a")
    await asyncio.wait_for(self.is_there.wait(), 30)
    yield self.at("/a")
    yield self.at("/b")

def parse(self, response):
    self.is_there.set()
""")
    done = lab.crawl(code, BLOOM_REMEMBER=remember, BLOOM_START_WINDOW="lasting")
    assert done.hits == Counter(["/a", "/b"])
    assert done.recorded == {"/a", "/b"}
    assert done.stats["dupefilter/filtered"] == 1
    assert_ended_well(done)


# -- what is new and is not scheduled --

IGNORING = """
ignored = 0

def on_scheduled(self, request):
    if request.url.endswith("/once") and self.ignored < self.settings.getint("TIMES"):
        self.ignored += 1
        raise IgnoreRequest
"""


@REMEMBER
def test_what_a_handler_refuses_once_is_crawled_when_it_is_found_again(
    lab_of: LabOf, remember: str
) -> None:
    lab = lab_of({"/": page("/a", "/once"), "/a": page("/once"), "/once": page()})
    done = lab.crawl(spider(IGNORING), BLOOM_REMEMBER=remember, TIMES=1)
    assert done.hits == Counter(lab.site.pages.keys())
    assert done.recorded == {"/a", "/once"}
    assert_ended_well(done)


def test_what_a_handler_refuses_always_is_not_claimed_in_the_end(lab_of: LabOf) -> None:
    lab = lab_of({"/": page("/a", "/once"), "/a": page("/once"), "/once": page()})
    done = lab.crawl(spider(IGNORING), TIMES=100)
    assert done.hits == Counter(["/", "/a"])
    assert done.recorded == {"/a"}
    assert_ended_well(done)
    assert lab.crawl(spider(IGNORING), TIMES=0).hits == Counter(["/", "/once"])


# -- what comes from elsewhere --


@REMEMBER
def test_what_an_errback_yields_is_filtered(lab_of: LabOf, remember: str) -> None:
    lab = lab_of({"/": page(), "/missing": MISSING, "/a": page(), "/b": page()})
    code = spider("""
def parse(self, response):
    yield self.at("/a", callback=self.leaf)
    yield self.at("/missing", errback=self.failed)

def failed(self, failure):
    for path in ("/a", "/b", "/b"):
        yield self.at(path, callback=self.leaf)

def leaf(self, response):
    pass
""")
    done = lab.crawl(code, BLOOM_REMEMBER=remember)
    assert done.hits == Counter(lab.site.pages.keys())
    assert done.stats["dupefilter/filtered"] == 2


@REMEMBER
def test_what_a_downloader_middleware_makes_of_a_request_is_filtered(
    lab_of: LabOf, remember: str
) -> None:
    lab = lab_of({"/": page("/old", "/older", "/new"), "/new": page()})
    lab.site.pages |= {"/old": moved("/new"), "/older": moved("/end"), "/end": page("/old")}
    done = lab.crawl(COUNTING, BLOOM_REMEMBER=remember)
    assert done.hits == Counter(lab.site.pages.keys())
    assert done.recorded == lab.site.pages.keys() - {"/"}
    assert_ended_well(done)


# -- a fingerprinter that fails --

BROKEN = """
from scrapy.utils.request import RequestFingerprinter

class Broken(RequestFingerprinter):
    def fingerprint(self, request):
        if request.url.endswith(("/broken", "/round")) or "/broken/" in request.url:
            raise LookupError("of the fingerprinter")
        return super().fingerprint(request)
""" + spider("""
custom_settings = {"REQUEST_FINGERPRINTER_CLASS": Broken}

async def start(self):
    yield self.at(self.settings["START"])
""")


@pytest.mark.parametrize("batch", [0, 64])
@pytest.mark.parametrize(
    "start",
    [
        "/",
        pytest.param(
            "/broken",
            marks=pytest.mark.skipif(
                version_info < (2, 14), reason="Scrapy 2.13 alone waits for ever"
            ),
        ),
    ],
)
def test_what_a_fingerprinter_fails_for_is_lost_as_by_scrapy_alone(
    lab_of: LabOf, start: str, batch: int
) -> None:
    """Counted as new, the loop of /round would be crawled for ever."""
    lab = lab_of({"/": page("/a", "/round", "/b"), "/round": page("/round", "/"), "/b": page()})
    lab.site.pages["/a"] = page("/round")
    hits, stats = plain(lab, BROKEN, START=start)
    done = lab.crawl(BROKEN, START=start, BLOOM_BATCH=batch)
    assert done.hits == hits
    assert done.stats["finish_reason"] == stats["finish_reason"]
    assert "REQUEST_FINGERPRINTER_CLASS odd_spider.Broken fails for <GET" in done.log
    assert "of the fingerprinter" in done.log


def test_a_page_whose_links_get_no_fingerprint_is_tried_again_later(lab_of: LabOf) -> None:
    """Scrapy alone, whose tasks die of them, would wait for ever after 100."""
    links = [f"/broken/{number}" for number in range(300)]
    lab = lab_of({"/": page("/a", "/b"), "/a": page(*links, "/c"), "/b": page(), "/c": page()})
    done = lab.crawl(BROKEN, START="/")
    assert done.hits == Counter(["/", "/a", "/b", "/c"])
    assert done.recorded == {"/b", "/c"}
    assert {path: claim.kind for path, claim in done.claims.items()} == {"/a": "-"}
    assert done.stats["bloom/not_identified"] == 300
    assert done.stats["finish_reason"] == "finished"


# -- settings --


@REMEMBER
@pytest.mark.parametrize("batch", [0, 1, 2, 4_096])
def test_any_batch_will_do(lab_of: LabOf, batch: int, remember: str) -> None:
    lab = lab_of(tree(PAGES))
    done = lab.crawl(COUNTING, BLOOM_BATCH=batch, BLOOM_REMEMBER=remember)
    assert done.hits == Counter(lab.site.pages.keys())
    assert done.recorded == lab.site.pages.keys() - {"/"}
    assert ("bloom/async_round_trips" in done.stats) is (batch > 0)
    assert_ended_well(done)


@REMEMBER
@pytest.mark.parametrize(
    "reactor",
    [
        {"TWISTED_REACTOR": "twisted.internet.selectreactor.SelectReactor"},
        {"TWISTED_REACTOR_ENABLED": False},  # from Scrapy 2.19 on; older ones do not know it
    ],
    ids=["select", "none"],
)
def test_any_reactor_will_do(lab_of: LabOf, reactor: dict[str, Any], remember: str) -> None:
    lab = lab_of(tree(PAGES))
    done = lab.crawl(COUNTING, BLOOM_REMEMBER=remember, **reactor)
    assert done.hits == Counter(lab.site.pages.keys())
    assert done.stats["dupefilter/filtered"] == done.stats["test/dropped"]
    is_without = "TWISTED_REACTOR" in reactor
    assert ("bloom/async_round_trips" in done.stats) is not is_without
    assert_ended_well(done)


# -- the server --


@REMEMBER
@pytest.mark.parametrize("kind", [Kind.HANG, Kind.RESET_REQUEST, Kind.DROP_REPLY])
def test_no_page_is_hidden_by_a_server_that_fails_midway(
    lab_of: LabOf, kind: Kind, remember: str
) -> None:
    lab = lab_of(tree(PAGES))
    address, _, database = lab.redis_url.rpartition("/")
    with Proxy(int(address.rpartition(":")[2])) as proxy:
        lab.site.hold_after(15)
        settings = {
            "BLOOM_REDIS_URL": proxy.url.removesuffix("/0") + f"/{database}",
            "BLOOM_TIMEOUT": 0.5,
            "BLOOM_REMEMBER": remember,
        }
        with lab.start(COUNTING, **settings) as crawl:
            until(lambda: lab.site.held or crawl.is_over, "the crawl gets under way")
            proxy.fault = Fault(kind)
            lab.site.release()
            until(lambda: proxy.struck or crawl.is_over, "the server is missed")
            proxy.fault = PASS
            stats = crawl.wait()
    assert stats["finish_reason"] == "finished"
    assert lab.site.hits() == Counter(lab.site.pages.keys())
    assert lab.recorded() == lab.site.pages.keys() - {"/"}
    assert not lab.claims()


STOPPED = """
import os
from signal import SIGTERM

""" + spider("""
async def start(self):
    yield self.at("/")
    yield self.at("/other")

async def parse(self, response):
    lookups = self.crawler.engine._slot.scheduler.df._crawl.connections.lookups
    if response.url.endswith("/other"):
        while not lookups.in_flight:
            await asyncio.sleep(0)
        self.stopping = asyncio.ensure_future(self.stop(lookups))
    for request in super().parse(response):
        yield request

async def stop(self, lookups):
    while not lookups._waiting:
        await asyncio.sleep(0)
    print("a page waits:", lookups._round is not None)
    os.kill(os.getpid(), SIGTERM)
""")


@REMEMBER
def test_one_signal_ends_a_crawl_in_which_a_page_waits_for_the_answer_to_another(
    lab_of: LabOf, remember: str
) -> None:
    lab = lab_of({"/": page("/a", "/b"), "/other": page("/c")})
    address, _, database = lab.redis_url.rpartition("/")
    with Proxy(int(address.rpartition(":")[2])) as proxy:
        settings = {
            "BLOOM_REDIS_URL": proxy.url.removesuffix("/0") + f"/{database}",
            "BLOOM_REMEMBER": remember,
        }
        lab.site.hold_after(0)
        with lab.start(STOPPED, **settings) as crawl:
            until(lambda: lab.site.held or crawl.is_over, "the crawl gets under way")
            proxy.fault = Fault(Kind.DELAY, seconds=0.3)
            lab.site.release()
            stats = crawl.wait()
            assert "a page waits: True" in crawl.log
            assert "ERROR" not in crawl.log
    assert stats["finish_reason"] == "shutdown"


@REMEMBER
def test_callbacks_that_block_the_crawl_are_no_outage(lab_of: LabOf, remember: str) -> None:
    lab = lab_of(tree(12))
    code = spider("""
def parse(self, response):
    import time
    for request in self.links(response):
        yield request
        time.sleep(0.2)
""")
    # A page blocks for longer than that: its links are gathered without a turn of the loop.
    done = lab.crawl(code, BLOOM_REMEMBER=remember, BLOOM_TIMEOUT=0.3)
    assert done.hits == Counter(lab.site.pages.keys())
    assert "bloom/outages" not in done.stats
    assert_ended_well(done)


@REMEMBER
@pytest.mark.skipif(version_info < (2, 13), reason="start() is new")
def test_two_workers_with_scrapy_redis_fetch_every_page_once_in_total(
    lab_of: LabOf, remember: str
) -> None:
    lab = lab_of(tree(PAGES))
    settings = {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "SCHEDULER_PERSIST": True,
        "SCHEDULER_IDLE_BEFORE_CLOSE": 2,
        "REDIS_URL": lab.redis_url,
        "BLOOM_START_WINDOW": "lasting",
        "BLOOM_REMEMBER": remember,
    }
    with ExitStack() as stack:
        crawls = [stack.enter_context(lab.start(COUNTING, **settings)) for _ in range(2)]
        for crawl in crawls:
            crawl.wait()
            assert "ERROR" not in crawl.log
    assert lab.site.hits() == Counter(lab.site.pages.keys())
    assert lab.recorded() == lab.site.pages.keys()
    assert not lab.claims()


@REMEMBER
def test_links_are_new_again_after_another_process_has_cleared_the_filter(
    lab_of: LabOf, remember: str
) -> None:
    """When the answers that are kept are no longer fresh, which is after 0.2 s here and not 5."""
    lab = lab_of(
        {"/": page("/a", "/late"), "/a": page(), "/late": page("/slow"), "/slow": page("/a")}
    )
    impatient = "from scrapy_bloom.crawl import deduplicator\ndeduplicator.FRESH_SECONDS = 0.2\n"
    code = impatient + spider("""
async def parse(self, response):
    if response.url.endswith("/late"):
        await asyncio.sleep(0.4)
    for request in self.links(response):
        yield request
""")
    lab.site.hold_after(2)
    with lab.start(code, BLOOM_REMEMBER=remember, CONCURRENT_REQUESTS=1) as crawl:
        until(lambda: lab.site.held or crawl.is_over, "the crawl gets under way")
        if remember == "crawled":
            until(lambda: "/a" in lab.recorded(), "it is recorded")
        BloomFilter(lab.client, "odd:bloom").clear()
        lab.site.release()
        crawl.wait()
    assert lab.site.hits() == Counter({"/": 1, "/a": 2, "/late": 1, "/slow": 1})
