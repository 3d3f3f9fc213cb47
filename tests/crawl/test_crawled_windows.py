"""BLOOM_REMEMBER = "crawled" and windows: of this run only, or gone from the settings."""

import json
import re
from collections.abc import Iterator
from signal import SIGTERM

import pytest
from support.nursery import Nursery
from support.odd_site import TREE, Lab, LabOf, Reply, labs, page, tree
from support.polling import until


@pytest.fixture(scope="module")
def lab_of(any_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabOf]:
    """Makes labs."""
    with Nursery() as nursery, labs(any_binary, tmp_path_factory.mktemp, nursery) as make:
        yield make


def missing(lab: Lab) -> set[str]:
    """The pages that no run has fetched."""
    return lab.site.pages.keys() - lab.site.hits().keys()


# -- the window "run" --

LISTING = """
from support.odd_site import OddSpider

class ListingSpider(OddSpider):
    custom_settings = {"CONCURRENT_REQUESTS": 1}

    def parse(self, response):
        if b"broken" in response.body:
            raise ValueError("broken")
        for request in self.links(response):
            if "/listing" in request.url:
                request.meta["bloom_recrawl_after"] = "run"
            yield request
"""


def listing_site() -> dict[str, Reply | tuple[Reply, ...]]:
    """Return a site whose listing fails once, and whose last page is held by the test."""
    return {
        "/": page("/mid"),
        "/mid": page("/listing", "/slow"),
        "/listing": (Reply(text="broken"), page("/a", "/b")),
        **dict.fromkeys(("/slow", "/a", "/b"), page()),
    }


def fail_and_wait(lab: Lab, **settings: object) -> None:
    """Run until the listing has failed and is due again; then let the crawl have its last page."""
    lab.site.hold_after(3)
    with lab.start(LISTING, BLOOM_RETRY_AFTER="1 s", **settings) as crawl:
        until(
            lambda: crawl.is_over or "-" in {claim.kind for claim in lab.claims().values()},
            "the listing has failed",
        )
        until(lambda: lab.site.held or crawl.is_over, "the last page is under way")
        assert not crawl.is_over, crawl.log
        wait_until_due(lab)
        lab.site.release()
        crawl.wait()
    assert lab.site.hits()["/mid"] == 1


def wait_until_due(lab: Lab) -> None:
    """Wait until all failed pages may be tried again."""
    due = max((claim.time for claim in lab.claims().values() if claim.kind == "-"), default=0)
    until(lambda: lab.now() > due, "what has failed is due")


SCRAPY_REDIS = {
    "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
    "SCHEDULER_PERSIST": True,
    "BLOOM_HEARTBEAT": 1,
}


def test_a_listing_that_failed_is_tried_again_by_an_idle_worker(lab_of: LabOf) -> None:
    """Its claim is restored to the run in which it failed, or left to the next one."""
    lab = lab_of(listing_site())
    settings = SCRAPY_REDIS | {"REDIS_URL": lab.redis_url}
    fail_and_wait(lab, **settings)
    for _ in range(2):
        wait_until_due(lab)
        lab.crawl(LISTING, **settings)
    assert not missing(lab)
    assert not lab.claims()


def test_a_listing_that_failed_is_tried_again_by_the_next_run(lab_of: LabOf) -> None:
    lab = lab_of(listing_site())
    fail_and_wait(lab)
    lab.crawl(LISTING)
    assert not missing(lab)
    assert not lab.claims()


# -- settings that change between two runs --

WINDOWS = {
    "BLOOM_RECRAWL_RULES": json.dumps([["/article", {"recrawl_after": "7 days"}]]),
}
SECTIONS = 5


def stop_with_articles_claimed(lab: Lab) -> None:
    """Crawl all sections and few of their articles."""
    articles = {n: [f"/article-{n}-{i}" for i in range(8)] for n in range(SECTIONS)}
    lab.site.pages |= {"/": page(*(f"/section-{n}" for n in articles))}
    lab.site.pages |= {f"/section-{n}": page(*articles[n]) for n in articles}
    lab.site.pages |= {article: page() for of_one in articles.values() for article in of_one}
    lab.stop_midway(SECTIONS + 5, TREE, SIGTERM, **WINDOWS)
    assert len(missing(lab)) > 20
    assert {f"/section-{n}" for n in articles} <= lab.recorded()


def test_what_was_claimed_in_a_window_that_is_gone_is_crawled(lab_of: LabOf) -> None:
    lab = lab_of({})
    stop_with_articles_claimed(lab)
    for _ in range(3):
        lab.crawl(TREE)
    assert not missing(lab)


def test_what_was_claimed_in_a_window_that_is_back_is_crawled(lab_of: LabOf) -> None:
    """And nothing is left there."""
    lab = lab_of({})
    stop_with_articles_claimed(lab)
    lab.crawl(TREE)
    lab.crawl(TREE, **WINDOWS)
    assert not missing(lab)
    assert not lab.claims()
    assert not lab.workers()


def test_remembering_what_is_scheduled_warns_of_pages_that_were_claimed(lab_of: LabOf) -> None:
    """Nothing takes them over any more."""
    lab = lab_of(tree(60))
    lab.stop_midway(15, TREE)
    count = len(lab.claims())
    assert count
    done = lab.crawl(TREE, BLOOM_REMEMBER="scheduled")
    warnings = [line for line in done.log.splitlines() if "WARNING" in line]
    assert any("claim" in line and re.search(rf"\b{count}\b", line) for line in warnings)


def test_remembering_what_is_scheduled_does_not_warn_without_claims(lab_of: LabOf) -> None:
    lab = lab_of({"/": page("/a"), "/a": page()})
    lab.crawl()
    done = lab.crawl(BLOOM_REMEMBER="scheduled")
    warnings = [line for line in done.log.splitlines() if "WARNING" in line]
    assert not any("claim" in line for line in warnings)
