"""Pages wait until their items are stored, in real crawls: by feeds, and by pipelines that hold."""

import json
import signal
import sqlite3
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest
from support.crawling import PLAIN_SCRAPY
from support.ends import stop
from support.lab_commands import bloom
from support.odd_site import SHARED_QUEUE, Crawl, Done, Lab, LabOf, tree
from support.polling import until

PAGES = 40
SPIDER = """
import asyncio, sqlite3
from concurrent.futures import ThreadPoolExecutor
from scrapy import signals
from scrapy.extensions.feedexport import FileFeedStorage
from twisted.internet.defer import Deferred
from scrapy_bloom import hold

class Refusing(FileFeedStorage):
    "Refuses one store in three, each in another way."
    stored = 0

    def __init__(self, uri, *, feed_options=None):
        super().__init__(uri.removeprefix("refusing:"), feed_options=feed_options)

    def store(self, file):
        Refusing.stored += 1
        super().store(file)
        if Refusing.stored % 3:
            return None
        __import__("os").unlink(self.path)
        way = Refusing.stored // 3 % 3
        if way == 0:
            raise ConnectionError("no storage")
        return self.later() if way == 1 else self.deferred()

    async def later(self):
        await asyncio.sleep(0.01)
        raise ConnectionError("no storage, later")

    def deferred(self):
        from twisted.internet import reactor
        done = Deferred()
        reactor.callLater(0.01, done.errback, ConnectionError("no storage, deferred"))
        return done

class Bulk:
    "Writes seven rows a transaction, in a thread."

    def __init__(self, path):
        self.rows, self.path, self.pool = [], path, ThreadPoolExecutor(1)

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler.settings["ROWS"])

    def process_item(self, item, spider=None):
        self.rows.append((item["path"], hold(item)))
        if len(self.rows) >= 7:
            self.flush()
        return item

    def flush(self):
        rows, self.rows = self.rows, []
        self.pool.submit(self.write, rows)

    def write(self, rows):
        with sqlite3.connect(self.path, timeout=60) as database:
            database.execute("CREATE TABLE IF NOT EXISTS pages (path)")
            database.executemany("INSERT INTO pages VALUES (?)", [(path,) for path, _ in rows])
        database.close()
        for _, held in rows:
            held.release()
            held.release()  # nothing

    def close_spider(self, spider=None):
        self.flush()
        self.pool.shutdown()

class Failing:
    def process_item(self, item, spider=None):
        held = hold(item)
        if item["path"] in ("/3", "/4"):
            held.fail("no disk at https://user:secret@host/")
        elif item["path"] != "/5":  # that one is forgotten
            held.release()
        return item

class Items(OddSpider):
    def parse(self, response):
        yield {"path": "/" + response.url.rpartition("/")[2]}
        yield from self.links(response)

class Odd:
    "Of a feed: takes odd pages only."
    def __init__(self, feed_options):
        pass

    def accepts(self, item):
        return int(item["path"][1:] or 0) % 2
"""
BATCHES = {"format": "jsonlines", "batch_item_count": 4}


class Store:
    """A lab whose crawls write items, and what was stored."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self._feeds = lab, lab.directory / "feeds"
        self._rows = lab.directory / "rows.db"

    def settings(self, *feeds: dict[str, Any], scheme: str = "", **settings: Any) -> dict[str, Any]:
        """Return settings with feeds, which are stored without items that a kill has cut off."""
        given = {}
        for number, options in enumerate(feeds):
            given[f"{scheme}{self._feeds}/{number}-%(batch_time)s-%(batch_id)d"] = options
        return {
            "BLOOM_CONFIRM": "delivered",
            "FEEDS": json.dumps(given),
            "ROWS": self._rows,
            "FEED_STORAGES": '{"refusing": "odd_spider.Refusing"}',
            "AUTOTHROTTLE_ENABLED": False,
            **settings,
        }

    def items(self, feed: str = "") -> Counter[str]:
        """Return how often each page's item is in the files of a feed, or of all."""
        found = Counter[str]()
        for path in self._feeds.glob(f"{feed}*"):
            for line in path.read_text().splitlines():
                text = line.strip("[],")
                if text.startswith("/"):  # CSV
                    found[text] += 1
                elif text.startswith("{") and text.endswith("}"):
                    found[json.loads(text)["path"]] += 1
        return found

    def rows(self) -> Counter[str]:
        """Return how often each page's item is in the database."""
        with sqlite3.connect(self._rows) as database:
            found = Counter(path for (path,) in database.execute("SELECT path FROM pages"))
        database.close()
        return found


