"""Re-crawl rules in lookups alone, in batches and in crawls, and URLs that move between rules."""

import json
from collections import Counter
from typing import Any

import pytest
from scrapy import Request
from support.clock import MovedServer
from support.counting import REMEMBER, assert_ended_well
from support.dupefilters import URL, Make
from support.loops import eventually, in_loop
from support.odd_site import ERROR, SHARED_QUEUE, LabOf, Reply, moved, page
from support.servers import Server
from support.workers import Worker

from scrapy_bloom import BloomDupeFilter
from scrapy_bloom.bloom.protocol.cached_ring import Verdict
from scrapy_bloom.crawl.lookups import Lookup


def rule(window: object, *others: tuple[object, object]) -> dict[str, Any]:
    """Return settings with a rule for all URLs, and others."""
    return {"BLOOM_RECRAWL_RULES": [*others, (".", window)]}


# -- one URL alone --


@pytest.mark.parametrize(
    ("before", "after", "seen"),
    [
        ("never", "1 day", False),
        ("1 day", "6 months", False),
        ("1 day", "1 day", True),
        ("1 run", "6 months", False),
        ("1 day", "run", False),
        ("default", "run", False),
        ("9 months", "default", False),
        ("6 months", "default", True),
        ({"recrawl_after": "6 months", "rotate_every": "3 months"}, "default", False),
        ("24 hours", "1 day", True),
    ],
)
def test_a_url_that_moves_to_another_window_is_new_there_once(
    make: Make, before: object, after: object, seen: bool
) -> None:
    settings = {"BLOOM_RECRAWL_AFTER": "6 months", "BLOOM_RUN": "monday"}
    # They match nothing: their filters are open.
    others = [("^$", window) for window in (before, after, "6 months")]
    assert not make(**rule(before, *others), **settings).request_seen(Request(URL))
    moved = make(**rule(after, *others), **settings)
    assert moved.request_seen(Request(URL)) is seen
    assert moved.request_seen(Request(URL))
    assert not moved.request_seen(Request(f"{URL}&other"))


def test_a_listing_remembered_for_ever_is_due_by_the_rule_that_it_gets(
    make: Make, moved: MovedServer
) -> None:
    settings = {"BLOOM_REDIS_URL": moved.url, "BLOOM_RECRAWL_AFTER": "never"}
    assert not make(**settings).request_seen(Request(URL))
    after = settings | rule("1 day")
    for days in (0, 1, 1):  # at the change, then each day
        moved.move(86_400 * days)
        dupefilter = make(**after)
        assert not dupefilter.request_seen(Request(URL))
        assert dupefilter.request_seen(Request(URL))


# -- many at once --


def batch(dupefilter: BloomDupeFilter, requests: list[Request]) -> list[Lookup]:
    """Return the lookups of a page's links; all of them are needed."""
    found = [dupefilter._crawl.decider.prepare(one) for one in requests]
    lookups = [lookup for lookup in found if lookup is not None]
    assert len(lookups) == len(requests)
    return lookups


@REMEMBER
@in_loop
async def test_a_batch_asks_the_filter_of_each_window_once(server: Server, remember: str) -> None:
    with server.client() as client:
        client.flushall()
    links = [Request(f"https://example.com/{n}/{name}") for name in "abc" for n in range(10)]
    settings: dict[str, Any] = {
        "BLOOM_REMEMBER": remember,
        "BLOOM_RECRAWL_RULES": [("/a$", "1 day"), ("/b$", "2 weeks")],
    }
    async with Worker(server.url, **settings | {"BLOOM_REMEMBER": "scheduled"}) as worker:
        assert not any(worker.dupefilter.request_seen(link) for link in links[::2])
    async with Worker(server.url, **settings) as worker:
        decide, own = worker.crawl.decider.decide_many, worker.server
        await decide(batch(worker.dupefilter, [Request(f"{URL}/{n}") for n in "abc"]))  # scripts
        if (recovery := worker.crawl._recovery) is not None:
            await eventually(lambda: not recovery._is_looking, "the first look has ended")
        before = own.async_round_trips
        lookups = batch(worker.dupefilter, links)
        await decide(lookups)
        assert own.async_round_trips == before + 3
        assert [lookup.verdict for lookup in lookups] == [Verdict.SEEN, Verdict.NEW] * 15
        known = batch(worker.dupefilter, links[::2])
        assert {lookup.verdict for lookup in known} == {Verdict.SEEN}, "of the cache"
        for name, count in (("", 5), ("1-day/", 5), ("2-weeks/", 5)):
            for link in links[1::2]:
                link.meta.setdefault("once", worker.dupefilter.request_seen(link))
            assert worker.stat(f"{name}new") == count
        assert not any(link.meta["once"] for link in links[1::2])


