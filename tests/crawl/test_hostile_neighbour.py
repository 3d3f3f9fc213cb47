"""A client that can write to the filter's keys forges workers and claims: crawls stay bounded."""

import pytest
from scrapy import Request
from scrapy.utils.request import fingerprint
from support.counting import MEASURED
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


@pytest.fixture(scope="module")
def usual(lab_of: LabOf) -> int:
    """KiB that an undisturbed crawl takes."""
    return int(lab_of(PAGES).crawl(MEASURED).stats["peak"])


def assert_bounded(done: Done, usual: int) -> None:
    """The crawl has fetched its pages, and ended, with hardly more memory."""
    assert done.hits == {"/": 1, "/1": 1}
    assert done.stats["finish_reason"] == "finished"
    assert done.stats["peak"] < usual + MAX_MORE_MEMORY


@pytest.mark.parametrize(
    ("field", "value", "until", "count"),
    [
        (OURS, description(), -9, MANY),
        pytest.param(OURS, description("q<number>"), 60, SOME, marks=pytest.mark.slow),
        ("w%d", "?" * 5_000, -9, 10_000),
    ],
    ids=["silent", "with queues", "far too long"],
)
def test_forged_workers_do_not_hold_up_a_crawl(
    field: str, value: str, until: int, count: int, *, lab: Lab, usual: int
) -> None:
    """They live until some seconds from now. Others: redis/test_worker_protocol.py."""
    forge(lab, Keys(KEY).heartbeats(), field, value, count, score=lab.now() + until)
    done = lab.crawl(MEASURED, BLOOM_HEARTBEAT=1)
    assert_bounded(done, usual)
    assert "more than 2,000" in done.log


# -- claims --


def test_forged_claims_do_not_hold_up_a_crawl(lab: Lab, usual: int) -> None:
    """Some are of a dead worker and without a request, some damaged, one has 64 MB."""
    key, dead = Keys(KEY), OURS % 0
    lab.client.zadd(key.heartbeats(), {dead + description(): 0})
    forge(lab, key.claims(0), "%040x", f"{dead} n 1 0 ")
    forge(lab, key.claims(0), "f%039x", "x")
    page = fingerprint(Request(f"{lab.site.url}/1")).hex()
    huge = "redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. string.rep('x', 64 * 1024 * 1024))"
    lab.client.eval(huge, 1, key.claims(0), page, f"{dead} n 1 0 ")
    done = lab.crawl(MEASURED, BLOOM_HEARTBEAT=1)
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
    done = lab.crawl(MEASURED, BLOOM_HEARTBEAT=1)
    assert_bounded(done, usual)
