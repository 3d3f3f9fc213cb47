"""Sites and neighbours that harm crawlers: a crawl takes hardly more than an undisturbed one."""

import json

import pytest
from scrapy import Request
from scrapy.utils.request import fingerprint
from support.counting import MEASURED
from support.odd_site import PLAIN_SCRAPY, Lab, LabOf, Reply, page

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.keys import Keys

#: KiB of memory that a crawl takes more than half as much again as with Scrapy's own filter.
MORE_THAN_PLAIN = 40 << 10
#: Objects of a kind, tasks or connections that a crawl has more of at one moment than at another.
UNDER_WAY = 50
#: Characters of a line that this package logs, at most.
MAX_LINE = 10_000


def calendar(path: str) -> Reply:
    """A page a day, which links the days around it."""
    day = int(path.rpartition("/")[2] or 0)
    return page(*(f"/{other}" for other in (day + 1, day - 1, day + 2, day - 2)))


# -- a crawl that goes on and on, on a site without an end --

COUNTING = """
import asyncio
import gc
import redis
from collections import Counter

class CountingSpider(OddSpider):
    pages = 0

    def parse(self, response):
        yield {"url": response.url}
        yield from self.links(response)
        self.pages += 1
        if self.pages % 200 == 0:
            self.crawler.stats.set_value(f"left/{self.pages}", self.count())

    def count(self):
        gc.collect()
        kinds = [type(one) for one in gc.get_objects()]
        ours = [kind.__name__ for kind in kinds if kind.__module__.startswith("scrapy")]
        with redis.Redis.from_url(self.settings["BLOOM_REDIS_URL"]) as client:
            connections = client.info("clients")["connected_clients"]
        return {
            "objects": Counter(ours),
            "tasks": len(asyncio.all_tasks()),
            "connections": connections,
        }
"""


def test_many_pages_leave_no_objects_tasks_and_connections(lab_of: LabOf) -> None:
    """What is under way varies by a few; a leak would be one a page, or one a round trip."""
    lab = lab_of({})
    lab.site.rest = calendar
    stats = lab.crawl(COUNTING, CLOSESPIDER_PAGECOUNT=620, BLOOM_RECRAWL_AFTER="1 year").stats
    before, after = stats["left/200"], stats["left/600"]
    assert "Crawl" in before["objects"]
    grown = {
        kind: count - before["objects"].get(kind, 0) for kind, count in after["objects"].items()
    }
    assert {kind: count for kind, count in grown.items() if count > UNDER_WAY} == {}
    assert after["tasks"] - before["tasks"] <= UNDER_WAY
    assert after["connections"] - before["connections"] <= UNDER_WAY


# -- long URLs --

#: URLs of 1 MB, each of which is linked twice.
LONG_URLS = f"""
from scrapy import Request
{MEASURED}
    def parse(self, response):
        for number in range(4):
            for _ in range(2):
                url = response.urljoin("/" + "x" * (1 << 20) + str(number))
                yield Request(url, self.parse, errback=self.failed, meta={{"of": url}})

    def failed(self, failure):
        pass
"""


def test_log_lines_about_urls_of_1_mb_are_short(lab_of: LabOf) -> None:
    lab = lab_of({"/": page()})
    settings = {"LOG_LEVEL": "DEBUG", "DUPEFILTER_DEBUG": True, "RETRY_ENABLED": False}
    settings["URLLENGTH_LIMIT"] = 0  # Scrapy drops URLs of more than 2,083 characters
    plain = lab.crawl(LONG_URLS, **PLAIN_SCRAPY, BLOOM_KEY="plain", **settings)
    ours = lab.crawl(LONG_URLS, **settings)
    assert ours.stats["peak"] < 1.5 * plain.stats["peak"] + MORE_THAN_PLAIN
    for name in ("downloader/request_count", "dupefilter/filtered", "scheduler/enqueued"):
        assert ours.stats[name] == plain.stats[name]
    assert ours.stats["bloom/unserializable"] == 4
    lines = [line for line in ours.log.splitlines() if "[scrapy_bloom" in line]
    assert sum("Filtered duplicate request" in line for line in lines) == 4
    assert max(map(len, lines)) < MAX_LINE


# -- a client that can write to the filter's keys forges workers and claims --

