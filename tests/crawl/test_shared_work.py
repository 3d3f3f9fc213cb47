"""Workers share the work: a busy one gives queued requests to idle ones like it.

The site holds its answers back while the work is shared, so no test depends on how fast a crawl is.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
from support.odd_site import SHARED_QUEUE, Crawl, Lab, LabOf, star, tree

PAGES = 150
#: Downloads of a worker at a time.
DOWNLOADS = 2
#: Pages that are fetched before the site holds its answers back.
BEFORE = 40
SPIDER = """
class SharingSpider(OddSpider):
    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        return super().from_crawler(crawler, category=crawler.settings["CATEGORY"])

    def parse(self, response):
        yield {"url": response.url}
        yield from self.links(
            response,
            dont_filter=self.settings.getbool("DONT_FILTER"),
            meta=self.settings.getdict("META"),
        )
"""
#: A worker of an older release has no callback for what the others give it.
TWO_RELEASES = (
    SPIDER
    + """
    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        if crawler.settings.getbool("OLD"):
            del cls.parse_page
        return super().from_crawler(crawler, *args, **kwargs)

    def parse_page(self, response):
        return self.parse(response)

    def links(self, response, **kwargs):
        return super().links(response, callback=self.parse_page, **kwargs)
"""
)

#: The first worker waits before it gives, until the test kills it.
GIVING = (
    """
import time
from pathlib import Path
from scrapy_bloom.bloom.protocol.workers import Workers
"""
    + SPIDER
    + """
    @classmethod
    def from_crawler(cls, crawler):
        if mark := crawler.settings["MARK"]:
            Workers.give = lambda *_: wait(Path(mark))
        return super().from_crawler(crawler)

def wait(mark):
    mark.touch()
    while True:
        time.sleep(1)
"""
)


@contextmanager
def one_is_busy(
    lab: Lab, before: int = BEFORE, spider: str = SPIDER, **settings: Any
) -> Iterator[tuple[Crawl, Callable[..., Crawl]]]:
    """Run a worker that waits for the site, and has requests in its queue.

    Give what starts another one, with more settings. It has no start page, so it's idle.
    """
    lab.site.hold_after(before)
    with ExitStack() as stack:

        def start(**more: Any) -> Crawl:
            settings_of_both = {"CONCURRENT_REQUESTS": DOWNLOADS, **settings}
            return stack.enter_context(lab.start(spider, **settings_of_both | more))

        giver = start()
        giver.until(lambda: lab.site.held == DOWNLOADS, "the giver is under way")
        yield giver, partial(start, START="")


def ended(lab: Lab, crawls: list[Crawl]) -> list[dict[str, Any]]:
    """Let the site answer, and return the stats of crawls when they have ended."""
    lab.site.release()
    return [crawl.wait() for crawl in crawls]


def count_idle(lab: Lab) -> int:
    """Return how many workers say that they are idle, by their entries."""
    keys = lab.client.keys("*:workers:*")
    entries: list[Any] = [lab.client.zrange(key, 0, -1, withscores=True) for key in keys]
    return sum(until % 1 > 0 for workers in entries for _, until in workers)


def assert_complete(lab: Lab) -> None:
    """Every page was fetched and is remembered, and nothing is pending."""
    assert not lab.missing()
    assert lab.recorded() >= lab.site.pages.keys() - {"/"}
    assert not lab.claims()


@pytest.mark.parametrize(
    "settings",
    [{}, {"BLOOM_ITEMS_ONLY": True}, {"BLOOM_REMEMBER": "delivered"}],
    ids=["crawled", "items only", "delivered"],
)
def test_workers_share_a_site_and_fetch_each_page_once(
    lab_of: LabOf, settings: dict[str, Any]
) -> None:
    lab = lab_of(tree(PAGES))
    with one_is_busy(lab, **settings) as (giver, start):
        crawls = [giver, start(), start()]
        giver.until(lambda: lab.site.held > 2 * DOWNLOADS, "all have requests")
        stats = ended(lab, crawls)
        assert "given to other workers" in giver.log
    assert stats[0]["bloom/given"] > 0
    # The scan of a worker that begins may find a share before its taker does.
    assert all({"bloom/received", "bloom/picked_up"} & one.keys() for one in stats[1:])
    assert not lab.missing()
    assert not lab.fetched_twice()
    assert not lab.claims()


@pytest.mark.parametrize(
    "settings",
    [{"BLOOM_SHARE_WORK": False}, {"BLOOM_REMEMBER": "scheduled"}, {"JOBDIR": "job"}, SHARED_QUEUE],
    ids=["off", "scheduled", "JOBDIR", "scrapy-redis"],
)
def test_nothing_is_given_where_work_is_not_shared(lab_of: LabOf, settings: dict[str, Any]) -> None:
    lab = lab_of(tree(PAGES))
    with one_is_busy(lab, **settings) as (giver, start):
        other = start()
        if settings is SHARED_QUEUE:  # it takes its requests out of the queue
            other.until(lambda: lab.site.held == 2 * DOWNLOADS, "the other one has requests")
        else:
            other.wait()
        stats = ended(lab, [giver, other])
    assert not any({"bloom/given", "bloom/received"} & one.keys() for one in stats)
    assert not lab.missing()


def test_a_busy_worker_keeps_as_many_as_each_idle_one_gets(lab_of: LabOf) -> None:
    """It's stopped until all three are idle, and these until it has given."""
    lab = lab_of(star(PAGES))
    with one_is_busy(lab) as (giver, start):
        os.kill(giver.pid, signal.SIGSTOP)
        takers = [start(), start(), start()]
        giver.until(lambda: count_idle(lab) == len(takers), "the others are idle")
        for one in takers:
            os.kill(one.pid, signal.SIGSTOP)
        os.kill(giver.pid, signal.SIGCONT)
        giver.until(lambda: lab.client.keys("*:shares:*"), "it has given")
        kinds = Counter(claim.kind for claim in lab.claims().values())
        for one in takers:
            os.kill(one.pid, signal.SIGCONT)
        ended(lab, [giver, *takers])
    assert kinds["g"] > 2 * kinds["w"], "it was more than half"
    assert_complete(lab)


