"""Spiders whose requests cannot be stored as JSON, interrupted in every way: no page is lost.

Such a request has a claim without the request, so no other worker can crawl it. The page that
yielded it must be crawled again, and therefore keeps its own claim until the request is settled.
"""

import time
from collections import Counter
from typing import Any

import pytest
from support.ends import ENDS
from support.odd_site import SHARED_QUEUE, Lab, LabOf, Pages, page, tree
from support.polling import until

PAGES = 40


# -- spiders as people write them --

HEAD = """
from dataclasses import dataclass
from scrapy import Request, Spider
from scrapy.exceptions import CloseSpider
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule


class Base:
    name = "odd"
    allowed_domains = ("127.0.0.1",)
    custom_settings = {"CONCURRENT_REQUESTS": 4}
    pages = 0

    async def start(self):
        yield Request(self.settings["SITE_URL"] + "/", dont_filter=True)

    def item(self, response):
        yield {"url": response.url}
        self.pages += 1
        if self.pages == self.settings.getint("STOP_AT"):
            raise CloseSpider("enough")
"""


def plain(request: str, top: str = "") -> str:
    """Return a Spider that follows each link by a request.

    Args:
        request: expression that makes the request, of ``self``, ``response`` and ``url``.
        top: further classes and functions.
    """
    return f"""{HEAD}
{top}

class PlainSpider(Base, Spider):
    def parse(self, response, *args, **kwargs):
        for url in map(response.urljoin, response.css("a::attr(href)").getall()):
            yield self.request(response, url)
        yield from self.item(response)

    def request(self, response, url):
        return {request}
"""


RULES = f"""{HEAD}

class RulesSpider(Base, CrawlSpider):
    rules = (Rule(LinkExtractor(), callback="item", follow=True),)
"""
LAMBDA = plain("Request(url, lambda response: self.parse(response))")
DATACLASS = plain(
    'Request(url, self.parse, cb_kwargs={"context": Context(response.url, len(url))})',
    top="@dataclass\nclass Context:\n    source: str\n    size: int\n",
)
SPIDERS = {
    "CrawlSpider, callback by name": RULES,
    "dataclass in cb_kwargs": DATACLASS,
    "chain": LAMBDA,
}


#: Waits 1 s, not 5 s, before it takes over what an empty queue should have.
IMPATIENT = """
from scrapy_bloom.crawl import liveness
liveness.ORPHANED_AFTER_SECONDS = 1
"""


def chain(count: int) -> Pages:
    """Return a site on which each page links the next one only."""
    pages = {f"/{n}": page(f"/{n + 1}") for n in range(count)}
    return {"/": page("/0"), **pages, f"/{count}": page()}


# -- spiders x ends x queues --


def assert_completes(lab: Lab, spider: str, *, reruns: int = 1, **settings: Any) -> None:
    """After so many runs every page was fetched; one more finds nothing new or left behind."""
    assert lab.missing()
    for _ in range(reruns):
        lab.crawl(spider, **settings)
    assert not lab.missing()
    done = lab.crawl(spider, **settings)
    assert done.hits == Counter(["/"])
    assert not done.claims
    # A crawl in a JOBDIR leaves its own entry: its queue may not be empty.
    assert all(b'"queue":"dir ' in entry for entry in done.workers.values())


