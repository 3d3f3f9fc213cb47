"""What a page's links may be: offsite, unfiltered, repeated, refused, or without a fingerprint."""

from collections import Counter

import pytest
from scrapy import version_info
from support.counting import REMEMBER, assert_ended_well, plain, spider
from support.odd_site import MISSING, LabOf, page

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
def test_an_offsite_middleware_of_the_project_is_asked(lab_of: LabOf, remember: str) -> None:
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
""")
    done = lab.crawl(code, BLOOM_REMEMBER=remember)
    assert done.hits == Counter({"/": 1, "/a": 3, "/b": 3})
    assert not done.recorded
    assert "dupefilter/filtered" not in done.stats
    assert_ended_well(done)


# -- odd pages --


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
    done = lab.crawl(code, BLOOM_REMEMBER=remember, BLOOM_START_RECRAWL_AFTER="default")
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
""")
    done = lab.crawl(code, BLOOM_REMEMBER=remember)
    assert done.hits == Counter(lab.site.pages.keys())
    assert done.stats["dupefilter/filtered"] == 2


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
