"""``BloomDupeFilter`` through Scrapy's interface, on a real server, without a crawl."""

import logging

import pytest
import redis
from scrapy import Request
from support.dupefilters import URL, Make, shut, spider_of, stats
from support.loops import in_loop
from support.polling import until
from support.servers import Server
from support.workers import claimed

from scrapy_bloom import BloomDupeFilter
from scrapy_bloom.bloom.errors import FilterMismatchError


def test_a_request_is_seen_the_second_time(make: Make) -> None:
    dupefilter, request = make(), Request(URL)
    assert dupefilter.request_seen(request) is False
    assert request.meta == {}, "it is pickled into scrapy-redis's queue"
    assert dupefilter.request_seen(Request(URL)) is True
    assert dupefilter.request_seen(Request("https://example.com/a?c=2&b=1#top")) is True
    assert dupefilter.request_seen(Request(URL, method="POST")) is False
    assert make().request_seen(Request(URL)), "workers share the filter"


@pytest.mark.parametrize(
    ("debug", "shown", "says"),
    [
        (False, 1, "no more duplicates will be shown"),
        (True, 3, "referer: https://example.com/from"),
    ],
)
def test_log_counts_every_duplicate_and_shows_the_first(
    make: Make, caplog: pytest.LogCaptureFixture, debug: bool, shown: int, says: str
) -> None:
    """With DUPEFILTER_DEBUG, it shows all."""
    dupefilter = make(DUPEFILTER_DEBUG=debug)
    request = Request(URL, headers={"Referer": "https://example.com/from"})
    with caplog.at_level(logging.DEBUG):
        for _ in range(3):
            dupefilter.log(request, spider_of(dupefilter))
    assert stats(dupefilter)["dupefilter/filtered"] == 3
    lines = [r.getMessage() for r in caplog.records if "Filtered duplicate" in r.getMessage()]
    assert len(lines) == shown
    assert says in lines[0]


def test_bloom_enabled_false_neither_tests_nor_records(make: Make) -> None:
    dupefilter = make()
    off = Request(URL, meta={"bloom_enabled": False})
    assert not dupefilter.request_seen(off)
    assert not dupefilter.request_seen(Request(URL))
    assert not dupefilter.request_seen(off)


@pytest.mark.parametrize(
    ("before", "after", "seen"),
    [("1 day", "6 months", False), ("default", "run", False), ("24 hours", "1 day", True)],
)
def test_a_url_that_moves_to_another_window_is_new_there_once(
    make: Make, before: str, after: str, seen: bool
) -> None:
    assert not make(BLOOM_RECRAWL_RULES=[(".", before)]).request_seen(Request(URL))
    moved = make(BLOOM_RECRAWL_RULES=[(".", after)])
    assert moved.request_seen(Request(URL)) is seen
    assert moved.request_seen(Request(URL))


# -- opening, closing, clearing --


@in_loop
async def test_what_is_closed_or_fails_to_open_leaves_no_connection(
    make: Make, client: redis.Redis
) -> None:
    def connections() -> int:
        return sum(entry["name"] == "mine" for entry in client.client_list())

    mine = {"BLOOM_REDIS_PARAMS": {"client_name": "mine"}, "BLOOM_REMEMBER": "crawled"}
    dupefilter = make(**mine)
    dupefilter.request_seen(Request(URL))
    until(lambda: connections() == 1, "it is connected")
    await shut(dupefilter, dupefilter)
    assert dupefilter.request_seen(Request("https://example.com/late")) is False
    with pytest.raises(FilterMismatchError):
        make(BLOOM_BLOCKS=3, **mine)
    until(lambda: connections() == 0, "no connection is left")


def test_a_scheduler_that_does_not_open_it_gets_answers_from_the_filter(make: Make) -> None:
    dupefilter = make(is_open=False)
    assert not dupefilter.request_seen(Request(URL))
    assert make().request_seen(Request(URL))


