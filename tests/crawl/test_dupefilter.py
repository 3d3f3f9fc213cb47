"""``BloomDupeFilter`` through Scrapy's interface, on a real server, without a crawl."""

import logging
from typing import Any

import pytest
import redis
from scrapy import Request, Spider
from scrapy.http import Response
from scrapy.spiders import SitemapSpider
from support.dupefilters import URL, Make, shut, spider_of, stats
from support.loops import in_loop
from support.polling import until
from support.servers import Server
from support.workers import claimed

from scrapy_bloom import BloomDupeFilter
from scrapy_bloom.bloom.errors import ConfigurationError, FilterMismatchError


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
    dupefilter = make(BLOOM_BLOCKS=1)
    dupefilter.request_seen(Request("https://example.com/first"))  # reads the ring
    opening = dupefilter._crawl._server.round_trips[0]
    for url in (URL, URL, "https://example.com/b"):
        dupefilter.request_seen(Request(url))
    assert stats(dupefilter)["bloom/new"] == 3
    assert stats(dupefilter)["bloom/duplicates"] == 1
    assert dupefilter._crawl._server.round_trips[0] == opening + 2


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


def test_claims_need_an_event_loop_and_say_so(make: Make) -> None:
    with pytest.raises(ConfigurationError, match="asyncio"):
        make(BLOOM_REMEMBER="crawled")


# -- the log --


def test_one_line_at_open_and_one_at_close(
    make: Make, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """And one that says why nothing was new, if nothing was."""
    says = "nothing was new, because all 3 start requests are remembered or pending"
    caplog.set_level(logging.INFO)

    def lines() -> list[str]:
        ours = [one.getMessage() for one in caplog.records if one.name.startswith("scrapy_bloom")]
        caplog.clear()
        return ours

    for opening, closing in (
        ("is empty, and never forgets", "2 new, 1 duplicates, 0 failed in this process; 2 URLs"),
        ("remembers 2 URLs, and never", "0 new, 3 duplicates, 0 failed in this process; 2 URLs"),
    ):
        dupefilter = make()
        (line,) = lines()
        assert line.startswith(f"Bloom filter 'shop:bloom' on {server.url} {opening}")
        for url in (URL, URL, "https://example.com/b"):
            dupefilter.request_seen(Request(url))
        dupefilter.close("finished")
        line, *advice = lines()
        assert line.startswith(f"Bloom filter 'shop:bloom': {closing}")
        assert [says in one for one in advice] == [True] * closing.startswith("0 new")


def test_another_window_than_in_the_last_run_is_logged_once(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    make()
    for _ in range(2):
        make(BLOOM_RECRAWL_AFTER="2 months")
    assert caplog.text.count("changed from never to 2 months") == 1


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


@pytest.mark.parametrize(
    ("policy", "window", "warns"),
    [
        ("noeviction", "2 days", False),
        ("allkeys-lru", "never", True),
        ("volatile-lru", "2 days", True),
        ("volatile-lru", "never", False),
    ],
)
def test_a_server_that_may_evict_the_filter_is_warned_about(
    policy: str,
    window: str,
    warns: bool,
    *,
    make: Make,
    client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client.config_set("maxmemory-policy", policy)
    try:
        make(BLOOM_RECRAWL_AFTER=window)
    finally:
        client.config_set("maxmemory-policy", "noeviction")
    assert ("[bloom-eviction]" in caplog.text) is warns
    assert (f"may delete parts of the filter ({policy})" in caplog.text) is warns


def test_a_spider_without_a_name_has_a_filter(make: Make) -> None:
    crawler = make(is_open=False).crawler
    crawler.spider = None
    crawler.spidercls = type("Nameless", (), {})
    assert BloomDupeFilter.from_crawler(crawler).settings.key == "spider:bloom"


# -- windows: of the run, lasting, named, and in runs --

# -- start requests --


def test_start_requests_are_not_stored(make: Make) -> None:
    """``meta=response.meta`` copies the mark; depth gives the copy away."""
    start = Request(URL, meta={"is_start_request": True})
    copied = Request(f"{URL}&d=1", meta={"is_start_request": True, "depth": 1})
    first, second = make(), make()
    assert not first.request_seen(start)
    assert not first.request_seen(copied)
    assert not second.request_seen(start)
    assert second.request_seen(Request(URL))
    assert second.request_seen(copied)


def test_sitemaps_behind_a_start_request_are_hubs_too(make: Make) -> None:
    """robots.txt -> sitemap index -> sitemap: the second run must read them all."""

    class Sitemap(SitemapSpider):
        name = "sitemap"

        def parse(self, response: Response) -> None: ...

    for _ in range(2):
        dupefilter = make(Sitemap)
        spider: Any = spider_of(dupefilter)
        nested = Request(URL, callback=spider._parse_sitemap, meta={"depth": 2})
        assert not dupefilter.request_seen(nested)
        assert dupefilter.request_seen(nested)
    assert not dupefilter.request_seen(Request(URL + "&d=1", callback=spider.parse))
    assert make(Sitemap).request_seen(Request(URL + "&d=1", callback=spider.parse))


def test_an_unknown_window_is_warned_about_once_and_nothing_is_lost(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    dupefilter = make()
    wrong = ["daily", "daily", "1 week", 7, ["unhashable"], {}]
    for number, window in enumerate(wrong):
        request = Request(f"{URL}&d={number}", meta={"bloom_recrawl_after": window})
        assert not dupefilter.request_seen(request)
        assert make().request_seen(request)
    lines = [one for one in caplog.messages if "bloom_recrawl_after" in one]
    assert len(lines) == 1 + len(wrong), "once in each crawl"
    assert "'daily'" in lines[0]
    assert "BLOOM_RECRAWL_RULES" in lines[3], "no rule has 1 week"
    ruled = make(**WINDOWS)
    page = Request("https://example.com/page/1", meta={"bloom_recrawl_after": "2 days"})
    assert not ruled.request_seen(page)
    assert stats(ruled)["bloom/1-day/new"] == 1, "the rule counts"


# -- windows of rules --

WINDOWS = {"BLOOM_RECRAWL_RULES": [(r"/page/\d+", "1 day")]}


def test_a_rule_decides_about_start_requests(make: Make) -> None:
    ruled, other = (
        Request(f"https://example.com/{path}", meta={"is_start_request": True})
        for path in ("page/1", "other")
    )
    assert not make(**WINDOWS).request_seen(ruled)
    assert make(**WINDOWS).request_seen(ruled)
    assert not any(make(**WINDOWS).request_seen(other) for _ in range(2))


def test_a_request_names_its_window(make: Make) -> None:
    page = Request("https://example.com/other", meta={"bloom_recrawl_after": "1 day"})
    first = make(**WINDOWS)
    assert not first.request_seen(page)
    assert stats(first)["bloom/1-day/new"] == 1
    assert make(**WINDOWS).request_seen(page)
    assert not make(**WINDOWS).request_seen(Request("https://example.com/other"))


def test_pages_of_the_window_run_are_new_in_each_run_and_once(make: Make) -> None:
    page = Request("https://example.com/list", meta={"bloom_recrawl_after": "run"})
    for _ in range(2):
        dupefilter = make()
        assert [dupefilter.request_seen(page) for _ in range(2)] == [False, True]
        assert stats(dupefilter)["bloom/run/new"] == 1
        assert stats(dupefilter)["bloom/run/duplicates"] == 1
