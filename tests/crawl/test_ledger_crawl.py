"""``BLOOM_LEDGER``: pages that no page links any more are fetched again, once in every window."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.clock import MovedServer
from support.odd_site import SHARED_QUEUE, Done, Lab, OddSite, page, serve
from support.odd_site import moved as moved_to

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


CALLBACKS = """
class Own(OddSpider):
    def parse(self, response):
        for url in response.css("a::attr(href)").getall():
            yield response.follow(url, self.parse_item, meta={"list": [url]},
                                  headers={"X-Own": "1"}, cb_kwargs={"number": 7})

    def parse_item(self, response, number):
        self.crawler.stats.inc_value(f"item {response.meta['list']} {number}")
        yield {"url": response.url}
"""


def test_requests_come_back_as_they_were_and_once(lab: Lab, moved: MovedServer) -> None:
    settings = {**SHARED_QUEUE, "spider": CALLBACKS, "BLOOM_REMEMBER": "items"}
    crawl(lab, **settings)
    unlink(lab.site)
    move_to(moved, *LATER)
    again = crawl(lab, **settings)
    assert again.hits == Counter(["/", *PAGES])
    assert all(again.stats[f"item ['{path}'] 7"] == 1 for path in PAGES)
    assert lab.site.fetches[-1].headers["X-Own"] == "1"
    assert crawl(lab, **settings).hits == Counter(["/"])


REDIRECTED = """
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


@pytest.mark.parametrize(("queue", "keeps"), [({}, True), (SHARED_QUEUE, False)])
def test_what_middlewares_of_the_downloader_set_is_not_stored_with_a_redirects_target(
    lab: Lab, moved: MovedServer, queue: dict[str, Any], keeps: bool
) -> None:
    settings = {**queue, "BLOOM_KEEP_HEADERS": keeps}
    lab.site.pages |= {"/": page("/1"), "/1": moved_to("/2"), "/2": moved_to("/3"), "/3": page()}
    crawl(lab, spider=REDIRECTED, **settings)
    keys = Keys("odd:bloom")
    entries: list[Any] = []
    for block in range(16):
        entries += lab.client.lrange(keys.entries(block), 0, -1)
    stored = {one["url"]: one for one in (json.loads(entry.split(b" ", 2)[2]) for entry in entries)}
    assert {*stored} == {f"{lab.site.url}/{number}" for number in (1, 2, 3)}
    for request in stored.values():
        assert [name for name, *_ in request["headers"]] in (["X-Own"], ["X-Own", "Referer"])
        kept = {"own", "max_retry_times", "depth", "bloom_claims"}
        assert request["meta"].keys() - kept <= {
            *("redirect_urls", "redirect_times", "redirect_ttl", "redirect_reasons")
        }
        assert kept <= request["meta"].keys()


def test_a_filter_that_never_forgets_is_warned_about(lab: Lab) -> None:
    done = crawl(lab, BLOOM_RECRAWL_AFTER="never")
    assert "[bloom-ledger-unused]" in done.log
    assert done.stats.get("bloom/ledger_added") is None
