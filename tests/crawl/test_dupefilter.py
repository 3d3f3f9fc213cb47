"""``BloomDupeFilter`` through Scrapy's interface, on a real server, without a crawl."""

import asyncio
import logging
from pathlib import Path

import pytest
import redis
from scrapy import Request, Spider
from support.dupefilters import URL, Make, shut, spider_of, stats
from support.loops import in_loop
from support.outages import stalled
from support.polling import until
from support.servers import Server

from scrapy_bloom import BloomDupeFilter, FilterMismatchError, StorageError
from scrapy_bloom.crawl.recovery import Recovery


def test_a_request_is_seen_the_second_time(make: Make) -> None:
    dupefilter, request = make(), Request(URL)
    assert dupefilter.request_seen(request) is False
    assert request.meta == {}, "it is pickled into scrapy-redis's queue"
    assert dupefilter.request_seen(Request(URL)) is True
    assert dupefilter.request_seen(Request("https://example.com/a?c=2&b=1#top")) is True
    assert dupefilter.request_seen(Request(URL, method="POST")) is False
    assert make().request_seen(Request(URL)), "workers share the filter"


def test_spiders_have_filters_of_their_own_unless_the_key_says_otherwise(make: Make) -> None:
    class Other(Spider):
        name = "other"

    assert not make().request_seen(Request(URL))
    assert not make(Other).request_seen(Request(URL))
    assert not make(BLOOM_KEY="all").request_seen(Request(URL))
    assert make(Other, BLOOM_KEY="all").request_seen(Request(URL))


def test_stats_count_verdicts_and_round_trips(make: Make) -> None:
    """The cache saves one of three."""
    make(BLOOM_KEY="other").request_seen(Request(URL))  # the server has the script from then on
    dupefilter = make(BLOOM_CACHE_SIZE=100)
    opening = dupefilter._crawl.server.filters.round_trips
    for url in (URL, URL, "https://example.com/b"):
        dupefilter.request_seen(Request(url))
    assert stats(dupefilter)["bloom/new"] == 2
    assert stats(dupefilter)["bloom/seen"] == 1
    assert dupefilter._crawl.server.filters.round_trips == opening + 2


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
    """With DUPEFILTER_DEBUG, it shows all; above DEBUG, none."""
    dupefilter = make(DUPEFILTER_DEBUG=debug)
    caplog.clear()
    request = Request(URL, headers={"Referer": "https://example.com/from"})
    with caplog.at_level(logging.INFO):
        dupefilter.log(request, spider_of(dupefilter))
    assert not caplog.records
    dupefilter = make(DUPEFILTER_DEBUG=debug)
    with caplog.at_level(logging.DEBUG):
        for _ in range(3):
            dupefilter.log(request, spider_of(dupefilter))
    assert stats(dupefilter)["dupefilter/filtered"] == 3
    lines = [r.getMessage() for r in caplog.records if "Filtered duplicate" in r.getMessage()]
    assert len(lines) == shown
    assert says in lines[0]


# -- meta --


