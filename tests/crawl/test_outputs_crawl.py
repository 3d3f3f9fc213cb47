"""A page's links are looked up together: otherwise, crawls go as with Scrapy's own filter.

Each crawl is a process of its own; the site is in this one.
"""

from collections import Counter

import pytest
from scrapy import version_info
from support.counting import COUNTING, PAGES, assert_ended_well, plain, spider
from support.odd_site import Done, LabOf, page, tree
from support.polling import until

# -- as Scrapy does --


def test_the_same_pages_are_fetched_as_by_scrapy_alone(lab_of: LabOf) -> None:
    lab = lab_of(tree(PAGES))
    hits, stats = plain(lab)
    done = lab.crawl(COUNTING)
    assert done.hits == hits == Counter(lab.site.pages.keys())
    for stat in ("scheduler/enqueued", "dupefilter/filtered", "test/dropped"):
        assert done.stats[stat] == stats[stat]
    assert_ended_well(done)


def test_receivers_that_connect_during_the_crawl_get_signals(lab_of: LabOf) -> None:
    lab = lab_of({"/": page("/a"), "/a": page("/a", "/")})
    # Its from_crawler connects nothing.
    code = "from scrapy_bloom.crawl import outputs\n" + spider("""
@classmethod
def from_crawler(cls, crawler, *args, **kwargs):
    return super(CountingSpider, cls).from_crawler(crawler, *args, **kwargs)

async def parse(self, response):
    self.crawler.signals.connect(self.on_dropped, signals.request_dropped)
    await asyncio.sleep(2 * outputs.RECEIVERS_SECONDS)
    for request in super().parse(response):
        yield request
""")
    done = lab.crawl(code)
    assert done.hits == Counter(["/", "/a"])
    assert done.stats["test/dropped"] == done.stats["dupefilter/filtered"] >= 1


# -- settings --


@pytest.mark.parametrize(("batch", "remember"), [(0, "scheduled"), (1, "crawled")])
def test_any_batch_will_do(lab_of: LabOf, batch: int, remember: str) -> None:
    lab = lab_of(tree(PAGES))
    done = lab.crawl(COUNTING, BLOOM_BATCH=batch, BLOOM_REMEMBER=remember)
    assert done.hits == Counter(lab.site.pages.keys())
    assert done.recorded == lab.site.pages.keys() - {"/"}
    if remember == "scheduled":  # otherwise, pages are settled so
        assert ("bloom/async_round_trips" in done.stats) is (batch > 0)
    assert_ended_well(done)


def test_without_a_reactor_all_is_the_same(lab_of: LabOf) -> None:
    """From Scrapy 2.19 on; older ones do not know the setting."""
    done = lab_of(tree(PAGES)).crawl(COUNTING, TWISTED_REACTOR_ENABLED=False)
    assert "bloom/async_round_trips" in done.stats
    assert_complete(done)


SELECT = {"TWISTED_REACTOR": "twisted.internet.selectreactor.SelectReactor"}


def test_scheduled_works_under_another_reactor(lab_of: LabOf) -> None:
    done = lab_of(tree(PAGES)).crawl(COUNTING, BLOOM_REMEMBER="scheduled", **SELECT)
    assert "bloom/async_round_trips" not in done.stats
    assert_complete(done)


def test_claims_are_refused_under_another_reactor(lab_of: LabOf) -> None:
    with lab_of(tree(PAGES)).start(BLOOM_REMEMBER="items", **SELECT) as crawl:
        until(lambda: crawl.is_over, "it is refused")
    assert 'BLOOM_REMEMBER = "items" needs asyncio' in crawl.log
    assert "remove TWISTED_REACTOR from the settings" in crawl.log
    assert "Crawled (" not in crawl.log


def assert_complete(done: Done) -> None:
    """Each page was crawled once; duplicates were dropped and counted; nothing is left."""
    assert done.hits == Counter(tree(PAGES).keys())
    assert done.stats["dupefilter/filtered"] == done.stats["test/dropped"]
    assert_ended_well(done)


# -- what a page yields --


