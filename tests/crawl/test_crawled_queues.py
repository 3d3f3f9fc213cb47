"""BLOOM_REMEMBER = "crawled" with queues that outlive a crawl: in JOBDIR, and scrapy-redis's."""

from collections import Counter
from typing import Any

import pytest
from support.odd_site import SHARED_QUEUE, Lab, LabOf, Reply, page, tree
from support.polling import until

PAGES = 60


@pytest.fixture
def lab(lab_of: LabOf) -> Lab:
    """A tree of pages."""
    return lab_of(tree(PAGES))


def assert_complete(lab: Lab) -> None:
    """All pages are recorded, and nothing is claimed any more."""
    assert lab.recorded() == lab.site.pages.keys() - {"/"}
    assert not lab.claims()


# -- JOBDIR --


def test_a_jobdir_goes_on_where_it_was_stopped(lab: Lab) -> None:
    """Its claims are left to it: nothing is taken over, or fetched twice."""
    settings: dict[str, Any] = {"JOBDIR": lab.directory / "job", "CONCURRENT_REQUESTS": 6}
    lab.stop_midway(15, **settings)
    assert lab.claims()
    done = lab.crawl(**settings)
    assert_complete(lab)
    assert not lab.fetched_twice()
    assert "bloom/taken_over" not in done.stats


# -- scrapy-redis --

DISTRIBUTED = {**SHARED_QUEUE, "BLOOM_HEARTBEAT": 1}


START = """
from scrapy_redis.spiders import RedisSpider

class StartSpider(RedisSpider):
    name = "odd"
    redis_key = "start"
    custom_settings = {"CONCURRENT_REQUESTS": 1, "MAX_IDLE_TIME_BEFORE_CLOSE": 1}

    def parse(self, response):
        pass
"""


@pytest.mark.parametrize("number", [1, 2])
def test_a_start_url_that_is_gone_from_its_list_is_crawled_after_a_kill(
    lab_of: LabOf, number: int
) -> None:
    """The first one comes of start(), the second one of an idle spider."""
    lab = lab_of({"/1": page(), "/2": page()})
    for path in ("/1", "/2"):
        lab.client.rpush("start", f'{{"url": "{lab.site.url}{path}"}}')
    lab.site.hold_after(number - 1)
    with lab.start(START, **DISTRIBUTED) as crawl:
        until(lambda: lab.site.held or crawl.is_over, "a page is under way")
        kept = f"once:/{number}"
        until(lambda: lab.claims().keys() == {kept} or crawl.is_over, "its request is stored")
        assert not crawl.is_over, crawl.log
        crawl.kill()
    assert lab.client.llen("start") == 2 - number
    lab.crawl(START, **DISTRIBUTED)
    assert lab.site.hits() == Counter(["/1", "/2", f"/{number}"])
    assert not lab.claims()


def test_a_page_is_not_lost_whose_request_is_in_the_queue_without_a_claim(lab_of: LabOf) -> None:
    """Who put it there died in an outage, before it wrote the claim; so does who takes it out."""
    slow = Reply(body=b"x" * 1_000, drip=0.1)
    links = {"/": page("/1"), "/1": page("/2", "/a", "/b"), "/2": page(), "/a": page("/b")}
    lab = lab_of({**links, "/b": slow})
    lab.stop_midway(2, **DISTRIBUTED, CONCURRENT_REQUESTS=1)
    for claim in lab.claims().values():
        lab.client.delete(claim.key)
    with lab.start(**DISTRIBUTED, CONCURRENT_REQUESTS=4) as crawl:
        until(lambda: "/a" in lab.recorded() or crawl.is_over, "a page that links it is crawled")
        assert not crawl.is_over, crawl.log
        assert "/b" not in lab.recorded()
        crawl.kill()
    lab.site.pages["/b"] = page()
    lab.crawl(**DISTRIBUTED)
    assert "/b" in lab.recorded()
    assert not lab.claims()
