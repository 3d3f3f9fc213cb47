"""Re-crawling: after half a year that passes on the server's clock, and by rules."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from support.clock import MovedServer
from support.counting import REMEMBER, assert_ended_well
from support.dupefilters import URL
from support.loops import in_loop
from support.odd_site import ERROR, Lab, LabOf, Reply, moved, page, serve
from support.servers import Server
from support.workers import Worker

from scrapy_bloom import BloomDupeFilter
from scrapy_bloom.bloom.protocol.session import Verdict
from scrapy_bloom.crawl.lookups import Lookup
from scrapy_bloom.crawl.rule import Known

OLD = ("/a", "/b")


@pytest.fixture
def lab(moved: MovedServer, tmp_path: Path) -> Iterator[Lab]:
    """A site whose crawls remember in a server with a clock of its own."""
    pages = {"/": page(*OLD), "/a": page("/", "/b"), "/b": page("/a")}
    with serve(pages) as site, Lab(site, moved.url, tmp_path) as lab:
        yield lab


#: Crawls in a month, counted from January 2027 on, with a window; returns what was fetched beyond
#: the start page, which each run reads.
CrawlIn = Callable[[int, str], Counter[str]]


@pytest.fixture
def crawl_in(lab: Lab, moved: MovedServer) -> CrawlIn:
    def crawl(month: int, window: str) -> Counter[str]:
        moved.set_time(datetime(2027 + month // 12, 1 + month % 12, 15, 12, tzinfo=UTC))
        before = lab.site.hits()
        with lab.start(BLOOM_RECRAWL_AFTER=window) as running:
            running.wait()
        return lab.site.hits() - before - Counter(["/"])

    return crawl


def test_pages_are_crawled_again_five_months_after_they_were_first_seen(
    lab: Lab, crawl_in: CrawlIn
) -> None:
    """Being seen in between prolongs nothing."""
    due = {0: OLD, 2: ("/new",), 5: OLD, 7: ("/new",)}
    for month in (0, 2, 4, 5, 7):
        if month == 2:
            lab.site.pages |= {"/": page(*OLD, "/new"), "/new": page(*OLD)}
        assert crawl_in(month, "5 months") == Counter(due.get(month, ())), month


# -- rules, and URLs that move between them --


# -- one URL alone --


# -- many at once --


def batch(dupefilter: BloomDupeFilter, requests: list[Request]) -> list[Lookup]:
    """Return the lookups of a page's links; all of them are needed."""
    assert dupefilter._crawl is not None
    found = [dupefilter._crawl._lookups.prepare(one) for one in requests]
    lookups = [lookup for lookup in found if lookup is not None]
    assert len(lookups) == len(requests)
    return lookups


@REMEMBER
@in_loop
async def test_links_of_all_windows_are_looked_up_in_one_round_trip(
    own_server: Server, remember: str
) -> None:
    links = [Request(f"https://example.com/{n}/{name}") for name in "abc" for n in range(10)]
    settings: dict[str, Any] = {
        "BLOOM_BLOCKS": 1,
        "BLOOM_RECRAWL_RULES": [("/a$", "1 day"), ("/b$", "2 weeks")],
    }
    async with Worker(own_server.url, BLOOM_REMEMBER="scheduled", **settings) as worker:
        assert not any(worker.dupefilter.request_seen(link) for link in links[::2])
    async with Worker(own_server.url, BLOOM_REMEMBER=remember, **settings) as worker:
        look_up, before = worker.crawl._lookups.look_up, worker.server.round_trips[0]
        await look_up(batch(worker.dupefilter, [Request(f"{URL}/{n}") for n in "abc"]))  # rings
        lookups = batch(worker.dupefilter, links)
        await look_up(lookups)
        assert [lookup.verdict for lookup in lookups] == [Verdict.SEEN, Verdict.NEW] * 15
        known = batch(worker.dupefilter, links[::2])
        cached = [lookup.known for lookup in known].count(Known.RECORDED)
        assert cached > len(known) - 4, "a URL that is in the place of another one is not cached"
        seen = [worker.dupefilter.request_seen(link) for link in links[1::2]]
        assert not any(seen)
        for name in ("", "1-day/", "2-weeks/"):
            assert worker.stat(f"{name}new") == 5
        assert worker.server.round_trips[0] == before, "nothing was asked alone"


# -- crawls --


def rules(*pairs: tuple[object, object]) -> dict[str, Any]:
    """Return settings as the command line has them."""
    return {"BLOOM_RECRAWL_RULES": json.dumps(pairs)}


def test_listing_pages_are_read_in_each_run(lab_of: LabOf) -> None:
    lab = lab_of({"/": page("/list/a", "/b"), "/list/a": page("/c"), "/b": page(), "/c": page()})
    settings = rules(("/list/", "run"))
    assert lab.crawl(**settings).hits == Counter([*lab.site.pages])
    lab.site.pages |= {"/list/a": page("/c", "/d"), "/d": page()}
    done = lab.crawl(**settings)
    assert done.hits == Counter(["/", "/list/a", "/d"])
    assert done.recorded == {"/b", "/c", "/d"}
    says = '1 new, 2 of the window "run", 2 duplicates, 2 crawled, 0 failed in this process; 3 '
    assert says in done.log
    assert_ended_well(done)
    assert "nothing was new" not in lab.crawl(**settings).log, "the listing page was read"


#: A start page that is looked up, with retries.
START = """
class StartSpider(OddSpider):
    custom_settings = {"RETRY_TIMES": 1, "CLOSESPIDER_TIMEOUT": 60}
"""


@pytest.mark.parametrize(
    ("replies", "hits"),
    [
        ([ERROR, moved("/", cookie="is=here"), page("/a")], ["/", "/", "/", "/a"]),
        ([moved("/a")], ["/", "/a"]),
    ],
    ids=["retried, and redirected to itself", "redirected"],
)
def test_what_a_start_request_turns_into_is_fetched_once(
    lab_of: LabOf, replies: list[Reply], hits: list[str]
) -> None:
    lab = lab_of({"/": replies, "/a": page()})
    done = lab.crawl(START)
    assert done.hits == Counter(hits)
    assert_ended_well(done)
    assert lab.crawl(START).hits["/"] == 1, "in each run"