# -- crawls --


def rules(*pairs: tuple[object, object]) -> dict[str, Any]:
    """Return settings as the command line has them."""
    return {"BLOOM_RECRAWL_RULES": json.dumps(pairs)}


def test_rules_on_the_depth_read_what_start_pages_link_in_each_run(lab_of: LabOf) -> None:
    lab = lab_of({"/": page("/a", "/b"), "/a": page("/c"), "/b": page("/a", "/c"), "/c": page()})
    settings = rules(({"depth": 1}, "run"))
    assert lab.crawl(**settings).hits == Counter(["/", "/a", "/b", "/c"])
    done = lab.crawl(**settings)
    assert done.hits == Counter(["/", "/a", "/b"])
    assert done.recorded == {"/c"}
    assert_ended_well(done)


# -- start requests --

#: Start pages that have ``dont_filter``, as those for ``start_urls``.
START_URLS = """
class StartSpider(OddSpider):
    custom_settings = {"RETRY_TIMES": 1, "CLOSESPIDER_TIMEOUT": 60}

    async def start(self):
        self.start_urls = [self.settings["SITE_URL"] + "/"]
        async for request in super(OddSpider, self).start():
            yield request
"""
DAILY = {"BLOOM_START_RECRAWL_AFTER": "1 day"}


def test_a_window_of_start_requests_holds_for_start_urls(lab_of: LabOf) -> None:
    lab = lab_of({"/": page("/a", "/"), "/a": page()})
    settings = {**SHARED_QUEUE, **DAILY}
    first = lab.crawl(START_URLS, **settings)
    assert first.stats["bloom/1-day/new"] == 1
    assert lab.recorded("odd:bloom:1-day") == {"/"}
    done = lab.crawl(START_URLS, **settings)
    assert not done.hits
    assert done.stats["bloom/1-day/seen"] == done.stats["dupefilter/filtered"] == 1
    assert "Filtered duplicate request: <GET http" in done.log
    assert "'odd:bloom:1-day': nothing was new: each link that was found (1) is" in done.log
    assert_ended_well(done)


@pytest.mark.parametrize(
    ("replies", "domains"),
    [
        ([ERROR, moved("/", cookie="is=here"), page("/a")], "127.0.0.1"),
        ([moved("/a")], "127.0.0.1"),
        ([page()], "other.example"),
    ],
    ids=["retried, and redirected to itself", "redirected", "offsite"],
)
def test_what_a_start_request_turns_into_is_fetched_once(
    lab_of: LabOf, replies: list[Reply], domains: str
) -> None:
    lab = lab_of({"/": replies, "/a": page()})
    code = START_URLS.replace("    custom", f"    allowed_domains = ({domains!r},)\n    custom")
    done = lab.crawl(code, **DAILY)
    assert done.hits.keys() == ({"/", "/a"} if domains == "127.0.0.1" else {"/"})
    assert_ended_well(done)
    assert "/" in lab.recorded("odd:bloom:1-day")
    assert not lab.crawl(code, **DAILY).hits
