"""``BLOOM_LEDGER``: pages that no page links any more are fetched again, once in every window."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.clock import MovedServer
from support.odd_site import ERROR, SHARED_QUEUE, Done, Lab, OddSite, page, serve
from support.odd_site import moved as moved_to

from scrapy_bloom.bloom.model import ledger
from scrapy_bloom.bloom.model.keys import Keys

LEDGER: dict[str, Any] = {"BLOOM_LEDGER": True, "BLOOM_RECRAWL_AFTER": "6 months"}
PAGES = [f"/{number}" for number in range(40)]
#: Half a year later; then another half a year.
LATER, MUCH_LATER = (2027, 7, 20), (2028, 1, 20)


@pytest.fixture
def lab(moved: MovedServer, tmp_path: Path) -> Iterator[Lab]:
    """A site of a start page that links all others."""
    pages = {"/": page(*PAGES), **{path: page("/") for path in PAGES}}
    with serve(pages) as site, Lab(site, moved.url, tmp_path) as lab:
        yield lab


def move_to(moved: MovedServer, year: int, month: int, day: int) -> None:
    moved.set_time(datetime(year, month, day, 12, tzinfo=UTC))


def crawl(lab: Lab, **settings: Any) -> Done:
    return lab.crawl(**{**LEDGER, **settings})


def unlink(site: OddSite, *left: str) -> None:
    """Take all links off the start page but some."""
    site.pages["/"] = page(*left)


def missing(lab: Lab) -> Mapping[str, tuple[int, str]]:
    """Return the pages that are noted as missing: path -> times, and why."""
    found = {}
    for block in range(16):
        for value in lab.client.hvals(Keys("odd:bloom").missing(block)):
            _, _, times, why, url = value.decode().split(" ", 4)
            found[url.removeprefix(lab.site.url)] = int(times), why
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {"BLOOM_BATCH": 0, "BLOOM_CAPACITY": 20, "BLOOM_BLOCKS": 1},
        SHARED_QUEUE,
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_it_works_under_other_settings(
    lab: Lab, moved: MovedServer, settings: dict[str, Any]
) -> None:
    crawl(lab, **settings)
    unlink(lab.site)
    move_to(moved, *LATER)
    assert crawl(lab, **settings).hits == Counter(["/", *PAGES])
    assert crawl(lab, **settings).hits == Counter(["/"])


def test_pages_that_are_missing_for_two_windows_are_gone(lab: Lab, moved: MovedServer) -> None:
    crawl(lab)
    assert missing(lab) == {}
    unlink(lab.site)
    del lab.site.pages["/1"], lab.site.pages["/2"]
    move_to(moved, *LATER)
    assert crawl(lab).hits == Counter(["/", *PAGES])
    assert missing(lab) == {"/1": (1, "!HTTP+404"), "/2": (1, "!HTTP+404")}
    lab.site.pages["/2"] = page()
    move_to(moved, *MUCH_LATER)
    assert crawl(lab).hits == Counter(["/", *PAGES])
    assert missing(lab) == {"/1": (2, "!HTTP+404")}
    move_to(moved, 2028, 7, 20)
    assert crawl(lab).hits == Counter(["/", *PAGES]) - Counter(["/1"])


@pytest.mark.slow
def test_a_page_that_fails_each_time_is_tried_five_times_a_window_and_gone_after_two(
    lab: Lab, moved: MovedServer
) -> None:
    settings = {"RETRY_ENABLED": False, "BLOOM_RETRY_AFTER": "1 minute"}
    crawl(lab)
    unlink(lab.site)
    lab.site.pages["/1"] = ERROR
    for times, (year, month) in enumerate([(2027, 7), (2028, 1)], 1):
        for day in range(20, 25):
            move_to(moved, year, month, day)
            assert crawl(lab, **settings).hits["/1"] == 1
        assert missing(lab) == {"/1": (times, "!HTTP+500")}
        move_to(moved, year, month, 28)
        assert crawl(lab, **settings).hits == Counter(["/"])
    move_to(moved, 2028, 7, 20)
    assert crawl(lab, **settings).hits["/1"] == 0


CALLBACKS = """
from support.odd_site import OddSpider
from scrapy import Request

class Own(OddSpider):
    def parse(self, response):
        for url in response.css("a::attr(href)").getall():
            yield response.follow(url, self.parse_item, meta={"list": [url]},
                                  headers={"X-Own": "1"}, cb_kwargs={"number": 7})

    def parse_item(self, response, number):
        self.crawler.stats.inc_value(f"item {response.meta['list']} {number}")
        yield {"url": response.url}
"""


def test_requests_come_back_as_they_were(lab: Lab, moved: MovedServer) -> None:
    crawl(lab, spider=CALLBACKS, BLOOM_REMEMBER="items")
    unlink(lab.site)
    move_to(moved, *LATER)
    again = crawl(lab, spider=CALLBACKS, BLOOM_REMEMBER="items")
    assert again.hits == Counter(["/", *PAGES])
    assert all(again.stats[f"item ['{path}'] 7"] == 1 for path in PAGES)
    assert lab.site.fetches[-1].headers["X-Own"] == "1"


REDIRECTED = """
from support.odd_site import OddSpider

class Sets:
    def process_request(self, request, spider=None):
        request.headers["User-Agent"] = request.headers["Authorization"] = "S3CRET"
        request.meta["proxy"] = "http://user:S3CRET@" + request.url.split("/")[2]
        request.meta["download_timeout"] = 77

class Redirected(OddSpider):
    custom_settings = {"DOWNLOADER_MIDDLEWARES": {Sets: 100}, "RETRY_TIMES": 1}

    def parse(self, response):
        yield from self.links(response, meta={"own": 1, "max_retry_times": 1},
                              headers={"X-Own": "mine"})
