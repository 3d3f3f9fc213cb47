"""Crawls that end early: after a plain rerun, no page and no item is missing.

Each crawl is a process of its own; the site is in this one.
"""

import shutil
from collections import Counter
from typing import Any

import pytest
from support.odd_site import (
    PLAIN,
    SHARED_QUEUE,
    Lab,
    LabOf,
    Reply,
    page,
    tree,
)
from support.polling import until

PAGES = 40
#: Pages that a crawl gets before it is interrupted.
MIDWAY = 12
NOT_READ = "[bloom-not-read]"

# -- spiders as people write them: pages with odd numbers have an item --

ODD = "13579"
ITEMS = """
from dataclasses import dataclass

@dataclass
class Place:
    number: int

class ItemSpider(OddSpider):
    custom_settings = {"ITEM_PIPELINES": {Keep: 1}}

    def parse(self, response, **kwargs):
        if response.url[-1] in "13579":
            yield {"url": response.url}
        yield from self.links(response, WAYS)
"""
RULES = """
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

class RulesSpider(CrawlSpider):
    name = "odd"
    custom_settings = ItemSpider.custom_settings
    rules = (Rule(LinkExtractor(), callback="item", follow=True),)
    start = OddSpider.start

    def item(self, response):
        if response.url[-1] in "13579":
            yield {"url": response.url}

del ItemSpider
"""
SPIDERS = {
    "plain": ITEMS.replace(", WAYS", ""),
    "rules": ITEMS + RULES,
    "lambda": ITEMS.replace("WAYS", "callback=lambda response: self.parse(response)"),
    "dataclass": ITEMS.replace("WAYS", "cb_kwargs={'place': Place(1)}"),
}


#: By the queue of requests. Each crawl has a folder of its own, beside that of the job.
WAYS: dict[str, dict[str, Any]] = {
    "memory": {},
    "jobdir": {"JOBDIR": "../job"},
    "scrapy-redis": SHARED_QUEUE,
}


def interrupt(lab: Lab, end: str, spider: str, settings: dict[str, Any]) -> None:
    """End a crawl that has pages under way, then have the site answer."""
    with lab.midway(MIDWAY, spider, **settings) as crawl:
        if end == "SIGKILL":
            crawl.kill()
        else:
            crawl.ask_to_stop()
        if end == "SIGINT twice":
            crawl.ask_to_stop(at_once=True)
            crawl.wait()
        lab.site.release()
        if end == "SIGINT":
            crawl.wait()


@pytest.mark.parametrize("end", ["SIGKILL", "SIGINT", "SIGINT twice"])
@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("plain", "memory"),
        ("rules", "jobdir"),
        ("lambda", "memory"),
        ("lambda", "jobdir"),
        ("dataclass", "scrapy-redis"),
    ],
)
def test_no_page_and_no_item_is_missing_after_a_rerun(
    lab_of: LabOf, name: str, way: str, end: str
) -> None:
    lab, spider = lab_of(tree(PAGES)), SPIDERS[name]
    settings = {"BLOOM_HEARTBEAT": 1, **WAYS[way]}
    interrupt(lab, end, spider, settings)
    if is_damaged(lab, spider, settings):
        shutil.rmtree(lab.directory / "job")
        lab.make_due()
        lab.crawl(spider, **settings)
    assert lab.site.hits().keys() == lab.site.pages.keys()
    items = {item["url"] for item in lab.items()}
    assert items == {lab.site.url + path for path in lab.site.pages if path[-1] in ODD}
    assert not lab.claims()


def is_damaged(lab: Lab, spider: str, settings: dict[str, Any]) -> bool:
    """Crawl as far as the files of Scrapy's queue allow; return whether a kill has damaged them."""
    with lab.start(spider, **settings) as rerun:
        until(lambda: rerun.is_over or NOT_READ in rerun.log, "it has ended, or stands still")
        if not rerun.is_over:
            return True
        rerun.wait()
    return "struct.error" in rerun.log  # some requests have failed


