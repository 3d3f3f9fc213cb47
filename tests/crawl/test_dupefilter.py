"""BloomDupeFilter through Scrapy's interface, on real servers, without a crawl."""

import asyncio
import logging
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from scrapy import Request, Spider, signals
from scrapy.http import Response
from scrapy.spiders import SitemapSpider
from scrapy.utils.test import get_crawler
from support.servers import Server

from scrapy_bloom import BloomDupeFilter, ConfigurationError, FilterMismatchError, StorageError
from scrapy_bloom.crawl.claims.reclaimer import Reclaimer

URL = "https://example.com/a?b=1&c=2"
Make = Callable[..., BloomDupeFilter]


class Shop(Spider):
    name = "shop"


@pytest.fixture
def make(server: Server, client: redis.Redis) -> Iterator[Make]:
    """Build an open dupefilter on an empty server; closed at the end of the test."""
    made = []

    def build(spidercls: type[Spider] = Shop, *, is_open: bool = True, **settings: object):
        settings = {
            "BLOOM_REDIS_URL": server.url,
            "BLOOM_CAPACITY": 10_000,
            "BLOOM_REMEMBER": "scheduled",
            **settings,
        }
        crawler = get_crawler(spidercls, settings)
        crawler.spider = crawler._create_spider(spidercls.name)
        dupefilter = BloomDupeFilter.from_crawler(crawler)
        made.append(dupefilter)
        if is_open:
            dupefilter.open()
        return dupefilter

    yield build
    for dupefilter in made:
        dupefilter.close("finished")


def stats(dupefilter: BloomDupeFilter) -> dict[str, object]:
    return dupefilter.crawler.stats.get_stats()


def test_a_request_is_seen_the_second_time(make: Make) -> None:
    dupefilter = make()
    assert dupefilter.request_seen(Request(URL)) is False
    assert dupefilter.request_seen(Request(URL)) is True
    assert dupefilter.request_seen(Request(URL, method="POST")) is False


def test_urls_are_compared_by_scrapys_fingerprint(make: Make) -> None:
    dupefilter = make()
    assert not dupefilter.request_seen(Request(URL))
    assert dupefilter.request_seen(Request("https://example.com/a?c=2&b=1#top"))


def test_workers_share_the_filter(make: Make) -> None:
    first, second = make(), make()
    assert not first.request_seen(Request(URL))
    assert second.request_seen(Request(URL))


def test_spiders_have_filters_of_their_own_unless_the_key_says_otherwise(make: Make) -> None:
    class Other(Spider):
        name = "other"

    assert not make().request_seen(Request(URL))
    assert not make(Other).request_seen(Request(URL))
    assert not make(BLOOM_KEY="all").request_seen(Request(URL))
    assert make(Other, BLOOM_KEY="all").request_seen(Request(URL))


def test_the_key_is_the_spiders_name(make: Make, client: redis.Redis) -> None:
    make()
    assert client.exists("{shop:bloom:0}:header")


@pytest.mark.parametrize(("cache_size", "round_trips"), [(0, 3), (100, 2)])
def test_stats_count_verdicts_and_round_trips(
    make: Make, cache_size: int, round_trips: int
) -> None:
    """What this process was told lately costs none."""
    dupefilter = make(BLOOM_CACHE_SIZE=cache_size)
    opening = dupefilter._crawl.connections.round_trips
    for url in (URL, URL, "https://example.com/b"):
        dupefilter.request_seen(Request(url))
    assert stats(dupefilter)["bloom/new"] == 2
    assert stats(dupefilter)["bloom/seen"] == 1
    assert dupefilter._crawl.connections.round_trips == opening + round_trips


