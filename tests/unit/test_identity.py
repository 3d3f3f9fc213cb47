"""What identifies a request: its fingerprint or its ``bloom_key``, and its window."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy.spiders import SitemapSpider
from scrapy.utils.request import RequestFingerprinter

from scrapy_bloom.bloom.protocol.rings import DEFAULT
from scrapy_bloom.crawl import identity
from scrapy_bloom.crawl.identity import MAX_FINGERPRINT, FingerprintCache, Identity
from scrapy_bloom.crawl.monitor import Monitor
from scrapy_bloom.rules import RUN
from scrapy_bloom.settings import BloomSettings

URL = "https://example.com/a"
#: Parts of URLs in which canonicalization has something to do.
parts = st.text(st.sampled_from("abAB09-._~%/ä€ +;:@&=?"), max_size=12)
urls = st.builds(
    "{0}://{1}/{2}?{3}&{4}#{5}".format,
    st.sampled_from(["http", "HTTPS"]),
    st.sampled_from(["example.com", "EXAMPLE.com:80", "bücher.example", "[::1]:8080"]),
    *([parts] * 4),
)
requests = st.builds(
    Request,
    urls,
    method=st.sampled_from(["GET", "post", "PUT", "HEAD"]),
    body=st.one_of(st.none(), st.binary(max_size=20), st.text("aä", max_size=9)),
    headers=st.dictionaries(st.sampled_from(["Accept", "X-A"]), st.just("x"), max_size=2),
    meta=st.dictionaries(st.sampled_from(["verbatim_url", "bloom_key"]), st.just("x"), max_size=2),
)


class Long:
    """A fingerprinter of a project's own, whose fingerprints are the URLs."""

    def fingerprint(self, request: Request) -> bytes:
        return request.url.encode()


def make(
    rules: Sequence[object] = (), spider: type[Spider] = Spider, fingerprinter: object = None
) -> Identity:
    crawler = Crawler(spider)
    crawler.spider = spider(name="shop")
    crawler.request_fingerprinter = fingerprinter or RequestFingerprinter()  # type: ignore[assignment]
    own = BloomSettings.read(Settings({"BLOOM_RECRAWL_RULES": [*rules]}), "shop")
    return Identity(crawler, own.rules(), Monitor(None))


def key(meta: dict[str, Any], own: Identity | None = None, url: str = URL) -> tuple[str, bytes]:
    return (own or make()).key(Request(url, meta=meta))


# -- fingerprints --


@given(requests)
def test_a_cached_fingerprint_is_that_of_scrapys_fingerprinter(request: Request) -> None:
    own = RequestFingerprinter()
    find = FingerprintCache(own.fingerprint)
    for one in (request, request, request.copy()):
        assert find(one) == own.fingerprint(one)


