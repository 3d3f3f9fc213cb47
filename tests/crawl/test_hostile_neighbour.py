"""A client that can write to the filter's keys forges workers and claims: crawls stay bounded."""

from collections.abc import Callable

import pytest
from scrapy import Request
from scrapy.utils.request import fingerprint
from support.odd_site import Done, Lab, LabOf, page

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.crawl import workers
from scrapy_bloom.crawl.workers import Process, Worker

#: Forged entries. Those of claims that are taken over cost 0.15 ms of CPU each.
MANY, SOME = 100_000, 20_000
KEY = "odd:bloom"
#: KiB of memory that a crawl takes more than an undisturbed one, at most. A header with 100,000
#: names takes 33 MB with redis-py 5 and without hiredis.
MAX_MORE_MEMORY = 60 << 10

#: Notes the most memory that the process had, in KiB.
SPIDER = """
import resource
from support.odd_site import OddSpider

class NeighbourSpider(OddSpider):
    def closed(self, reason):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.crawler.stats.set_value("peak", peak)
"""
FAR = Process("far", 7, "another machine", 99)
PAGES = {"/": page("/1"), "/1": page()}


@pytest.fixture
def lab(lab_of: LabOf) -> Lab:
    """A site of one page, and a filter on the server."""
    lab = lab_of(PAGES)
    BloomFilter(lab.client, KEY, blocks=1).open()
    return lab


#: Writes fields of a hash, or members with scores, that differ in their numbers only.
FORGE = """
for number = 1, ARGV[3] do
  local field = string.format(ARGV[1], number)
  local value = string.gsub(ARGV[2], '<number>', number)
  if ARGV[4] == '' then
    redis.call('HSET', KEYS[1], field, value)
  else
    redis.call('ZADD', KEYS[1], ARGV[4], field .. value)
  end
end
"""
#: Ids of workers of the spider.
OURS = f"w{workers.tag('odd')}%016x"


def forge(
    lab: Lab, key: str, field: str, value: str, count: int = MANY, *, score: int | str = ""
) -> None:
    lab.client.eval(FORGE, 1, key, field, value, count, score)


def description(queue: str = "") -> str:
    return " " + Worker("", 0, 1.0, FAR, queue).describe()


#: What is forged, until when it is alive by the server's clock, how much of it. Others:
#: redis/test_worker_protocol.py, unit/test_workers.py.
CROWDS: dict[str, Callable[[int], tuple[str, str, int, int]]] = {
    "silent": lambda now: (OURS, description(), now - 9, MANY),
    "with queues": lambda now: (OURS, description("q<number>"), now + 60, SOME),
    "far too long": lambda _: ("w%d", "?" * 5_000, 0, 10_000),
}


@pytest.fixture(scope="module")
def usual(lab_of: LabOf) -> int:
    """KiB that an undisturbed crawl takes."""
    return int(lab_of(PAGES).crawl(SPIDER).stats["peak"])


def assert_bounded(done: Done, usual: int) -> None:
    """The crawl has fetched its pages, and ended, with hardly more memory."""
    assert done.hits == {"/": 1, "/1": 1}
    assert done.stats["finish_reason"] == "finished"
    assert done.stats["peak"] < usual + MAX_MORE_MEMORY


@pytest.mark.parametrize(
    "kind", ["silent", pytest.param("with queues", marks=pytest.mark.slow), "far too long"]
)
def test_forged_workers_do_not_hold_up_a_crawl(lab: Lab, usual: int, kind: str) -> None:
    field, value, until, count = CROWDS[kind](lab.now())
    forge(lab, Keys(KEY).heartbeats(), field, value, count, score=until)
    done = lab.crawl(SPIDER, BLOOM_HEARTBEAT=1)
    assert_bounded(done, usual)
    assert "more than 2,000" in done.log


# -- claims --

FIELD = "%040x"
#: Forged claims.
CLAIMS = {
    "of a dead worker, not kept": (f"{OURS % 0} n 1 0 ", MANY),
    "damaged": ("x", MANY),
}


@pytest.mark.parametrize("kind", CLAIMS)
def test_forged_claims_do_not_hold_up_a_crawl(lab: Lab, usual: int, kind: str) -> None:
    key = Keys(KEY)
    lab.client.zadd(key.heartbeats(), {OURS % 0 + description(): 0})
    value, count = CLAIMS[kind]
    forge(lab, key.claims(0), FIELD, value, count)
    done = lab.crawl(SPIDER, BLOOM_HEARTBEAT=1)
    assert_bounded(done, usual)
    assert not lab.client.hlen(key.claims(0))


HUGE = """
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. string.rep('x', ARGV[3]))
"""


def test_a_claim_of_64_mb_is_ended_and_takes_no_memory(lab: Lab, usual: int) -> None:
    key, size = Keys(KEY), 64 << 20
    field = fingerprint(Request(f"{lab.site.url}/1")).hex()
    lab.client.zadd(key.heartbeats(), {OURS % 0 + description(): 0})
    lab.client.eval(HUGE, 1, key.claims(0), field, f"{OURS % 0} n 1 0 ", size)
    done = lab.crawl(SPIDER, BLOOM_HEARTBEAT=1)
    assert_bounded(done, usual)
    assert not done.claims


# -- names --


def test_forged_fields_of_any_length_and_windows_do_not_hold_up_a_crawl(
    lab: Lab, usual: int
) -> None:
    key = Keys(KEY)
    long = "0" * 100_000
    for number in range(500):
        lab.client.hset(key.claims(0), f"{long}{number}", f"-{workers.tag('odd')} n 1 0 {{}}")
    forge(lab, key.header(), "window:forged-%d", "1")
    forge(lab, key.header(), "window:{%d}", "1", count=10)
    done = lab.crawl(SPIDER, BLOOM_HEARTBEAT=1)
    assert_bounded(done, usual)
