"""Pages wait until their items are stored, in real crawls: by feeds, and by pipelines that hold."""

import json
import zlib
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.odd_site import PLAIN_SCRAPY, Done, Lab, LabOf, kinds, tree

PAGES = 40
#: Characters of the items that fill a disk.
TEXT = 40_000
SPIDER = """
import random, resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from scrapy import signals
from scrapy.extensions.feedexport import FeedExporter, FileFeedStorage
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
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
        way = Refusing.stored // 3 % 2
        if way == 0:
            raise ConnectionError("no storage")
        from twisted.internet import reactor
        done = Deferred()
        reactor.callLater(0.01, done.errback, ConnectionError("no storage, deferred"))
        return done

class Bulk(Component):
    "Writes seven rows at a time, in a thread."
    def __init__(self):
        self.rows, self.pool = [], ThreadPoolExecutor(1)
    def process_item(self, item, spider=None):
        self.rows.append((item["path"], hold(item)))
        if len(self.rows) >= 7:
            self.flush()
        return item
    def flush(self):
        rows, self.rows = self.rows, []
        self.pool.submit(self.write, rows)
    def write(self, rows):
        with open(self.crawler.settings["ROWS"], "a") as file:
            print(*(path for path, _ in rows), file=file)
        for _, held in rows:
            held.release()
            held.release()  # nothing
    def close_spider(self, spider=None):
        self.flush()
        self.pool.shutdown()

class Slow:
    def process_item(self, item, spider=None):
        from twisted.internet import reactor
        return deferLater(reactor, 0.01, lambda: item)

class Failing:
    def process_item(self, item, spider=None):
        held = hold(item)
        if item["path"] in ("/3", "/4"):
            held.fail("no disk")
        elif item["path"] != "/5":  # that one is forgotten
            held.release()
        return item

class Items(OddSpider):
    def parse(self, response):
        yield self.item("/" + response.url.rpartition("/")[2])
        yield from self.links(response)
    def item(self, path):
        return {"path": path}

class Odd:
    "Of a feed: takes odd pages only."
    def __init__(self, feed_options):
        pass
    def accepts(self, item):
        return int(item["path"][1:] or 0) % 2

class Later(FeedExporter):
    async def item_scraped(self, item, spider):
        return super().item_scraped(item, spider)

class Stranger(FeedExporter):
    @classmethod
    def from_crawler(cls, crawler):
        exporter = cls(crawler)
        crawler.signals.connect(exporter.export, signals.item_scraped)
        return exporter
    def export(self, item, spider):
        return self.item_scraped(item, spider)
"""
#: The disk is full for the items 10 to 25: no file may have 100,000 bytes.
FULL = """
class Full(Items):
    count = 0

    def item(self, path):
        self.count += 1
        limit = 100_000 if 10 <= self.count < 26 else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        return {"path": path, "text": random.Random(path).randbytes(20_000).hex()}
"""
#: The item of one page is nothing that JSON can have.
ODD_ITEM = """
class Unwritable(Items):
    def item(self, path):
        return {"path": Path(path) if path == "/9" else path}
"""
BATCHES = {"format": "jsonlines", "batch_item_count": 4}
CSV = {"format": "csv", "batch_item_count": 7}
JSON = {"format": "json"}
GZIP = {"postprocessing": ["scrapy.extensions.postprocessing.GzipPlugin"]}