def test_what_is_offsite_is_never_claimed(lab_of: LabOf) -> None:
    lab = lab_of({})
    offsite, allowed = f"{lab.site.offsite}/other", f"{lab.site.offsite}/allowed"
    lab.site.pages |= {"/": page("/a", offsite, allowed), "/a": page(offsite), allowed: page()}
    code = spider("""
def links(self, response):
    for request in super().links(response):
        request.meta["allow_offsite"] = request.url.endswith("/allowed")
        yield request
""")
    done = lab.crawl(code)
    assert done.hits == Counter(["/", "/a", allowed])
    assert done.recorded == {"/a", allowed}
    assert done.stats["bloom/new"] == 2
    assert done.stats["offsite/filtered"] == 2
    assert_ended_well(done)


def test_callbacks_that_block_the_crawl_are_no_outage(lab_of: LabOf) -> None:
    lab = lab_of(tree(6))
    code = spider("""
def parse(self, response):
    import time
    for request in self.links(response):
        yield request
        time.sleep(0.2)
""")
    # A page blocks for longer than that: its links are gathered without a turn of the loop.
    done = lab.crawl(code, BLOOM_TIMEOUT=0.3)
    assert done.hits == Counter(lab.site.pages.keys())
    assert "bloom/outages" not in done.stats
    assert_ended_well(done)


def test_start_may_wait_for_its_first_page(lab_of: LabOf) -> None:
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
    done = lab.crawl(code, BLOOM_START_RECRAWL_AFTER="default")
    assert done.hits == Counter(["/a", "/b"])
    assert done.recorded == {"/a", "/b"}
    assert done.stats["dupefilter/filtered"] == 1
    assert_ended_well(done)


# -- what is new and is not scheduled --

IGNORING = """
def on_scheduled(self, request):
    if request.url.endswith("/refused") and self.settings.getbool("IGNORES"):
        raise IgnoreRequest
"""


def test_what_a_handler_refuses_is_not_claimed_in_the_end(lab_of: LabOf) -> None:
    lab = lab_of({"/": page("/a", "/refused"), "/a": page("/refused"), "/refused": page()})
    done = lab.crawl(spider(IGNORING), IGNORES=True)
    assert done.hits == Counter(["/", "/a"])
    assert done.recorded == {"/a"}
    assert_ended_well(done)
    assert lab.crawl(spider(IGNORING)).hits == Counter(["/", "/refused"])


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


@pytest.mark.parametrize(
    ("start", "batch"),
    [
        ("/", 64),
        pytest.param(
            "/broken",
            0,
            marks=pytest.mark.skipif(
                version_info < (2, 14), reason="Scrapy 2.13 alone waits for ever"
            ),
        ),
    ],
)
def test_what_a_fingerprinter_fails_for_is_lost_as_by_scrapy_alone(
    lab_of: LabOf, start: str, batch: int
) -> None:
    """If it counted as new, the loop of /round would be crawled for ever."""
    lab = lab_of({"/": page("/a", "/round", "/b"), "/round": page("/round", "/"), "/b": page()})
    lab.site.pages["/a"] = page("/round")
    hits, stats = plain(lab, BROKEN, START=start)
    done = lab.crawl(BROKEN, START=start, BLOOM_BATCH=batch)
    assert done.hits == hits
    assert done.stats["finish_reason"] == stats["finish_reason"]
    assert "REQUEST_FINGERPRINTER_CLASS odd_spider.Broken fails for <GET" in done.log
    assert "of the fingerprinter" in done.log


def test_a_page_whose_links_get_no_fingerprint_is_tried_again_later(lab_of: LabOf) -> None:
    """Scrapy alone would wait for ever after 100, because its tasks die of them."""
    links = [f"/broken/{number}" for number in range(300)]
    lab = lab_of({"/": page("/a", "/b"), "/a": page(*links, "/c"), "/b": page(), "/c": page()})
    done = lab.crawl(BROKEN, START="/")
    assert done.hits == Counter(["/", "/a", "/b", "/c"])
    assert done.recorded == {"/b", "/c"}
    assert {path: claim.kind for path, claim in done.claims.items()} == {"/a": "-"}
    assert done.stats["bloom/not_identified"] == 300
    assert done.stats["finish_reason"] == "finished"