@pytest.fixture
def store(lab_of: LabOf) -> Store:
    return Store(lab_of(tree(PAGES)))


def assert_all(done: Done, store: Store, found: set[str]) -> None:
    """All items are stored, and nothing is left."""
    assert found - {"/"} == store.lab.site.pages.keys() - {"/"}
    assert done.recorded == store.lab.site.pages.keys() - {"/"}
    assert not done.claims


# -- feeds --


@pytest.mark.parametrize("given", [{}, {"BLOOM_REMEMBER": "items", "BLOOM_BATCH": 0}])
def test_a_kill_loses_no_item(store: Store, given: dict[str, Any]) -> None:
    lab, settings = store.lab, store.settings(BATCHES, **given)
    lab.kill_midway(11, SPIDER, **settings)
    stored = {path for path, count in store.items().items() if count}
    before = lab.recorded()
    assert before - {"/"} <= stored, "no page is recorded before its item is stored"
    lab.site.release()
    done = lab.crawl(SPIDER, **settings)
    assert_all(done, store, {*store.items()})


def test_ctrl_c_loses_no_item_and_stores_the_last_batch(store: Store) -> None:
    lab, settings = store.lab, store.settings(BATCHES)
    stop(lab, SPIDER, **settings)
    done = lab.crawl(SPIDER, **settings)
    assert_all(done, store, {*store.items()})
    assert {path for path, count in store.items().items() if count > 1} <= {"/"}


def test_pages_of_feeds_that_cannot_be_stored_are_crawled_by_the_next_run(store: Store) -> None:
    lab = store.lab
    settings = store.settings(BATCHES, scheme="refusing:")
    done = lab.crawl(SPIDER, **settings)
    lost = lab.site.pages.keys() - store.items().keys() - {"/"}
    assert lost
    assert done.stats["bloom/undelivered"] == len(lost)
    assert "[bloom-undelivered]" in done.log
    assert done.claims.keys() == lost
    assert not done.recorded & lost
    reasons = {one["reason"] for one in bloom(lab, "failed", "--json", **settings).json["pages"]}
    assert reasons == {"the crawl has ended before its items were stored"}
    done = lab.crawl(SPIDER, **store.settings(BATCHES))
    assert done.hits.keys() == {*lost, "/"}
    assert_all(done, store, {*store.items()})


def test_a_page_waits_for_each_feed_that_takes_its_item_and_for_no_other(store: Store) -> None:
    """A feed of odd pages refuses the others: these wait for the other feed only."""
    lab = store.lab
    odd = {**BATCHES, "item_filter": "odd_spider.Odd", "batch_item_count": 1_000}
    settings = store.settings(BATCHES, odd)
    lab.kill_midway(35, SPIDER, **settings)
    recorded = lab.recorded()
    assert recorded
    assert all(int(path[1:]) % 2 == 0 for path in recorded)
    lab.site.release()
    done = lab.crawl(SPIDER, **settings)
    assert_all(done, store, {*store.items("0")})
    assert {*store.items("1")} == {f"/{number}" for number in range(1, PAGES, 2)}


def test_of_too_many_pages_the_oldest_are_left_to_the_next_run(store: Store) -> None:
    code = f"{SPIDER}\nfrom scrapy_bloom.crawl import delivery\ndelivery.MAX_PAGES = 5\n"
    settings = store.settings({"format": "jsonlines"}, BATCHES)
    done = store.lab.crawl(code, **settings)
    assert done.log.count("[bloom-feed-at-the-end]") == 1, "of one of the two"
    assert "FEED_EXPORT_BATCH_ITEM_COUNT" in done.log
    assert "[bloom-too-many-undelivered]" in done.log
    assert len(done.recorded) == 5
    assert done.stats["bloom/undelivered"] == len(done.claims) > 30
    done = store.lab.crawl(SPIDER, **settings)
    assert_all(done, store, {*store.items("0")})


# -- pipelines that hold --


def bulk(store: Store, **settings: Any) -> dict[str, Any]:
    return {
        **store.settings(BLOOM_CONFIRM="crawled", **settings),
        "ITEM_PIPELINES": '{"odd_spider.Bulk": 1}',
    }


def test_a_kill_loses_no_row_of_a_pipeline_that_writes_in_bulk(store: Store) -> None:
    lab = store.lab
    lab.kill_midway(12, SPIDER, **bulk(store))
    lab.site.release()
    done = lab.crawl(SPIDER, **bulk(store))
    assert_all(done, store, {*store.rows()})