class Store:
    """A lab whose crawls write items, and what was stored."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.feeds = lab, lab.directory / "feeds"
        self._rows = lab.directory / "rows"

    def settings(self, *feeds: dict[str, Any], scheme: str = "", **settings: Any) -> dict[str, Any]:
        """Return settings with feeds, each run's and each batch's in a file of its own."""
        given = {}
        for number, options in enumerate(feeds):
            given[f"{scheme}{self.feeds}/{number}-%(batch_time)s-%(batch_id)d"] = options
        return {
            "BLOOM_REMEMBER": "delivered",
            "FEEDS": json.dumps(given),
            "ROWS": self._rows,
            "FEED_STORAGES": '{"refusing": "odd_spider.Refusing"}',
            "AUTOTHROTTLE_ENABLED": False,
            **settings,
        }

    def items(self, feed: str = "") -> Counter[str]:
        """Return how often each page's item is in the files of a feed, or of all."""
        found = Counter[str]()
        for path in self.feeds.glob(f"{feed}*"):
            for line in read(path).decode().splitlines():
                text = line.strip("[],")
                path_of_row, _, value = text.partition(",")
                if path_of_row in self.lab.site.pages and len(value) in (0, TEXT):  # CSV
                    found[path_of_row] += 1
                elif text.startswith("{") and text.endswith("}"):
                    with suppress(ValueError):  # cut off in the middle
                        found[json.loads(text)["path"]] += 1
        return found

    def rows(self) -> Counter[str]:
        """Return how often each page's item is in the file that the pipeline writes."""
        return Counter(self._rows.read_text().split() if self._rows.exists() else [])


def read(path: Path) -> bytes:
    """Return what can be read of a file, which may be compressed and damaged."""
    content = path.read_bytes()
    if not content.startswith(b"\x1f\x8b"):
        return content
    text, unzip = bytearray(), zlib.decompressobj(31)
    with suppress(zlib.error):
        for start in range(0, len(content), 1_000):
            text += unzip.decompress(content[start : start + 1_000])
    return bytes(text)


@pytest.fixture
def store(lab_of: LabOf) -> Store:
    return Store(lab_of(tree(PAGES)))


def pages_of(store: Store) -> set[str]:
    return store.lab.site.pages.keys() - {"/"}


def assert_all(done: Done, store: Store, found: set[str]) -> None:
    """All items are stored, and nothing is left."""
    assert found - {"/"} == pages_of(store)
    assert done.recorded == pages_of(store)
    assert not done.claims


# -- crawls that end early --

#: Pages that a crawl gets before it is interrupted.
MIDWAY = 12
BULK = {"BLOOM_REMEMBER": "crawled", "ITEM_PIPELINES": '{"odd_spider.Bulk": 1}'}


@pytest.mark.parametrize("end", ["SIGKILL", "SIGINT", "page count"])
def test_a_run_that_ends_early_and_a_plain_one_store_all_items(store: Store, end: str) -> None:
    """A pipeline writes them in bulk. Only a run that is killed may store items that come again."""
    lab, settings = store.lab, store.settings(**BULK)
    if end == "SIGKILL":
        lab.kill_midway(MIDWAY, SPIDER, **settings)
    elif end == "SIGINT":
        lab.stop_midway(MIDWAY, SPIDER, **settings)
    else:
        lab.crawl(SPIDER, **settings, CLOSESPIDER_PAGECOUNT=MIDWAY)
    assert lab.recorded() - {"/"} <= store.rows().keys(), "remembered, and not stored"
    lab.site.release()
    assert_all(lab.crawl(SPIDER, **settings), store, {*store.rows()})
    if end != "SIGKILL":
        assert {path for path, count in store.rows().items() if count > 1} <= {"/"}


def test_full_batches_are_stored_before_the_spider_closes(store: Store) -> None:
    """Scrapy 2.14 to 2.17 would store them only then."""
    lab, settings = store.lab, store.settings(BATCHES)
    lab.kill_midway(30, SPIDER, **settings)
    recorded = lab.recorded()
    assert recorded
    assert recorded <= store.items().keys()
    lab.site.release()
    done = lab.crawl(SPIDER, **settings)
    assert_all(done, store, {*store.items()})
    assert not done.hits.keys() & recorded - {"/"}
    assert "[bloom-" not in done.log


# -- feeds that misbehave --


def feed(uri: str, **options: Any) -> dict[str, Any]:
    """Return settings with one feed."""
    return {"FEEDS": json.dumps({uri: {"format": "csv", **options}})}