#: Forged entries, and those that cost a lookup in the process.
MANY, SOME = 1_000_000, 5_000
KEY = "odd:bloom"
#: KiB of memory that a crawl takes more than an undisturbed one, at most.
MAX_MORE_MEMORY = 60 << 10
PAGES = {"/": page("/1"), "/1": page()}
#: Writes fields of a hash, or members with scores, that differ in their numbers only.
FORGE = """
for number = ARGV[3], ARGV[4] do
  local field = string.format(ARGV[1], number)
  local value = string.gsub(ARGV[2], '<number>', number)
  if ARGV[5] == '' then
    redis.call('HSET', KEYS[1], field, value)
  else
    redis.call('ZADD', KEYS[1], ARGV[5], field .. value)
  end
end
"""
#: The rest of a worker's entry.
FAR = " another-machine 7 99 "


@pytest.fixture
def lab(lab_of: LabOf) -> Lab:
    """A site of one page, and a filter on the server."""
    lab = lab_of(PAGES)
    BloomFilter(lab.client, KEY, blocks=1).open()
    return lab


def forge(
    lab: Lab, key: str, field: str, value: str, count: int = SOME, *, score: float | str = ""
) -> None:
    for first in range(1, count, 50_000):
        last = min(count, first + 49_999)
        lab.client.eval(FORGE, 1, key, field, value, first, last, score)


@pytest.fixture(scope="module")
def usual(lab_of: LabOf) -> int:
    """KiB that an undisturbed crawl takes."""
    return int(lab_of(PAGES).crawl(MEASURED).stats["peak"])


def assert_bounded(lab: Lab, usual: int) -> None:
    """A crawl fetches its pages, and ends, with hardly more memory."""
    with lab.start(MEASURED, BLOOM_HEARTBEAT=1, BLOOM_TIMEOUT=30) as crawl:
        stats = crawl.wait()
        assert "ERROR" not in crawl.log
    assert lab.site.hits() == {"/": 1, "/1": 1}
    assert stats["finish_reason"] == "finished"
    assert stats["peak"] < usual + MAX_MORE_MEMORY


@pytest.mark.parametrize(
    ("value", "until", "count"),
    [
        (f"{FAR}- -", -9, MANY),
        (f"{FAR}q<number> g<number>", 60, SOME),
        (f"{FAR}- -", float("inf"), SOME),
        ("?" * 5_000, 60, SOME // 2),
        (" here -7 x\n", 60, SOME),
    ],
    ids=["silent", "with queues", "immortal", "far too long", "damaged"],
)
def test_forged_workers_do_not_hold_up_a_crawl(
    value: str, until: float, count: int, *, lab: Lab, usual: int
) -> None:
    """They live until some seconds from now."""
    forge(lab, Keys(KEY).workers("odd"), "w%d", value, count, score=lab.now() + until)
    assert_bounded(lab, usual)


@pytest.mark.parametrize(
    "value",
    [
        "w1 n 1 0 ",
        "x",
        f"w1 n 1 0 {json.dumps({'url': 'file:///etc/passwd'})}",
        'w1 n 1 0 {"url": [',
        "- n 1 9 ",
    ],
    ids=["without a request", "damaged", "of a file", "no JSON", "failed"],
)
def test_forged_claims_do_not_hold_up_a_crawl(value: str, *, lab: Lab, usual: int) -> None:
    """Their owner is no worker, or they have failed."""
    forge(lab, Keys(KEY).claims("odd", 0), "%040x", value)
    assert_bounded(lab, usual)


def test_claims_with_long_names_do_not_hold_up_a_crawl(lab: Lab, usual: int) -> None:
    for number in range(500):
        lab.client.hset(Keys(KEY).claims("odd", 0), f"{'0' * 100_000}{number}", "w1 n 1 0 {}")
    assert_bounded(lab, usual)


def test_a_huge_request_does_not_hold_up_a_crawl(lab: Lab, usual: int) -> None:
    """The claim of the only link has 64 MB."""
    item = fingerprint(Request(f"{lab.site.url}/1")).hex()
    huge = "redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. string.rep('x', 64 * 1024 * 1024))"
    lab.client.eval(huge, 1, Keys(KEY).claims("odd", 0), item, "w1 n 1 0 ")
    assert_bounded(lab, usual)