def test_a_worker_leaves_requests_to_others_that_it_cannot_load(lab_of: LabOf) -> None:
    lab = lab_of(tree(PAGES))
    with one_is_busy(lab, spider=TWO_RELEASES, BLOOM_HEARTBEAT=1) as (giver, start):
        old = start(OLD=True).wait()
        (stats,) = ended(lab, [giver])
    assert old["bloom/unreadable"] > 0
    assert stats["bloom/given"] >= old["bloom/unreadable"]
    assert_complete(lab)


def test_a_worker_with_other_arguments_gets_nothing_and_ends(lab_of: LabOf) -> None:
    """It ends while the other one is busy, because they are not alike."""
    lab = lab_of(tree(PAGES))
    with one_is_busy(lab, CATEGORY="x") as (giver, start):
        other = start(CATEGORY="y").wait()
        (stats,) = ended(lab, [giver])
    assert "bloom/received" not in other
    assert not stats.get("bloom/given")
    assert_complete(lab)


@pytest.mark.parametrize(
    "settings",
    [{"DONT_FILTER": True}, {"META": {"bloom_recrawl_after": "run"}}],
    ids=["dont_filter", "run"],
)
def test_requests_that_others_crawl_too_are_not_given(
    lab_of: LabOf, settings: dict[str, Any]
) -> None:
    """An idle worker waits for two heartbeats, and ends though the other one is still busy."""
    lab = lab_of(star(30))
    with one_is_busy(lab, before=5, BLOOM_HEARTBEAT=1, **settings) as (giver, start):
        other = start().wait()
        (stats,) = ended(lab, [giver])
    assert "bloom/received" not in other
    assert not stats.get("bloom/given")
    assert stats["scheduler/enqueued"] == len(lab.site.pages), "none was put back"
    assert lab.site.hits().keys() == lab.site.pages.keys()
    assert not lab.fetched_twice()


def test_requests_of_a_worker_that_is_killed_while_it_gives_are_crawled(lab_of: LabOf) -> None:
    """Only the start page has links, and nobody reads it again."""
    lab = lab_of(star(PAGES))
    mark = lab.directory / "giving"
    with one_is_busy(lab, spider=GIVING, MARK=mark, BLOOM_HEARTBEAT=1) as (giver, start):
        taker = start(MARK="")
        giver.until(mark.exists, "it has taken requests out of its queue")
        giver.kill()
        lab.site.release()
        taker.wait()
    assert_complete(lab)