def test_a_second_run_remembers_and_says_so(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    first = make()
    for i in range(5):
        first.request_seen(Request(f"https://example.com/{i}"))
    first.close("finished")
    with caplog.at_level(logging.INFO):
        second = make()
    lines = [r.getMessage() for r in caplog.records if r.name == "scrapy_bloom.crawl.report"]
    (line,) = [line for line in lines if "BLOOM_REMEMBER" not in line]
    assert "'shop:bloom'" in line
    assert "remembers 5 URLs" in line
    assert second.request_seen(Request("https://example.com/3"))


def test_no_log_line_per_request_at_info(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    dupefilter = make()
    caplog.clear()
    with caplog.at_level(logging.INFO):
        for _ in range(100):
            if dupefilter.request_seen(Request(URL)):
                dupefilter.log(Request(URL), dupefilter.crawler.spider)
    assert not caplog.records


def test_log_counts_every_duplicate_and_shows_the_first(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    dupefilter = make()
    with caplog.at_level(logging.DEBUG):
        for _ in range(3):
            dupefilter.log(Request(URL), dupefilter.crawler.spider)
    assert stats(dupefilter)["dupefilter/filtered"] == 3
    lines = [r.getMessage() for r in caplog.records if "Filtered duplicate" in r.getMessage()]
    assert len(lines) == 1
    assert "no more duplicates will be shown" in lines[0]


def test_dupefilter_debug_shows_all(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    dupefilter = make(DUPEFILTER_DEBUG=True)
    request = Request(URL, headers={"Referer": "https://example.com/from"})
    with caplog.at_level(logging.DEBUG):
        for _ in range(3):
            dupefilter.log(request, dupefilter.crawler.spider)
    lines = [r.getMessage() for r in caplog.records if "Filtered duplicate" in r.getMessage()]
    assert len(lines) == 3
    assert "referer: https://example.com/from" in lines[0]


# -- meta --


def test_bloom_key_identifies_a_request_instead_of_its_url(make: Make) -> None:
    dupefilter = make()
    assert not dupefilter.request_seen(Request(URL, meta={"bloom_key": "item 7"}))
    assert dupefilter.request_seen(Request("https://mirror.org/", meta={"bloom_key": b"item 7"}))
    assert not dupefilter.request_seen(Request(URL))


def test_bloom_key_never_equals_a_fingerprint(make: Make) -> None:
    dupefilter = make()
    fingerprint = dupefilter.crawler.request_fingerprinter.fingerprint(Request(URL))
    assert not dupefilter.request_seen(Request(URL))
    assert not dupefilter.request_seen(Request(URL, meta={"bloom_key": fingerprint}))


def test_bloom_key_of_another_type_is_warned_about_and_nothing_is_lost(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    dupefilter = make()
    assert not dupefilter.request_seen(Request(URL, meta={"bloom_key": 7}))
    assert dupefilter.request_seen(Request(URL))
    assert "meta['bloom_key'] is of type int" in caplog.text


@pytest.mark.parametrize("empty", ["", b"", None])
def test_an_empty_bloom_key_does_not_make_all_pages_one(make: Make, empty: object) -> None:
    dupefilter = make()
    requests = [Request(f"{URL}&d={i}", meta={"bloom_key": empty}) for i in range(3)]
    assert not any(dupefilter.request_seen(request) for request in requests)
    assert all(dupefilter.request_seen(request) for request in requests)


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


# -- windows --


def test_the_run_window_lasts_for_this_run(make: Make) -> None:
    hub = Request(URL, meta={"bloom_window": "run"})
    first = make()
    assert not first.request_seen(hub)
    assert first.request_seen(hub)
    assert stats(first)["bloom/run/new"] == 1
    assert stats(first)["bloom/run/seen"] == 1
    assert not make().request_seen(hub)


def test_a_url_taken_under_run_is_seen_whatever_window_a_later_sighting_has(make: Make) -> None:
    dupefilter = make()
    assert not dupefilter.request_seen(Request(URL, meta={"bloom_window": "run"}))
    assert dupefilter.request_seen(Request(URL))
    assert not make().request_seen(Request(URL)), "it must not have been stored"


def test_start_requests_are_not_stored(make: Make) -> None:
    start = Request(URL, meta={"is_start_request": True})
    assert not make().request_seen(start)
    second = make()
    assert not second.request_seen(start)
    assert second.request_seen(Request(URL))


def test_a_copied_is_start_request_does_not_make_a_start_request(make: Make) -> None:
    """``meta=response.meta`` copies the flag; depth gives the copy away."""
    copied = Request(URL, meta={"is_start_request": True, "depth": 1})
    assert not make().request_seen(copied)
    assert make().request_seen(copied)


def test_start_requests_can_be_remembered_like_all_others(make: Make) -> None:
    start = Request(URL, meta={"is_start_request": True})
    assert not make(BLOOM_START_WINDOW="lasting").request_seen(start)
    assert make(BLOOM_START_WINDOW="lasting").request_seen(start)


def test_sitemaps_behind_a_start_request_are_hubs_too(make: Make) -> None:
    """robots.txt -> sitemap index -> sitemap: the second run must read them all."""

    class Sitemap(SitemapSpider):
        name = "sitemap"

        def parse(self, response: Response) -> None: ...

    for _ in range(2):
        dupefilter = make(Sitemap)
        spider = dupefilter.crawler.spider
        nested = Request(URL, callback=spider._parse_sitemap, meta={"depth": 2})
        assert not dupefilter.request_seen(nested)
        assert dupefilter.request_seen(nested)
    assert not dupefilter.request_seen(Request(URL + "&d=1", callback=spider.parse))
    assert make(Sitemap).request_seen(Request(URL + "&d=1", callback=spider.parse))


def test_an_unknown_window_is_warned_about_and_nothing_is_lost(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    dupefilter = make()
    for number, window in enumerate(["daily", "daily", "weekly", 7, ["unhashable"], {}]):
        request = Request(f"{URL}&d={number}", meta={"bloom_window": window})
        assert not dupefilter.request_seen(request)
        assert make().request_seen(request)
    assert caplog.text.count("meta['bloom_window'] of ") == 1 + 6
    assert "is 'daily', and there are 'run', 'lasting' (BLOOM_WINDOWS has more)" in caplog.text


# -- opening, closing, clearing --


def test_building_connects_to_nothing(make: Make) -> None:
    dupefilter = make(is_open=False, BLOOM_REDIS_URL="redis://localhost:1")
    assert dupefilter.filters is None


def test_a_filter_that_nobody_opened_opens_itself(make: Make) -> None:
    dupefilter = make(is_open=False)
    assert not dupefilter.request_seen(Request(URL))
    assert dupefilter.request_seen(Request(URL))


def test_from_spider_opens(make: Make) -> None:
    spider = make(is_open=False).crawler.spider
    dupefilter = BloomDupeFilter.from_spider(spider)
    assert dupefilter.filters is not None
    assert not dupefilter.request_seen(Request(URL))
    dupefilter.close("finished")


def named(name: str) -> dict[str, object]:
    return {"BLOOM_REDIS_PARAMS": {"client_name": name}}


def connections(client: redis.Redis, name: str, expected: int) -> int:
    """Count the connections of a name, once the server has noticed what was closed."""
    for _ in range(100):
        found = sum(entry["name"] == name for entry in client.client_list())
        if found == expected:
            break
        time.sleep(0.01)
    return found


def test_close_is_idempotent_and_leaves_no_connection(make: Make, client: redis.Redis) -> None:
    dupefilter = make(**named("closed"))
    dupefilter.request_seen(Request(URL))
    assert connections(client, "closed", 1) == 1
    dupefilter.close("finished")
    dupefilter.close("finished")
    assert connections(client, "closed", 0) == 0


def test_a_failed_open_leaves_no_connection(make: Make, client: redis.Redis) -> None:
    make()
    with pytest.raises(FilterMismatchError):
        make(BLOOM_BLOCKS=3, **named("failed"))
    assert connections(client, "failed", 0) == 0


@pytest.mark.parametrize(
    ("flush", "opened", "cleared"),
    [
        ("never", False, False),
        ("never", True, False),
        ("start", False, True),
        ("start", True, False),
        ("always", False, True),
        ("always", True, True),
    ],
)
def test_bloom_flush_decides_whether_a_flush_clears(
    make: Make,
    flush: str,
    opened: bool,
    cleared: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """scrapy-redis flushes before the spider is opened, and again at close."""
    dupefilter = make(BLOOM_FLUSH=flush)
    dupefilter.request_seen(Request(URL))
    if opened:
        dupefilter._on_spider_opened()
    with caplog.at_level(logging.INFO):
        dupefilter.clear()
    assert ("cleared" in caplog.text) is cleared
    assert ("this flush is ignored" in caplog.text) is not cleared
    assert make().request_seen(Request(URL)) is not cleared


# -- advice at open --


def test_eviction_is_warned_about(
    make: Make, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        make()
    finally:
        client.config_set("maxmemory-policy", "noeviction")
    assert "maxmemory-policy is allkeys-lru" in caplog.text
    caplog.clear()
    make(BLOOM_REMEMBER="crawled")
    assert not caplog.records


def test_an_http_cache_that_never_expires_is_warned_about(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    make(HTTPCACHE_ENABLED=True)
    assert "HTTPCACHE_EXPIRATION_SECS = 0 never expires" in caplog.text
    caplog.clear()
    policy = "scrapy.extensions.httpcache.RFC2616Policy"
    for good in ({"HTTPCACHE_EXPIRATION_SECS": 3600}, {"HTTPCACHE_POLICY": policy}):
        make(BLOOM_REMEMBER="crawled", HTTPCACHE_ENABLED=True, **good)
    assert not caplog.records


class UrlFingerprinter:
    def fingerprint(self, request: Request) -> bytes:
        return request.url.split("?")[0].encode()


def test_a_custom_fingerprinter_is_used(make: Make) -> None:
    dupefilter = make(REQUEST_FINGERPRINTER_CLASS=UrlFingerprinter)
    assert not dupefilter.request_seen(Request(URL))
    assert dupefilter.request_seen(Request("https://example.com/a?other=1"))


def test_another_fingerprinter_than_the_filters_is_warned_about(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    make(BLOOM_REMEMBER="crawled")
    make(BLOOM_REMEMBER="crawled")
    assert not caplog.records
    make(REQUEST_FINGERPRINTER_CLASS=UrlFingerprinter)
    assert "fingerprints of 'scrapy.utils.request.RequestFingerprinter'" in caplog.text
    assert "UrlFingerprinter" in caplog.text


def test_changed_settings_are_applied_once_and_said_in_a_line(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    make()
    changed = {
        "BLOOM_CAPACITY": 20_000,
        "BLOOM_ERROR_RATE": "1e-3",
        "BLOOM_RECRAWL_AFTER": "1 year",
    }
    with caplog.at_level(logging.INFO):
        make(**changed)
        (line,) = [r.getMessage() for r in caplog.records if "settings of the" in r.getMessage()]
        caplog.clear()
        make(**changed)
    assert "BLOOM_CAPACITY = 20000 (was 10000)" in line
    assert "BLOOM_ERROR_RATE = 0.001 (was 1e-05)" in line
    assert "BLOOM_RECRAWL_AFTER = 1 year (was None)" in line
    assert "from the next generation on" in line
    assert "settings of the" not in caplog.text


def test_spiders_that_change_each_others_window_are_warned(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    def change(window: str) -> str:
        """Open under a window; return the warning about the change, if there is one."""
        caplog.clear()
        make(BLOOM_KEY="all", BLOOM_RECRAWL_AFTER=window)
        return "".join(r.getMessage() for r in caplog.records if "settings of" in r.getMessage())

    assert not change("2 months")
    for new, old in (("1 week", "2 months"), ("2 months", "1 week")):
        text = change(new)
        assert f"BLOOM_RECRAWL_AFTER = {new} (was {old})" in text
        assert "remembers those seen since 20" in text
        assert "give each spider a BLOOM_KEY of its own" in text
        assert not change(new)


def test_a_change_of_sizes_is_no_reason_to_warn(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    make(BLOOM_RECRAWL_AFTER="1 week")
    make(BLOOM_RECRAWL_AFTER="1 week", BLOOM_CAPACITY=20_000)
    assert "settings of" not in caplog.text


def test_a_filter_that_outgrows_its_capacity_is_warned_about_once_and_forgets_nothing(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"BLOOM_CAPACITY": 10, "BLOOM_BLOCKS": 2, "BLOOM_ERROR_RATE": 1e-9}
    dupefilter = make(**options)
    requests = [Request(f"https://example.com/{i}") for i in range(100)]
    with caplog.at_level(logging.INFO):
        assert not any(dupefilter.request_seen(request) for request in requests)
    assert all(make().request_seen(request) for request in requests)
    assert "bloom/unrecorded" not in stats(dupefilter)
    assert caplog.text.count("is filled to 80% of its 20 URLs (predicted") == 1
    assert caplog.text.count("holds more URLs than BLOOM_CAPACITY = 10 and grows") == 1
    dupefilter.close("finished")
    assert stats(dupefilter)["bloom/layers"] > 2
    assert 0 < stats(dupefilter)["bloom/estimated_error_rate"] < 1e-9
    assert stats(dupefilter)["bloom/generations"] == 1
    assert 0 < stats(dupefilter)["bloom/fill_ratio"] <= 1


def test_a_full_filter_is_warned_about_and_hides_nothing(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"BLOOM_CAPACITY": 10, "BLOOM_BLOCKS": 1, "BLOOM_ERROR_RATE": 1e-9, "BLOOM_GROWTH": 0}
    dupefilter = make(**options)
    requests = [Request(f"https://example.com/{i}") for i in range(20)]
    assert not any(dupefilter.request_seen(request) for request in requests)
    assert all(dupefilter.request_seen(request) for request in requests), "not twice in a run"
    assert stats(dupefilter)["bloom/unrecorded"] == 10
    assert caplog.text.count("is filled to 80% of its 10 URLs (predicted") == 1
    assert caplog.text.count("cannot grow because of BLOOM_GROWTH = 0") == 1
    caplog.clear()
    make(**options)
    assert "holds 10 of 10 URLs, and BLOOM_GROWTH = 0" in caplog.text


def test_a_full_filter_with_a_window_rotates_early_and_says_so(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"BLOOM_CAPACITY": 10, "BLOOM_BLOCKS": 1, "BLOOM_ERROR_RATE": 1e-9, "BLOOM_GROWTH": 0}
    dupefilter = make(**options, BLOOM_RECRAWL_AFTER="2 years", BLOOM_ROTATE_EVERY="1 year")
    requests = [Request(f"https://example.com/{i}") for i in range(30)]
    assert not any(dupefilter.request_seen(request) for request in requests)
    assert all(dupefilter.request_seen(request) for request in requests), "not twice in a run"
    assert caplog.text.count("the filter rotated early") == 1
    assert stats(dupefilter)["bloom/rotations"] == 1
    assert stats(dupefilter)["bloom/unrecorded"] == 10


# -- named windows --

WINDOWS = {"BLOOM_WINDOWS": {"listing": "1 day"}, "BLOOM_WINDOW_RULES": [(r"/page/\d+", "listing")]}


def test_a_named_window_is_a_filter_of_its_own(make: Make, client: redis.Redis) -> None:
    dupefilter = make(**WINDOWS)
    listing = Request(URL, meta={"bloom_window": "listing"})
    assert not dupefilter.request_seen(listing)
    assert dupefilter.request_seen(listing)
    assert not dupefilter.request_seen(Request(URL)), "the lasting filter does not know it"
    assert make(**WINDOWS).request_seen(listing)
    assert client.exists("{shop:bloom:listing:0}:header")
    assert stats(dupefilter)["bloom/listing/new"] == 1
    assert stats(dupefilter)["bloom/listing/seen"] == 1
    assert stats(dupefilter)["bloom/new"] == 1
    assert stats(dupefilter)["bloom/listing/generations"] == 1


def test_rules_name_the_window_by_the_url(make: Make) -> None:
    dupefilter = make(**WINDOWS)
    page = "https://example.com/page/7"
    assert not dupefilter.request_seen(Request(page))
    assert dupefilter.request_seen(Request(page, meta={"bloom_window": "listing"}))
    assert not dupefilter.request_seen(Request(page, meta={"bloom_window": "lasting"}))
    assert stats(dupefilter)["bloom/new"] == 1


def test_start_requests_go_before_rules_so_that_every_run_begins(make: Make) -> None:
    start = Request("https://example.com/page/1", meta={"is_start_request": True})
    for _ in range(2):
        assert not make(**WINDOWS).request_seen(start)
    assert not make(**WINDOWS, BLOOM_START_WINDOW="listing").request_seen(start)
    assert make(**WINDOWS, BLOOM_START_WINDOW="lasting").request_seen(start), "the rule counts"


def test_what_was_taken_for_the_run_is_seen_in_every_window(make: Make) -> None:
    dupefilter = make(**WINDOWS)
    assert not dupefilter.request_seen(Request(URL, meta={"bloom_window": "run"}))
    assert dupefilter.request_seen(Request(URL, meta={"bloom_window": "listing"}))
    assert dupefilter.request_seen(Request(URL))


def test_flushing_clears_the_filters_of_all_windows(make: Make) -> None:
    dupefilter = make(**WINDOWS, BLOOM_FLUSH="always")
    requests = [Request(URL), Request(URL, meta={"bloom_window": "listing"})]
    assert not any(dupefilter.request_seen(request) for request in requests)
    dupefilter.clear()
    assert not any(dupefilter.request_seen(request) for request in requests)


# -- runs --


def test_a_window_in_runs_is_rotated_by_the_first_worker_of_a_run(make: Make) -> None:
    options = {"BLOOM_RECRAWL_AFTER": "1 run"}
    monday = [make(**options, BLOOM_RUN="monday") for _ in range(2)]
    assert not monday[0].request_seen(Request(URL))
    assert monday[1].request_seen(Request(URL))
    tuesday = [make(**options, BLOOM_RUN="tuesday") for _ in range(2)]
    assert not tuesday[0].request_seen(Request(URL))
    assert tuesday[1].request_seen(Request(URL))
    assert monday[0].request_seen(Request(URL)), "an old worker rotates nothing back"
    assert make(**options, BLOOM_RUN="monday").request_seen(Request(URL))


def test_a_stored_window_in_runs_needs_the_id_of_the_run(make: Make) -> None:
    make(BLOOM_RECRAWL_AFTER="2 runs", BLOOM_RUN="a")
    with pytest.raises(ConfigurationError, match="2 runs, counts runs, and BLOOM_RUN is not set"):
        make()


# -- trouble --


def test_open_without_a_server_names_address_and_remedy(make: Make) -> None:
    with pytest.raises(StorageError, match=r"redis://localhost:1/0.* BLOOM_REDIS_URL ="):
        make(BLOOM_REDIS_URL="redis://:s3cret@localhost:1/0")


def test_a_server_that_goes_away_makes_requests_new_once(
    make: Make, server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """An unknown outcome is the verdict "new", final for this process; nothing is raised."""
    dupefilter = make(BLOOM_TIMEOUT=0.05)
    client.client_pause(300)
    assert dupefilter.request_seen(Request(URL)) is False
    assert dupefilter.request_seen(Request(URL)) is True
    client.client_unpause()
    assert stats(dupefilter)["bloom/unknown"] == stats(dupefilter)["bloom/outages"] == 1
    assert "did not answer in time" in caplog.text


class Unprintable:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no truth")

    __hash__ = None

    def __repr__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "meta",
    [
        {"bloom_window": Unprintable()},
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
    """Counted as new, a site with a loop would be crawled for ever."""

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

    monkeypatch.setattr(dupefilter._deduplicator, "_decide", fail)
    assert dupefilter.request_seen(Request(URL)) is False
    assert dupefilter.request_seen(Request(URL)) is True
    assert stats(dupefilter)["bloom/unknown"] == 2
    assert caplog.text.count("are remembered by this process for this run only") == 1


def test_a_part_that_is_lost_is_counted_and_said(
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


def test_after_close_nothing_is_asked_and_nothing_reconnects(
    make: Make, client: redis.Redis
) -> None:
    dupefilter = make(**named("late"))
    dupefilter.close("finished")
    assert dupefilter.request_seen(Request(URL)) is False
    assert connections(client, "late", 0) == 0


def test_a_flush_that_fails_at_the_end_does_not_stop_the_scheduler(
    make: Make, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """scrapy-redis clears its queue after the dupefilter; at the start the error is raised."""
    dupefilter = make(BLOOM_FLUSH="always", BLOOM_TIMEOUT=0.05)
    client.client_pause(400)
    with pytest.raises(StorageError):
        dupefilter.clear()
    dupefilter._on_spider_opened()
    dupefilter.clear()
    client.client_unpause()
    assert "not cleared" in caplog.text


def test_a_spider_without_a_name_has_a_filter(make: Make, client: redis.Redis) -> None:
    crawler = make(is_open=False).crawler
    crawler.spider = None
    crawler.spidercls = type("Nameless", (), {})
    assert BloomDupeFilter.from_crawler(crawler).settings.key == "spider:bloom"


def test_signals_of_the_crawl_reach_the_filter(make: Make) -> None:
    """scrapy-redis's scheduler closes nothing; and the flush at the end is told by a signal."""
    dupefilter = make(BLOOM_FLUSH="start")
    dupefilter.request_seen(Request(URL))
    dupefilter.crawler.signals.send_catch_log(signals.spider_opened, spider=None)
    dupefilter.clear()
    assert dupefilter.request_seen(Request(URL)), "cleared at the end"
    dupefilter.crawler.signals.send_catch_log(signals.spider_closed, spider=None, reason="")
    assert dupefilter.filters is None


def test_an_unusable_setting_raises_when_the_filter_is_built(make: Make) -> None:
    with pytest.raises(ConfigurationError, match="BLOOM_CAPACITY"):
        make(is_open=False, BLOOM_CAPACITY=0)


def test_requests_carry_nothing_of_the_filter(make: Make) -> None:
    """They are pickled into scrapy-redis's queue."""
    request = Request(URL)
    make().request_seen(request)
    assert request.meta == {}
    assert pickle.loads(pickle.dumps(request)).url == URL


def test_what_fails_after_the_filters_are_open_is_raised_and_leaves_no_thread(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*args: object) -> None:
        raise StorageError("the server went away")

    monkeypatch.setattr(Reclaimer, "begin", fail)

    async def open_in_loop() -> None:
        dupefilter = make(is_open=False, BLOOM_REMEMBER="crawled", JOBDIR=str(tmp_path))
        with pytest.raises(StorageError, match="the server went away"):
            dupefilter.open()
        assert dupefilter.filters is None

    asyncio.run(open_in_loop())
    assert not any(thread.name == "scrapy-bloom" for thread in threading.enumerate())
