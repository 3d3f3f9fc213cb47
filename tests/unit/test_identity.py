"""Cached fingerprints are Scrapy's own; a fingerprinter that may look at more has no cache."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.http import FormRequest, JsonRequest
from scrapy.utils.request import RequestFingerprinter

from scrapy_bloom.crawl import identity
from scrapy_bloom.crawl.identity import FingerprintCache, cached
from scrapy_bloom.fingerprinter import ScrapyRedisFingerprinter


class Counted:
    """Counts the fingerprints it makes."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, request: Request) -> bytes:
        self.made += 1
        return RequestFingerprinter().fingerprint(request)


@pytest.mark.parametrize("cls", [RequestFingerprinter, ScrapyRedisFingerprinter])
@given(st.text(st.sampled_from(list("ab/?&=#%;: \t\n\\@.é")), max_size=12))
def test_they_are_those_of_the_fingerprinter(cls: type[Any], path: str) -> None:
    find = cached(cls())
    assert isinstance(find, FingerprintCache)
    url = f"https://example.com/{path}"
    requests = [
        *(Request(url), JsonRequest(url, data=[]), FormRequest(url, formdata={"a": "b"})),
        *(Request(url, method=method) for method in ("get", "POST", "HEAD")),
        *(
            Request(url, body=b"a"),
            Request(url, headers={"Accept": "a"}),
            Request(url, cookies={"a": "b"}),
        ),
        *(Request(url, meta={"verbatim_url": is_verbatim}) for is_verbatim in (True, False)),
    ]
    for request in requests * 2:
        assert find(request) == cls().fingerprint(request)


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