@in_loop
async def test_a_flush_clears_all_at_the_start_of_a_crawl_that_is_set_to(
    make: Make, server: Server
) -> None:
    """scrapy-redis flushes after it has built the dupefilter, and again at close."""
    settings = {"BLOOM_REMEMBER": "crawled", "BLOOM_RECRAWL_RULES": [("^$", "1 day")]}
    requests = [Request(f"{URL}&d=1", meta={"bloom_recrawl_after": "1 day"}), Request(URL)]

    first = make(**settings)
    assert not any(first.request_seen(request) for request in requests)
    first.clear()
    await shut(first)
    for flushes in (False, True):
        made = make(is_open=False, SCHEDULER_FLUSH_ON_START=flushes, **settings)
        opened = BloomDupeFilter.from_spider(spider_of(made))
        opened.clear()
        assert claimed(server) == (0 if flushes else 2), "pending, unless it was cleared"
        await shut(opened)


def test_a_filter_that_is_not_enabled_deduplicates_without_a_server(
    make: Make, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        dupefilter = make(BLOOM_ENABLED=False, BLOOM_REDIS_URL="redis://127.0.0.1:1")
    assert "Bloom filter: off by BLOOM_ENABLED" in caplog.text
    assert not dupefilter.request_seen(Request(URL))
    assert dupefilter.request_seen(Request(URL))
    assert not dupefilter.request_seen(Request(URL, meta={"bloom_enabled": False}))
    dupefilter.clear()
    dupefilter.close("finished")
    assert not client.keys()


# -- the log --


def test_another_window_than_in_the_last_run_is_logged_once(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    make()
    for _ in range(2):
        make(BLOOM_RECRAWL_AFTER="2 months")
    assert caplog.text.count("changed from never to 2 months") == 1


def test_an_override_of_request_fingerprint_is_warned_of(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    class Own(BloomDupeFilter):
        def request_fingerprint(self, request: Request) -> None: ...

    own = Own.from_crawler(make(is_open=False).crawler)
    own.open()
    own.close()
    assert "Own.request_fingerprint is ignored" in caplog.text


# -- trouble --


class Unprintable:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no truth")

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "meta",
    [
        {"bloom_other": Unprintable()},
        {"bloom_key": Unprintable()},
        {"is_start_request": Unprintable(), "depth": Unprintable()},
        {"redirect_urls": Unprintable()},
    ],
)
def test_request_seen_survives_any_meta(make: Make, meta: dict[str, object]) -> None:
    dupefilter = make()
    assert dupefilter.request_seen(Request(URL, meta=meta)) is False


@pytest.mark.parametrize("fingerprint", [None, 7, "text", ValueError("broken")])
def test_an_error_of_the_fingerprinter_is_raised_and_logged_once(
    make: Make, fingerprint: object, caplog: pytest.LogCaptureFixture
) -> None:
    """If such requests counted as new, a loop of links would be crawled for ever."""

    class Fingerprinter:
        def fingerprint(self, request: Request) -> object:
            if isinstance(fingerprint, Exception):
                raise fingerprint
            return fingerprint

    dupefilter = make(REQUEST_FINGERPRINTER_CLASS=Fingerprinter)
    for _ in range(2):
        with pytest.raises((TypeError, ValueError)):
            dupefilter.request_seen(Request(URL))
    assert stats(dupefilter)["bloom/not_identified"] == 2
    assert "bloom/unknown" not in stats(dupefilter)
    assert caplog.text.count("the fingerprinter failed for") == 1


@pytest.mark.parametrize("lost", ["*:default:*", "*"], ids=["bitmaps", "all"])
def test_what_is_deleted_in_mid_crawl_is_counted_and_logged(
    make: Make, client: redis.Redis, caplog: pytest.LogCaptureFixture, lost: str
) -> None:
    # So many that each of the 4 blocks has some.
    requests = [Request(f"{URL}&d={i}") for i in range(800)]
    dupefilter, other = make(), make()
    assert not any(dupefilter.request_seen(request) for request in requests[:400])
    for key in client.scan_iter(lost):
        client.delete(key)
    assert not any(dupefilter.request_seen(request) for request in requests[400:])
    assert all(other.request_seen(request) for request in requests[400:])
    assert stats(dupefilter)["bloom/lost_shards"] == 4
    assert caplog.text.count("[bloom-lost-shard]") == 1


def test_a_spider_without_a_name_has_a_filter(make: Make) -> None:
    crawler = make(is_open=False).crawler
    crawler.spider = None
    crawler.spidercls = type("Nameless", (), {})
    assert BloomDupeFilter.from_crawler(crawler).settings.key == "spider:bloom"