def test_what_a_pipeline_gives_up_has_failed(store: Store) -> None:
    """What it forgets is crawled again, too."""
    lab = store.lab
    settings = store.settings(BLOOM_CONFIRM="crawled", ITEM_PIPELINES='{"odd_spider.Failing": 1}')
    done = lab.crawl(SPIDER, **settings)
    assert done.claims.keys() == {"/3", "/4", "/5"}
    assert (done.stats["bloom/failed"], done.stats["bloom/undelivered"]) == (2, 1)
    found = bloom(lab, "failed", "--json", **settings).json["pages"]
    assert {one["reason"] for one in found if not one["url"].endswith("/5")} == {
        "pipeline: no disk at https://***@host/"
    }


def test_without_the_filter_nothing_is_held(store: Store) -> None:
    store.lab.crawl(SPIDER, **bulk(store), **PLAIN_SCRAPY)
    assert store.rows().keys() >= store.lab.site.pages.keys() - {"/"}


# -- however and whenever a crawl ends --

ENDS = ("kill", "SIGINT", "SIGINT twice", "SIGTERM", "CLOSESPIDER_PAGECOUNT")
CSV = {"format": "csv", "batch_item_count": 7}
#: How items are stored -> the feed, and how many items one write has; 0 if it has all.
WAYS: dict[str, tuple[dict[str, Any] | None, int]] = {
    "JSON lines in batches": (BATCHES, 4),
    "JSON in one file": ({"format": "json"}, 0),
    "CSV in batches": (CSV, 7),
    "a storage that refuses": (BATCHES, 4),
    "a pipeline that writes in bulk": (None, 7),
}
QUEUES = ("memory", "JOBDIR", "scrapy-redis with two workers")


def settings_of(store: Store, way: str, queue: str, *, refuses: bool) -> dict[str, Any]:
    feed, _ = WAYS[way]
    more: dict[str, Any] = SHARED_QUEUE if queue not in QUEUES[:2] else {}
    if queue == "JOBDIR":
        more = {"JOBDIR": store.lab.directory / "jobs"}
    if feed is None:
        return bulk(store, **more)
    return store.settings(feed, scheme="refusing:" if refuses else "", **more)


def end(crawl: Crawl, how: str) -> None:
    if how == "kill":
        crawl.kill()
    elif how != "CLOSESPIDER_PAGECOUNT" and not crawl.is_over:
        crawl.ask_to_stop(signal.SIGTERM if how == "SIGTERM" else signal.SIGINT)
        if how == "SIGINT twice" and not crawl.is_over:
            crawl.ask_to_stop(at_once=True)


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(1, 31))
@pytest.mark.parametrize("how", ENDS)
def test_a_run_that_ends_and_a_plain_one_store_all_items(
    lab_of: LabOf, how: str, moment: int
) -> None:
    """Each way and each queue has its turn, at two moments together."""
    store = Store(lab_of(tree(PAGES)))
    lab, way, queue = store.lab, [*WAYS][moment % len(WAYS)], QUEUES[moment // 5 % len(QUEUES)]
    settings = settings_of(store, way, queue, refuses=way == "a storage that refuses")
    if how == "CLOSESPIDER_PAGECOUNT":
        settings[how] = moment
    else:
        lab.site.hold_after(moment)
    workers = 2 if queue == QUEUES[2] else 1
    with ExitStack() as stack:
        crawls = [stack.enter_context(lab.start(SPIDER, **settings)) for _ in range(workers)]
        if how != "CLOSESPIDER_PAGECOUNT":
            until(lambda: all("Spider opened" in one.log for one in crawls), "all have begun")
            until(lambda: lab.site.held or crawls[0].is_over, "the crawl gets under way")
            end(crawls[0], how)
        lab.site.release()
        for crawl in crawls[how == "kill" :]:
            crawl.wait()
    if queue == "JOBDIR" and how in ("kill", "SIGINT twice"):
        settings["JOBDIR"] = lab.directory / "jobs again"  # Scrapy's own does not survive it
    settings.pop("CLOSESPIDER_PAGECOUNT", None)
    settings |= settings_of(store, way, "memory", refuses=False)
    done = lab.crawl(SPIDER, **settings)
    stored = store.rows() if WAYS[way][0] is None else store.items()
    assert stored.keys() - {"/"} == lab.site.pages.keys() - {"/"}
    assert not done.claims
    again = sum(stored.values()) - len(stored) - (stored["/"] - 1)
    # The thread of the pipeline may have written a second batch before the first is recorded.
    most = WAYS[way][1] * workers * (1 + (way == "a pipeline that writes in bulk"))
    assert again <= most or way in ("JSON in one file", "a storage that refuses")