class Counted:
    """Counts the fingerprints it makes."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, request: Request) -> bytes:
        self.made += 1
        return RequestFingerprinter().fingerprint(request)


def test_other_requests_are_fingerprinted_each_time() -> None:
    make = Counted()
    find = FingerprintCache(make)
    url = "https://example.com/#a"
    found = {
        find(Request(url)),
        find(Request(url, method="POST")),
        find(Request(url, body=b"a")),
        find(Request(url, meta={"verbatim_url": True})),
    }
    assert make.made == 4
    verbatim = RequestFingerprinter().fingerprint(Request(url, meta={"verbatim_url": True}))
    assert len(found) == (4 if verbatim != find(Request(url)) else 3)  # Scrapy 2.13 ignores it


def test_the_latest_urls_are_cached_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "MAX_CACHED", 10)
    make = Counted()
    find = FingerprintCache(make)
    pages = [Request(f"https://example.com/{number}") for number in range(100)]
    for page in pages:
        find(page)
    assert make.made == 100
    for page in pages[-10:]:
        find(page)
    assert make.made == 100
    find(pages[0])
    assert make.made == 101


def test_a_projects_own_fingerprinter_is_asked_each_time() -> None:
    class Keyed(RequestFingerprinter):
        def fingerprint(self, request: Request) -> bytes:
            return str(request.meta.get("id")).encode()

    own = make(fingerprinter=Keyed())
    assert [key({"id": one}, own)[1] for one in (1, 2, 1)] == [b"1", b"2", b"1"]


@given(st.integers(0, 2 * MAX_FINGERPRINT), st.integers(0, 2 * MAX_FINGERPRINT))
def test_fingerprints_of_any_length_are_short_and_differ(first: int, other: int) -> None:
    own = make(fingerprinter=Long())
    found = [key({}, own, f"{URL}{'x' * size}")[1] for size in (first, other)]
    assert all(len(item) <= MAX_FINGERPRINT for item in found)
    assert (found[0] == found[1]) == (first == other)


# -- bloom_key --


def test_a_key_stands_for_the_page_whatever_its_url() -> None:
    first = key({"bloom_key": "1"})
    assert first == key({"bloom_key": "1"}, url="https://example.com/b")
    assert first == key({"bloom_key": b"1"})
    of_url = key({})
    assert len({first, key({"bloom_key": "2"}), key({"bloom_key": of_url[1]}), of_url}) == 4


@pytest.mark.parametrize("value", ["", b"", None, 3, ["1"]])
def test_another_key_is_ignored(value: object) -> None:
    assert key({"bloom_key": value}) == key({})


def test_a_key_may_be_any_text_of_any_length() -> None:
    found = {key({"bloom_key": text})[1] for text in ("\ud800", "é" * 500, "é" * 501)}
    assert len(found) == 3
    assert max(map(len, found)) <= MAX_FINGERPRINT


# -- windows --


def test_the_window_is_that_of_the_first_rule() -> None:
    own = make([("/a", "1 day"), ("/", "run")])
    assert key({}, own)[0] == "1-day"
    assert key({}, own, "https://example.com/b")[0] == RUN
    assert key({})[0] == DEFAULT


def test_a_start_request_is_remembered_for_the_run_and_requests_that_copy_its_meta_are_not() -> (
    None
):
    assert key({"is_start_request": True})[0] == RUN
    assert key({"is_start_request": True, "depth": 1})[0] == DEFAULT


def test_a_start_request_is_plain_if_nothing_gives_it_a_window() -> None:
    own = make([("/a", "run")])

    def is_plain(url: str, by: Identity = own, **meta: object) -> bool:
        return by.is_plain_start(Request(url, meta=meta))

    assert is_plain("https://example.com/b")
    assert not is_plain("https://example.com/a")
    assert not is_plain("https://example.com/b", bloom_recrawl_after="run")
    assert not is_plain("https://example.com/b", bloom_enabled=False)
    assert not is_plain("https://example.com/b", make(spider=SitemapSpider))


def test_a_sitemap_is_remembered_for_the_run_whatever_the_rules_are() -> None:
    own = make([("", "default")], spider=SitemapSpider)
    assert own.key(Request(URL, meta={"is_start_request": True}))[0] == RUN
    parse = own._crawler.spider._parse_sitemap
    assert own.key(Request(URL, callback=parse))[0] == RUN
    assert own.key(Request(URL))[0] == DEFAULT


@pytest.mark.parametrize(
    ("asked", "window"),
    [("run", RUN), ("default", DEFAULT), ("24 hours", "1-day"), ("never", DEFAULT)],
)
def test_a_request_chooses_its_window(asked: str, window: str) -> None:
    own = make([("/a", "1 day")])
    for meta in ({}, {"is_start_request": True}):
        assert key({"bloom_recrawl_after": asked, **meta}, own)[0] == window


@pytest.mark.parametrize(
    "asked", ["3 days", "soon", "2", 7, ["1 day"], pytest.param(10**5_000, id="huge")]
)
def test_a_window_that_no_setting_has_warns_and_the_rules_count(
    asked: object, caplog: pytest.LogCaptureFixture
) -> None:
    own = make([("/a", "1 day")])
    assert key({"bloom_recrawl_after": asked}, own) == key({}, own)
    assert "so BLOOM_RECRAWL_RULES applies" in caplog.text
