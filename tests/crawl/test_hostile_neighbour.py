"""A client that can write to the filter's keys forges workers and claims: crawls stay bounded."""

import json

import pytest
from scrapy import Request
from scrapy.utils.request import fingerprint
from support.counting import MEASURED
from support.odd_site import Lab, LabOf, page

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.keys import Keys

#: Forged entries, and those that cost a lookup in the process.
MANY, SOME = 1_000_000, 20_000
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
    lab: Lab, key: str, field: str, value: str, count: int = SOME, *, score: int | str = ""
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
    with lab.start(MEASURED, BLOOM_HEARTBEAT=1) as crawl:
        stats = crawl.wait()
        assert "ERROR" not in crawl.log
    assert lab.site.hits() == {"/": 1, "/1": 1}
    assert stats["finish_reason"] == "finished"
    assert stats["peak"] < usual + MAX_MORE_MEMORY


@pytest.mark.parametrize(
    ("value", "until", "count"),
    [
        (f"{FAR}-", -9, MANY),
        (f"{FAR}q<number>", 60, SOME),
        ("?" * 5_000, 60, SOME // 2),
        (" here -7 x\n", 60, SOME),
    ],
    ids=["silent", "with queues", "far too long", "damaged"],
)
def test_forged_workers_do_not_hold_up_a_crawl(
    value: str, until: int, count: int, *, lab: Lab, usual: int
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