def test_bloom_key_identifies_a_request_instead_of_its_url(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    dupefilter = make()
    assert not dupefilter.request_seen(Request(URL, meta={"bloom_key": "item 7"}))
    assert dupefilter.request_seen(Request("https://mirror.org/", meta={"bloom_key": b"item 7"}))
    assert not dupefilter.request_seen(Request(URL))
    fingerprint = dupefilter.crawler.request_fingerprinter.fingerprint(Request(URL))
    assert not dupefilter.request_seen(Request(URL, meta={"bloom_key": fingerprint}))
    assert "bloom_key" not in caplog.text
    for number, other in enumerate([7, "", b"", None]):
        page = Request(f"{URL}&d={number}", meta={"bloom_key": other})
        assert not dupefilter.request_seen(page), "an empty key does not make all pages one"
        assert dupefilter.request_seen(page)
    assert "meta['bloom_key'] is of type int" in caplog.text


def test_a_redirect_is_not_a_duplicate_of_its_source(make: Make) -> None:
    """RedirectMiddleware copies meta; a page behind a redirect would never be fetched."""
    dupefilter = make()
    source = Request("http://example.com/", meta={"bloom_key": "item 7"})
    assert not dupefilter.request_seen(source)
    redirected = source.replace(
        url="https://example.com/", meta={**source.meta, "redirect_urls": [source.url]}
    )
    assert not dupefilter.request_seen(redirected)
    assert dupefilter.request_seen(redirected)
    assert dupefilter.request_seen(source)


def test_bloom_enabled_false_neither_tests_nor_records(make: Make) -> None:
    dupefilter = make()
    off = Request(URL, meta={"bloom_enabled": False})
    assert not dupefilter.request_seen(off)
    assert not dupefilter.request_seen(Request(URL))
    assert not dupefilter.request_seen(off)


# -- opening, closing, clearing --


def test_what_is_closed_or_fails_to_open_leaves_no_connection(
    make: Make, client: redis.Redis
) -> None:
    def connections() -> int:
        return sum(entry["name"] == "mine" for entry in client.client_list())

    mine = {"BLOOM_REDIS_PARAMS": {"client_name": "mine"}}
    dupefilter = make(**mine)
    dupefilter.request_seen(Request(URL))
    until(lambda: connections() == 1, "it is connected")
    dupefilter.close("finished")
    dupefilter.close("finished")
    assert dupefilter.request_seen(Request("https://example.com/late")) is False
    with pytest.raises(FilterMismatchError):
        make(BLOOM_BLOCKS=3, **mine)
    until(lambda: connections() == 0, "no connection is left")


@pytest.mark.parametrize(
    ("remember", "flushes", "opened"),
    [("scheduled", False, False), ("crawled", True, False), ("scheduled", True, True)],
)
@in_loop
async def test_a_flush_clears_all_filters_at_the_start_of_a_crawl_that_is_set_to(
    make: Make, remember: str, flushes: bool, opened: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """scrapy-redis flushes before the spider is opened, and again at close."""
    settings = {"BLOOM_REMEMBER": remember, "BLOOM_RECRAWL_RULES": [("^$", "1 day")]}
    requests = [Request(URL, meta={"bloom_recrawl_after": "1 day"}), Request(URL)]
    dupefilter = make(SCHEDULER_FLUSH_ON_START=flushes, **settings)
    assert not any(dupefilter.request_seen(request) for request in requests)
    if opened:
        dupefilter._on_spider_opened()
    with caplog.at_level(logging.INFO):
        dupefilter.clear()
    is_cleared = flushes and not opened
    assert ("cleared" in caplog.text) is is_cleared
    assert ("at the end of a worker is ignored" in caplog.text) is not is_cleared
    other = make(**settings)
    assert [other.request_seen(request) for request in requests] == [not is_cleared] * 2
    await shut(dupefilter, other)


def test_a_flush_that_fails_at_the_start_is_an_error(make: Make, server: Server) -> None:
    """scrapy-redis clears its queue after the dupefilter; at the end nothing is called."""
    dupefilter = make(SCHEDULER_FLUSH_ON_START=True, BLOOM_TIMEOUT=0.05)
    with stalled(server):
        with pytest.raises(StorageError):
            dupefilter.clear()
        dupefilter._on_spider_opened()
        dupefilter.clear()


def test_a_filter_that_is_not_enabled_deduplicates_without_a_server(
    make: Make, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        dupefilter = make(BLOOM_ENABLED=False, BLOOM_REDIS_URL="redis://127.0.0.1:1")
    assert "Bloom filter off (BLOOM_ENABLED is False)" in caplog.text
    assert not dupefilter.request_seen(Request(URL))
    assert dupefilter.request_seen(Request(URL))
    dupefilter.clear()
    dupefilter.close("finished")
    assert not client.keys()


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
        {"bloom_recrawl_after": Unprintable()},
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
def test_an_error_of_the_fingerprinter_is_raised_and_logged_once_with_its_class(
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
        with pytest.raises((TypeError, ValueError), match="a fingerprint is bytes, not|broken"):
            dupefilter.request_seen(Request(URL))
    assert stats(dupefilter)["bloom/not_identified"] == 2
    assert "bloom/unknown" not in stats(dupefilter)
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert f"{Fingerprinter.__module__}.{Fingerprinter.__qualname__} fails" in record.getMessage()


def test_a_fault_of_the_filter_itself_costs_no_request_and_no_endless_crawl(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dupefilter = make()

    def fail(*_: object) -> bool:
        raise KeyError("a fault")

    monkeypatch.setattr(dupefilter._crawl.decider, "_decide", fail)
    assert dupefilter.request_seen(Request(URL)) is False
    assert dupefilter.request_seen(Request(URL)) is True
    assert stats(dupefilter)["bloom/unknown"] == 2
    assert caplog.text.count("are remembered by this process for this run only") == 1


def test_a_part_that_is_lost_is_counted_and_logged(
    make: Make, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    dupefilter = make(BLOOM_CACHE_SIZE=0)
    # So many that each of the 16 blocks has some.
    requests = [Request(f"{URL}&d={i}") for i in range(400)]
    assert not any(dupefilter.request_seen(request) for request in requests)
    client.flushall()
    assert not any(dupefilter.request_seen(request) for request in requests)
    assert all(dupefilter.request_seen(request) for request in requests)
    assert stats(dupefilter)["bloom/lost_blocks"] == 16
    assert caplog.text.count("a part of it was gone") == 1


def test_a_spider_without_a_name_has_a_filter(make: Make) -> None:
    crawler = make(is_open=False).crawler
    crawler.spider = None
    crawler.spidercls = type("Nameless", (), {})
    assert BloomDupeFilter.from_crawler(crawler).settings.key == "spider:bloom"


def test_what_fails_after_the_filters_are_open_is_raised(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def fail(*args: object) -> None:
        raise StorageError("the server went away")

    monkeypatch.setattr(Recovery, "begin", fail)

    async def open_in_loop() -> None:
        dupefilter = make(is_open=False, BLOOM_REMEMBER="crawled", JOBDIR=str(tmp_path))
        with pytest.raises(StorageError, match="the server went away"):
            dupefilter.open()
        assert dupefilter.filters is None

    asyncio.run(open_in_loop())