def test_pages_of_files_that_cannot_be_stored_are_crawled_by_the_next_run(store: Store) -> None:
    lab = store.lab
    done = lab.crawl(SPIDER, **store.settings(BATCHES, scheme="refusing:"))
    lost = pages_of(store) - store.items().keys()
    assert lost
    assert done.stats["bloom/undelivered"] == len(lost)
    assert "[bloom-undelivered]" in done.log
    assert done.claims.keys() == lost
    assert not done.recorded & lost
    done = lab.crawl(SPIDER, **store.settings(BATCHES))
    assert done.hits.keys() == {*lost, "/"}
    assert_all(done, store, {*store.items()})


@pytest.mark.parametrize("uri", ["/dev/null/x.csv", "ftp://127.0.0.1:1/x", "%(nothing)s.csv"])
def test_pages_fail_whose_feed_cannot_be_opened(store: Store, uri: str) -> None:
    """The directory is a file, or there is no FEED_TEMPDIR, or no such parameter."""
    lab, settings = store.lab, feed(uri) | {"FEED_TEMPDIR": "/dev/null/x"}
    done = lab.crawl(SPIDER, **store.settings(**settings))
    assert done.claims.keys() == pages_of(store)
    assert done.stats["bloom/failed"] == PAGES
    assert not done.recorded
    assert done.log.count("[bloom-feed-refused]") == 1
    store.lab.make_due()
    assert_all(lab.crawl(SPIDER, **store.settings(BATCHES)), store, {*store.items()})


@pytest.mark.parametrize("options", [BATCHES, JSON, CSV | GZIP])
def test_a_disk_that_is_full_for_a_while_loses_no_item(
    store: Store, options: dict[str, Any]
) -> None:
    """What a file has lost, or has in a form that nothing can read, is crawled again."""
    settings = store.settings(options, LOG_LEVEL="INFO")
    done = store.lab.crawl(SPIDER + FULL, **settings)
    lost = pages_of(store) - store.items().keys()
    assert lost
    assert lost <= done.claims.keys()
    assert "[bloom-feed-refused]" in done.log or "[bloom-undelivered]" in done.log
    store.lab.make_due()
    done = store.lab.crawl(SPIDER, **store.settings(BATCHES))
    assert_all(done, store, {*store.items()})


def test_an_item_that_one_feed_cannot_write_loses_no_other(store: Store) -> None:
    """It closes a batch of the feed before, which takes no item any more."""
    lab = store.lab
    settings = store.settings({**CSV, "batch_item_count": 1}, {**BATCHES, "batch_item_count": 6})
    done = lab.crawl(SPIDER + ODD_ITEM, **settings)
    assert "[bloom-feed-refused]" in done.log
    assert "/9" in done.claims
    both = store.items("0").keys() & store.items("1").keys()
    assert done.recorded <= both
    store.lab.make_due()
    done = lab.crawl(SPIDER, **settings)
    assert_all(done, store, {*store.items("0")} & {*store.items("1")})


def own_exporter(name: str) -> str:
    """Return EXTENSIONS with an exporter of the project's own, instead of Scrapy's."""
    return f'{{"scrapy.extensions.feedexport.FeedExporter": null, "odd_spider.{name}": 0}}'


