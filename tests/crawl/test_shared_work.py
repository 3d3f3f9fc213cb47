"""Workers share the work: a busy one gives queued requests to idle ones like it.

The site holds its answers back while the work is shared, so no test depends on how fast a crawl is.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.odd_site import SHARED_QUEUE, Crawl, Lab, LabOf, page, serve, tree
from support.outages import struck
from support.polling import until
from support.proxy import Fault, Kind, Proxy
from support.servers import Server

PAGES = 150
#: Downloads of a worker at a time.
DOWNLOADS = 2
#: Pages that are fetched before the site holds its answers back.
BEFORE = 40
SETTINGS = {"CONCURRENT_REQUESTS": DOWNLOADS}
#: All but the first worker find the start page taken: they do not even ask for it.
SPIDER = """
class SharingSpider(OddSpider):
    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        return super().from_crawler(crawler, category=crawler.settings["CATEGORY"])

    async def start(self):
        if self.settings.getbool("STARTS"):
            yield Request(self.settings["SITE_URL"] + "/")

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

#: The first worker waits before it gives, until the test deletes a file.
GIVING = (
    SPIDER
    + """
    @classmethod
    def from_crawler(cls, crawler):
        if mark := crawler.settings["MARK"]:
            hold(mark)
        return super().from_crawler(crawler)

def hold(mark):
    import pathlib, time
    from scrapy_bloom.bloom.protocol.claims import Claims
    give, path = Claims.give, pathlib.Path(mark)

    def give_later(*args):
        path.touch()
        while path.exists():
            time.sleep(0.01)
        Claims.give = give
        return give(*args)

    Claims.give = give_later
"""
)


@contextmanager
def sharing(lab: Lab, **settings: Any) -> Iterator[list[Crawl]]:
    """Run workers that all wait for the site: the first one has given requests to the others."""
    with one_is_busy(lab, BEFORE, **settings) as (giver, stack):
        takers = [started(lab, stack, **settings) for _ in range(2)]
        crawls = [giver, *takers]
        until(
            lambda: lab.site.held > 2 * DOWNLOADS or any(c.is_over for c in crawls),
            "all have requests",
        )
        assert not any(one.is_over for one in crawls), [one.log for one in crawls]
        yield crawls


@contextmanager
def one_is_busy(
    lab: Lab, before: int, spider: str = SPIDER, **settings: Any
) -> Iterator[tuple[Crawl, ExitStack]]:
    """Run a worker that waits for the site, and has requests in its queue."""
    lab.site.hold_after(before)
    with ExitStack() as stack:
        giver = started(lab, stack, spider, STARTS=True, **settings)
        until(lambda: lab.site.held == DOWNLOADS or giver.is_over, "the giver is under way")
        assert not giver.is_over, giver.log
        yield giver, stack


@contextmanager
def about_to_give(lab: Lab, url: str) -> Iterator[list[Crawl]]:
    """Run workers of which the first one has taken requests out of its queue for the others.

    Args:
        lab: of the crawls.
        url: by which the first worker reaches the server.
    """
    mark = lab.directory / "giving"
    settings = {"BLOOM_HEARTBEAT": 1, "BLOOM_TIMEOUT": 1}
    first = {"MARK": mark, "BLOOM_REDIS_URL": url}
    with one_is_busy(lab, BEFORE, GIVING, **first, **settings) as (giver, stack):
        taker = started(lab, stack, GIVING, **settings)
        until(lambda: mark.exists() or giver.is_over, "the giver is about to give")
        yield [giver, taker]


def started(lab: Lab, stack: ExitStack, spider: str = SPIDER, **settings: Any) -> Crawl:
    return stack.enter_context(lab.start(spider, **SETTINGS, **settings))


def ended(lab: Lab, crawls: list[Crawl]) -> list[dict[str, Any]]:
    """Let the site answer, and return the stats of crawls when they have ended."""
    lab.site.release()
    return [crawl.wait() for crawl in crawls]


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
    with sharing(lab, **settings) as crawls:
        stats = ended(lab, crawls)
        assert "given to other workers" in crawls[0].log
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
    with one_is_busy(lab, BEFORE, **settings) as (giver, stack):
        other = started(lab, stack, **settings)
        if settings is SHARED_QUEUE:  # it takes its requests out of the queue
            until(lambda: lab.site.held == 2 * DOWNLOADS, "the other one has requests")
        else:
            other.wait()
        stats = ended(lab, [giver, other])
    assert not any({"bloom/given", "bloom/received"} & one.keys() for one in stats)
    assert not lab.missing()


def test_a_worker_leaves_requests_to_others_that_it_cannot_load(lab_of: LabOf) -> None:
    lab = lab_of(tree(PAGES))
    with one_is_busy(lab, BEFORE, TWO_RELEASES, BLOOM_HEARTBEAT=1) as (giver, stack):
        old = started(lab, stack, TWO_RELEASES, OLD=True, BLOOM_HEARTBEAT=1).wait()
        (stats,) = ended(lab, [giver])
    assert old["bloom/unreadable"] > 0
    assert stats["bloom/given"] >= old["bloom/unreadable"]
    assert_complete(lab)


def test_a_worker_with_other_arguments_gets_nothing_and_ends(lab_of: LabOf) -> None:
    """It ends while the other one is busy, because they are not alike."""
    lab = lab_of(tree(PAGES))
    with one_is_busy(lab, BEFORE, CATEGORY="x") as (giver, stack):
        other = started(lab, stack, CATEGORY="y").wait()
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
    links = [f"/{number}" for number in range(30)]
    lab = lab_of({"/": page(*links), **dict.fromkeys(links, page())})
    settings = {**settings, "BLOOM_HEARTBEAT": 1}
    with one_is_busy(lab, 5, **settings) as (giver, stack):
        other = started(lab, stack, **settings).wait()
        (stats,) = ended(lab, [giver])
    assert "bloom/received" not in other
    assert not stats.get("bloom/given")
    assert lab.site.hits().keys() == lab.site.pages.keys()
    assert not lab.fetched_twice()


@pytest.mark.parametrize("kind", [Kind.DROP_REQUEST, Kind.DROP_REPLY, Kind.RESET_REPLY])
def test_requests_that_a_worker_could_not_give_are_crawled(
    own_server: Server, tmp_path: Path, kind: Kind
) -> None:
    """The server may have them or not. If it has, another worker may crawl them, too."""
    with (
        serve(tree(PAGES)) as site,
        Proxy(own_server.port) as proxy,
        Lab(site, own_server.url, tmp_path) as lab,
        about_to_give(lab, proxy.url) as crawls,
        struck(proxy, Fault(kind, times=1)),
    ):
        (tmp_path / "giving").unlink()
        until(lambda: proxy.struck, "the giver gets no reply")
        stats = ended(lab, crawls)
        assert stats[0]["bloom/outages"] == 1
        assert_complete(lab)
        assert kind is not Kind.DROP_REQUEST or not lab.fetched_twice()


def test_requests_of_a_worker_that_is_killed_while_it_gives_are_crawled(lab_of: LabOf) -> None:
    """Only the start page has links, and nobody reads it again."""
    links = [f"/{number}" for number in range(PAGES)]
    lab = lab_of({"/": page(*links), **dict.fromkeys(links, page())})
    with about_to_give(lab, lab.redis_url) as (giver, taker):
        giver.kill()
        lab.site.release()
        taker.wait()
    assert_complete(lab)