@pytest.mark.parametrize("spider", SPIDERS)
def test_the_next_run_crawls_what_is_missing(lab_of: LabOf, spider: str) -> None:
    lab = lab_of(chain(PAGES // 2) if spider == "chain" else tree(PAGES))
    text = SPIDERS[spider]
    ENDS["SIGKILL"](lab, text)
    assert_completes(lab, text)


#: Other ends are as fast in test_crawled_stops.py.
OTHERS = [pytest.param(end, marks=pytest.mark.slow) for end in ENDS if not end.startswith("SIGINT")]


@pytest.mark.parametrize("end", ["SIGINT twice", *OTHERS])
def test_however_the_crawl_has_ended(lab_of: LabOf, end: str) -> None:
    lab = lab_of(tree(PAGES))
    ENDS[end](lab, LAMBDA)
    assert_completes(lab, LAMBDA)


def test_where_links_are_looked_up_one_by_one(lab_of: LabOf) -> None:
    lab = lab_of(tree(PAGES))
    ENDS["SIGKILL"](lab, LAMBDA, BLOOM_BATCH=0)
    assert_completes(lab, LAMBDA, BLOOM_BATCH=0)


def test_in_a_jobdir_that_was_stopped(lab_of: LabOf) -> None:
    """What Scrapy cannot pickle is not in the JOBDIR's queue, and gone."""
    lab = lab_of(tree(PAGES))
    jobdir: dict[str, Any] = {"JOBDIR": lab.directory / "job"}
    ENDS["SIGINT"](lab, LAMBDA, **jobdir)
    assert_completes(lab, LAMBDA, **jobdir)


@pytest.mark.parametrize(
    ("persist", "end"),
    [(True, "SIGKILL"), pytest.param(False, "CloseSpider", marks=pytest.mark.slow)],
)
def test_in_a_queue_of_scrapy_redis(lab_of: LabOf, persist: bool, end: str) -> None:
    """No lambdas: scrapy-redis pickles each request, and fails to schedule those."""
    lab, spider = lab_of(tree(PAGES)), DATACLASS + IMPATIENT
    settings = {**SHARED_QUEUE, "SCHEDULER_PERSIST": persist, "BLOOM_HEARTBEAT": 1}
    ENDS[end](lab, spider, **settings)
    assert_completes(lab, spider, reruns=2, **settings)


# -- a crawl that is not interrupted --


def test_a_crawl_that_is_not_interrupted_fetches_nothing_twice_and_warns_once(
    lab_of: LabOf,
) -> None:
    """New requests that are not kept are counted, and not those that are seen."""
    done = lab_of(tree(PAGES)).crawl(LAMBDA)
    assert done.stats["bloom/not_kept"] == PAGES
    (warning,) = [line for line in done.log.splitlines() if " WARNING: " in line]
    assert "not_kept" in warning
    assert "again" in warning
    assert done.hits == Counter(tree(PAGES).keys())
    assert done.recorded == tree(PAGES).keys() - {"/"}
    assert not done.claims
    assert not done.workers


# -- many claims without a request --


def test_claims_without_a_request_do_not_hide_pages_from_the_next_run(lab_of: LabOf) -> None:
    """It queries the filter about the pages while it looks at the claims of the killed worker."""
    children = [f"/{number}" for number in range(300)]
    lab = lab_of({"/": page(*children), **dict.fromkeys(children, page())})
    lab.site.hold_after(1)
    with lab.start(LAMBDA) as crawl:
        until(lambda: len(lab.claims()) == len(children) or crawl.is_over, "all are claimed")
        assert not crawl.is_over, crawl.log
        crawl.kill()
    lab.site.fetches.clear()
    done = lab.crawl(LAMBDA)
    assert not lab.missing()
    assert not done.claims


def test_links_of_the_start_page_are_crawled_by_another_worker_in_the_same_run(
    lab_of: LabOf,
) -> None:
    """The worker that had claimed them is killed. The start page has no claim that could wait."""
    children = [f"/{number}" for number in range(20)]
    lab = lab_of({"/": page(*children), **dict.fromkeys(children, page())})
    with lab.start(LAMBDA, BLOOM_HEARTBEAT=1, DOWNLOAD_DELAY=5) as first:
        until(lambda: len(lab.claims()) == len(children) or first.is_over, "all are claimed")
        with lab.start(LAMBDA, BLOOM_HEARTBEAT=1) as second:
            until(lambda: lab.site.hits()["/"] == 2 or second.is_over, "the start page is read")
            first.kill()
            second.wait()
    assert not lab.missing()
    assert not lab.claims()


# -- one request, yielded twice --

TWICE = plain("Request(url, lambda r: self.parse(r), dont_filter=True)").replace(
    "            yield self.request(response, url)",
    "            request = self.request(response, url)\n"
    "            yield request\n"
    "            yield request",
)


def test_one_request_object_that_is_yielded_twice_leaves_nothing_behind(lab_of: LabOf) -> None:
    lab = lab_of({"/": page("/a"), "/a": page()})
    # One is finished before the other is answered: Scrapy keeps requests in flight in sets, and
    # takes the crawl to be over when one object is in them twice and leaves.
    lab.site.hold_after(2)
    with lab.start(TWICE, CONCURRENT_REQUESTS=1) as crawl:
        until(lambda: f"{{'url': '{lab.site.url}/a'}}" in crawl.log or crawl.is_over, "an item")
        time.sleep(1)  # it leaves the sets after the item is logged
        lab.site.release()
        crawl.wait()
    assert lab.site.hits() == Counter(["/", "/a", "/a"])
    assert not lab.claims()
    assert not lab.workers()
