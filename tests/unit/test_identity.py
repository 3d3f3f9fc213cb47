"""Fingerprints: Scrapy's own are cached, and scrapy-redis's are made; long ones are hashed."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.utils.request import RequestFingerprinter
from scrapy_redis.dupefilter import RFPDupeFilter

from scrapy_bloom.crawl import identity
from scrapy_bloom.crawl.identity import FingerprintCache, cached
from scrapy_bloom.fingerprinter import (
    HASH_BYTES,
    MAX_FINGERPRINT,
    MAX_VERSION,
    VERSIONED,
    ScrapyRedisFingerprinter,
    base_of,
    bounded,
    version_of,
    versioned,
)

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


def theirs(request: Request) -> bytes:
    return bytes.fromhex(RFPDupeFilter(None, "key").request_fingerprint(request))


@given(requests)
def test_cached_ones_are_those_of_the_fingerprinter_and_of_scrapy_redis(request: Request) -> None:
    for own in (RequestFingerprinter(), ScrapyRedisFingerprinter()):
        find = cached(own)
        assert isinstance(find, FingerprintCache)
        for one in (request, request, request.copy()):
            assert find(one) == own.fingerprint(one)
    assert ScrapyRedisFingerprinter().fingerprint(request) == theirs(request)


class Counted:
    """Counts the fingerprints it makes."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, request: Request) -> bytes:
        self.made += 1
        return RequestFingerprinter().fingerprint(request)


def test_a_url_is_fingerprinted_once_with_any_fragment() -> None:
    make = Counted()
    find = FingerprintCache(make)
    urls = ["https://example.com/", "https://example.com/#a", "https://example.com/#a#b"]
    assert len({find(Request(url)) for url in urls * 3}) == 1
    assert make.made == 1


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


def test_the_latest_urls_are_kept_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "HALF", 10)
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


class Own(RequestFingerprinter):
    """A project's own, as plug-ins have them."""


class Keyed:
    """One that looks at more than it is known for, as a later version of Scrapy may."""

    key = "depth"

    def fingerprint(self, request: Request) -> bytes:
        return str(request.meta.get(self.key)).encode()


def test_a_fingerprinter_that_may_look_at_more_has_no_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not isinstance(cached(Own()), FingerprintCache)
    monkeypatch.setattr(identity, "KNOWN", (Keyed,))
    assert not isinstance(cached(Keyed()), FingerprintCache)


@given(st.binary(max_size=2 * MAX_FINGERPRINT), st.binary(max_size=2 * MAX_FINGERPRINT))
def test_what_filters_hold_is_short_and_tells_apart_what_differs(
    first: bytes, other: bytes
) -> None:
    assert len(bounded(first)) <= MAX_FINGERPRINT
    assert (bounded(first) == bounded(other)) == (first == other)
    if len(first) <= MAX_FINGERPRINT and not first.startswith(VERSIONED):
        assert bounded(first) == first


# -- items of versions --

fingerprints = st.one_of(
    st.binary(max_size=2 * MAX_FINGERPRINT), st.binary(max_size=30).map(VERSIONED.__add__)
).map(bounded)
versions = st.text(min_size=1, max_size=20).map(lambda text: text.encode("utf-8", "replace"))


@given(st.lists(st.tuples(fingerprints, st.none() | versions), max_size=20))
def test_items_tell_urls_and_versions_apart_and_name_their_url(
    requests: Sequence[tuple[bytes, bytes | None]],
) -> None:
    """Exact: as many items as there are different pairs, and each leads back to its URL."""
    items = dict[bytes, tuple[bytes, bytes | None]]()
    for fingerprint, version in requests:
        item = fingerprint if version is None else versioned(fingerprint, version)
        assert base_of(item) == (None if version is None else fingerprint)
        assert len(item) <= MAX_FINGERPRINT + len(VERSIONED) + HASH_BYTES
        assert items.setdefault(item, (fingerprint, version)) == (fingerprint, version)
    assert len(items) == len(set(requests))


@pytest.mark.parametrize(
    ("meta", "version"),
    [
        ({}, b""),
        ({"bloom_version": "2026-01-02"}, b"2026-01-02"),
        ({"bloom_version": "\ud800"}, b"\xed\xa0\x80"),
        ({"bloom_version": "é" * (MAX_VERSION // 2)}, "é".encode() * (MAX_VERSION // 2)),
        ({"bloom_version": "é" * (MAX_VERSION // 2) + "a"}, b""),
        *(({"bloom_version": value}, b"") for value in ("", None, 3, b"1", ["1"])),
    ],
)
def test_versions_are_short_texts(meta: dict[str, Any], version: bytes) -> None:
    assert version_of(meta) == version