def test_a_queue_that_is_damaged_is_named_and_costs_no_page(lab_of: LabOf) -> None:
    lab = lab_of(tree(PAGES))
    settings = {"BLOOM_HEARTBEAT": 1, **WAYS["jobdir"]}
    lab.stop_midway(MIDWAY, **settings)
    for file in (lab.directory / "job" / "requests.queue").rglob("[0-9-]*"):
        if file.is_file():  # Scrapy 2.13 has no folders for sites
            file.write_bytes(file.read_bytes() + b"\x7f\xff\xff\xff")
    assert is_damaged(lab, PLAIN, settings)
    shutil.rmtree(lab.directory / "job")
    lab.crawl(**settings)
    assert lab.site.hits().keys() == lab.site.pages.keys()
    assert not lab.claims()


CHANGED = """
class ChangedSpider(OddSpider):
    def parse(self, response):
        return self.links(response, callback=self.CALLBACK)

    def CALLBACK(self, response):
        pass
"""


def test_a_request_whose_callback_is_gone_stays_pending(lab_of: LabOf) -> None:
    """A run that has the callback again crawls it, and so does one that finds a link to it."""
    lab = lab_of({"/": page("/a", "/b"), "/a": page(), "/b": page()})
    old, new = (CHANGED.replace("CALLBACK", name) for name in ("parse_old", "parse_new"))
    lab.kill_midway(1, old)
    lab.site.pages["/"] = page()
    done = lab.crawl(new)
    assert done.stats["bloom/unreadable"] == 2
    assert "parse_old" in done.log
    assert done.hits == Counter(["/"])
    lab.site.pages["/"] = page("/a")
    assert lab.crawl(new).recorded == {"/a"}
    assert lab.claims().keys() == {"/b"}
    assert lab.crawl(old).recorded == {"/a", "/b"}
    assert not lab.claims()


FINGERPRINTS = """
from scrapy.utils.request import fingerprint

class Fingerprinter(Component):
    def fingerprint(self, request):
        return b"new" + fingerprint(request)

class OtherSpider(OddSpider):
    custom_settings = {"REQUEST_FINGERPRINTER_CLASS": Fingerprinter}
"""


def test_pending_requests_are_crawled_whose_fingerprints_are_new(lab_of: LabOf) -> None:
    lab = lab_of({"/": page("/a", "/b"), "/a": page(), "/b": page()})
    lab.kill_midway(1, BLOOM_BLOCKS=1)
    lab.site.pages["/"] = page()
    assert lab.crawl(FINGERPRINTS, BLOOM_BLOCKS=1).hits == Counter(["/", "/a", "/b"])
    assert not lab.claims()
    lab.site.pages["/"] = page("/a", "/b")
    assert lab.crawl(FINGERPRINTS, BLOOM_BLOCKS=1).hits == Counter(["/"])


AGAIN = """
class AgainSpider(OddSpider):
    def parse(self, response):
        return self.links(response, callback=lambda response: self.parse_page(response))

    def parse_page(self, response):
        if b"captcha" in response.body:
            request = response.request
            request.dont_filter, request.priority = True, -3
            yield request
"""


def test_a_page_that_cannot_be_saved_and_yields_itself_is_not_remembered_before(
    lab_of: LabOf,
) -> None:
    links = {"/": page("/again", "/next", "/last"), "/next": page(), "/last": page()}
    captcha = Reply(text="captcha")
    lab = lab_of({**links, "/again": [captcha, captcha, page()]})
    lab.site.hold("/last")
    with lab.start(AGAIN, CONCURRENT_REQUESTS=1) as crawl:
        crawl.until(lambda: "/next" in lab.recorded(), "the page after it is crawled")
        assert lab.recorded() == {"/next"}
        crawl.kill()
    lab.crawl(AGAIN, CONCURRENT_REQUESTS=1)
    assert lab.site.hits()["/again"] == 3
    assert lab.recorded() == {"/again", "/next", "/last"}
    assert not lab.claims()


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
        crawl.until(lambda: lab.site.held, "a page is under way")
        kept = f"once:/{number}"
        crawl.until(lambda: lab.claims().keys() == {kept}, "its request is stored")
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
        crawl.until(lambda: "/a" in lab.recorded(), "a page that links it is crawled")
        assert "/b" not in lab.recorded()
        crawl.kill()
    lab.site.pages["/b"] = page()
    lab.crawl(**DISTRIBUTED)
    assert "/b" in lab.recorded()
    assert not lab.claims()