"""


@pytest.mark.parametrize(
    ("queue", "keeps"), [({}, True), (SHARED_QUEUE, False)], ids=["memory", "redis"]
)
def test_what_middlewares_of_the_downloader_set_is_not_stored_with_a_redirects_target(
    lab: Lab, moved: MovedServer, queue: dict[str, Any], keeps: bool
) -> None:
    settings = {**queue, "BLOOM_KEEP_HEADERS": keeps}
    lab.site.pages |= {"/": page("/1"), "/1": moved_to("/2"), "/2": moved_to("/3"), "/3": page()}
    crawl(lab, spider=REDIRECTED, **settings)
    keys = Keys("odd:bloom")
    entries = [entry for block in range(16) for entry in raw(lab, "LRANGE", keys.entries(block))]
    stored = {one["url"]: one for one in (json.loads(entry.split(b" ", 2)[2]) for entry in entries)}
    assert {*stored} == {f"{lab.site.url}/{number}" for number in (1, 2, 3)}
    for request in stored.values():
        assert [name for name, *_ in request["headers"]] in (["X-Own"], ["X-Own", "Referer"])
        kept = {"own", "max_retry_times", "depth", "bloom_claims"}
        assert request["meta"].keys() - kept <= {
            *("redirect_urls", "redirect_times", "redirect_ttl", "redirect_reasons")
        }
        assert kept <= request["meta"].keys()


VERSIONS = """
from support.odd_site import OddSpider

class Versions(OddSpider):
    def parse(self, response):
        for url in response.css("a::attr(href)").getall():
            path, _, version = url.partition("?")
            yield response.follow(path, meta={"bloom_version": version} if version else {})
"""


def test_a_changed_page_is_fetched_once_in_a_window(lab: Lab, moved: MovedServer) -> None:
    """Else the page and its version would be due by turns."""
    settings = {"BLOOM_RECRAWL_AFTER": "2 months", "spider": VERSIONS}
    fetched = []
    for month in range(1, 8):
        lab.site.pages["/"] = page("/1?a") if month == 1 else page("/1?b")
        move_to(moved, 2027, month, 16)
        if crawl(lab, **settings).hits["/1"]:
            fetched.append(month)
    assert fetched == [1, 2, 4, 6]


def raw(lab: Lab, command: str, key: str) -> list[bytes]:
    """Return all members of a list, or of a sorted set."""
    found: list[bytes] = lab.client.execute_command(command, key, 0, -1)
    return found


def test_a_filter_that_never_forgets_is_warned_about(lab: Lab) -> None:
    done = crawl(lab, BLOOM_RECRAWL_AFTER="never")
    assert "[bloom-ledger-unused]" in done.log
    assert done.stats.get("bloom/ledger_added") is None


def test_the_ledger_holds_no_claims(lab: Lab, moved: MovedServer) -> None:
    """They would take more room than all the rest, and lead to claims of long ago."""
    crawl(lab)
    keys = Keys("odd:bloom")
    entries = [entry for block in range(16) for entry in raw(lab, "LRANGE", keys.entries(block))]
    assert len(entries) == len(PAGES)
    assert all(b"bloom_claims" in entry for entry in entries), "as the claims had them"
    move_to(moved, 2027, 3, 20)
    unlink(lab.site)
    assert crawl(lab).hits == Counter(["/"])
    chunks: list[Any] = [
        chunk for block in range(16) for chunk in lab.client.hvals(keys.chunks(block))
    ]
    requests = [request for chunk in chunks for request in ledger.unpack(chunk)]
    urls = sorted(json.loads(request)["url"] for request in requests)
    assert urls == sorted(lab.site.url + path for path in PAGES)
    assert not any("bloom_claims" in request for request in requests)


# -- rules that change --

TENS = "/1[0-9]$"


def ruled(window: str) -> dict[str, str]:
    """Return settings in which ten of the pages have a window of their own; "" for none."""
    return {"BLOOM_RECRAWL_RULES": json.dumps([[TENS, window]] if window else [])}


@pytest.mark.parametrize(
    ("before", "now"),
    [("60 days", "6 weeks"), pytest.param("2 months", "", marks=pytest.mark.slow)],
)
def test_pages_whose_window_is_gone_are_proposed_in_the_one_that_they_have_now(
    lab: Lab, moved: MovedServer, before: str, now: str
) -> None:
    crawl(lab, **ruled(before))
    unlink(lab.site)
    assert crawl(lab, **ruled(now)).hits == Counter(["/", *PAGES[10:20]])
    assert crawl(lab, **ruled(now)).hits == Counter(["/"])
    move_to(moved, *LATER)
    assert crawl(lab, **ruled(now)).hits == Counter(["/", *PAGES])
    assert crawl(lab, **ruled(now)).hits == Counter(["/"])


OTHER = "from support.odd_site import OddSpider\n\nclass Other(OddSpider):\n    name = 'other'\n"


def test_a_spider_with_other_rules_moves_only_its_own_pages(lab: Lab, moved: MovedServer) -> None:
    shared = {"BLOOM_KEY": "odd:bloom"}
    crawl(lab, **shared, **ruled("2 months"))
    unlink(lab.site)
    for _ in range(2):
        assert crawl(lab, spider=OTHER, **shared, **ruled("1 month")).hits == Counter(["/"])
        assert crawl(lab, **shared, **ruled("2 months")).hits == Counter(["/"])
    move_to(moved, 2027, 5, 20)
    assert crawl(lab, spider=OTHER, **shared, **ruled("1 month")).hits == Counter(["/"])
    assert crawl(lab, **shared, **ruled("2 months")).hits == Counter(["/", *PAGES[10:20]])