# -- feeds that a crawl does not begin with --


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (feed("x.csv", batch_item_count=9), "%(batch_id)d must be in the feed URI (x.csv)"),
        (feed("x", format="yaml"), "Unknown feed format: yaml"),
        (feed("s3://b/x.csv"), "Reason: missing boto3 library"),
        (
            feed("x.csv") | {"EXTENSIONS": '{"scrapy.extensions.feedexport.FeedExporter": null}'},
            "EXTENSIONS has no FeedExporter",
        ),
        (
            feed("ftp://me:secret@h/%(batch_id)05d.csv", batch_item_count=9),
            "would overwrite the files of the feed ftp://***@h/%(batch_id)05d.csv",
        ),
        (
            feed("%(batch_id)d.csv", batch_item_count=9, overwrite=True),
            "would overwrite the files of the feed %(batch_id)d.csv",
        ),
        (
            feed("x.csv") | {"EXTENSIONS": own_exporter("Stranger")},
            "Stranger doesn't connect item_scraped as FeedExporter does",
        ),
        (
            feed("x.csv") | {"EXTENSIONS": own_exporter("Later")},
            "Later.item_scraped is a coroutine",
        ),
    ],
)
def test_a_crawl_that_would_lose_items_does_not_begin(
    store: Store, settings: dict[str, Any], reason: str
) -> None:
    """It says what to do."""
    log = store.lab.refused(SPIDER, **store.settings(**settings))
    assert reason in log
    assert "%(batch_time)s-%(batch_id)05d" in log or "odd_spider" in str(settings)


@pytest.mark.parametrize(
    ("name", "options"),
    [("%(batch_id)d", {}), ("%(batch_time)s-%(batch_id)05d", {"overwrite": True})],
)
def test_the_files_of_a_run_survive_the_next_one(
    store: Store, name: str, options: dict[str, Any]
) -> None:
    """Because it adds to them, or has others."""
    feeds = json.dumps({f"{store.feeds}/{name}": {**BATCHES, **options}})
    store.lab.stop_midway(MIDWAY, SPIDER, **store.settings(FEEDS=feeds))
    done = store.lab.crawl(SPIDER, **store.settings(FEEDS=feeds))
    assert_all(done, store, {*store.items()})


# -- what a page waits for --


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


def test_pages_without_items_wait_for_no_feed(store: Store) -> None:
    code = SPIDER + "class Itemless(Items):\n    item = lambda *_: None\n"
    done = store.lab.crawl(code, **store.settings({**JSON, "store_empty": True}))
    assert done.recorded == pages_of(store)
    assert [path.read_text() for path in store.feeds.iterdir()] == ["[\n\n]"]


def test_a_page_waits_once_for_all_of_its_items_in_a_file(store: Store) -> None:
    code = f"{SPIDER}class Twice(Items):\n    def parse(self, response):\n"
    code += "        yield self.item('/0')\n        yield from super().parse(response)\n"
    done = store.lab.crawl(code, **store.settings(JSON))
    assert done.recorded == pages_of(store)
    assert store.items().total() == 2 * (PAGES + 1)


def test_of_too_many_pages_the_oldest_are_left_to_the_next_run(store: Store) -> None:
    code = f"{SPIDER}\nfrom scrapy_bloom.crawl import endings\nendings.MAX_WAITING = 5\n"
    settings = store.settings({"format": "jsonlines"}, BATCHES)
    done = store.lab.crawl(code, **settings)
    assert done.log.count("[bloom-feed-at-the-end]") == 1, "of one of the two"
    assert "FEED_EXPORT_BATCH_ITEM_COUNT" in done.log
    assert done.log.count("[bloom-too-many-waiting]") == 1
    assert len(done.recorded) == 5
    assert done.stats["bloom/undelivered"] == len(done.claims) > 30
    done = store.lab.crawl(SPIDER, **settings)
    assert_all(done, store, {*store.items("0")})


# -- pipelines that hold --


def test_what_a_pipeline_gives_up_has_failed(store: Store) -> None:
    """What it forgets is crawled again, too. The pipeline before returns a Deferred."""
    pipelines = '{"odd_spider.Slow": 1, "odd_spider.Failing": 2}'
    done = store.lab.crawl(SPIDER, **store.settings(ITEM_PIPELINES=pipelines))
    assert kinds(done.claims) == {"/3": "-", "/4": "-", "/5": "w"}
    assert (done.stats["bloom/failed"], done.stats["bloom/undelivered"]) == (2, 1)


def test_without_the_filter_nothing_is_held(store: Store) -> None:
    store.lab.crawl(SPIDER, **store.settings(**BULK), **PLAIN_SCRAPY)
    assert store.rows().keys() >= pages_of(store)
