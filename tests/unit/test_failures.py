"""Why a page failed, in words: the exception, without what nobody else may read."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.http import Response
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule
from twisted.internet import error
from twisted.python.failure import Failure
from twisted.web.client import ResponseFailed

from scrapy_bloom.crawl.failures import describe, of_pipeline, redact

URL = "https://example.com/"
SECRET = "S3CRET"


class BrokenError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def parse_item(response: Response) -> Any: ...


def of_exception(error: Exception) -> str:
    return describe(Request(URL), Failure(error))


def of_callback(error: Exception, **request: Any) -> str:
    return describe(Request(URL, **request), Response(URL), error)


def test_statuses_and_exceptions() -> None:
    assert describe(Request(URL), Response(URL, status=503)) == "HTTP 503"
    found = of_exception(error.DNSLookupError("no results for hostname lookup: x"))
    assert found == "DNS lookup failed: no results for hostname lookup: x."
    found = of_exception(error.TimeoutError("took too long"))
    assert found == "TimeoutError: User timeout caused connection failure: took too long."
    failed = ResponseFailed([Failure(error.ConnectionLost("in a non-clean way"))])
    text = "Connection to the other side was lost in a non-clean fashion: in a non-clean way."
    assert of_exception(failed) == f"ConnectionLost: {text}"
    assert of_exception(ValueError()) == "ValueError"
    assert of_exception(BrokenError()) == "BrokenError"


def test_callbacks() -> None:
    assert of_callback(KeyError("price")) == "parse: KeyError: 'price'"
    assert of_callback(KeyError("price"), callback=parse_item) == "parse_item: KeyError: 'price'"
    assert of_callback(KeyError(), callback=lambda _: None) == "<lambda>: KeyError"


class Rules(CrawlSpider):
    name = "rules"
    rules = (Rule(LinkExtractor(), callback="parse_item"), Rule(LinkExtractor(), follow=True))

    def parse_item(self, response: Response) -> None: ...


def test_callbacks_of_rules_are_named() -> None:
    """CrawlSpider calls them by a method of its own."""
    spider = Rules()
    told = [
        of_callback(KeyError(), callback=spider._callback, meta=meta)
        for meta in ({"rule": 0}, {"rule": 1}, {"rule": 7}, {"rule": None}, {})
    ]
    assert told == ["parse_item: KeyError", "callback: KeyError", *["_callback: KeyError"] * 3]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Getting http://u:p@h/x?key=1 took 9 s", "Getting http://***@h/x?*** took 9 s"),
        ("('https://u:pa/ss@h:1/', 'x')", "('https://***@h:1/', 'x')"),
        ("postgresql://u:p@h/db refused", "postgresql://***@h/db refused"),
    ],
)
def test_urls_are_shown_without_secrets(text: str, shown: str) -> None:
    assert redact(text) == shown


@given(
    st.text(st.characters(exclude_categories=["Z", "C"]), max_size=9),
    st.sampled_from(["h", "h/a", "h:1?x=1", "[::1]"]),
)
def test_a_password_never_survives(password: str, after: str) -> None:
    url = f"https://user:{SECRET}{password}{SECRET}@{after}"
    assert SECRET not in redact(f"Getting {url}")
    assert SECRET not in redact(f"'{url}'")


def test_pipelines() -> None:
    assert of_pipeline(ConnectionError("database is down")) == (
        "pipeline: ConnectionError: database is down"
    )
    secret = f"postgres://shop:{SECRET}@db/items is away"
    assert of_pipeline(OSError(secret)) == "pipeline: OSError: postgres://***@db/items is away"
    assert of_pipeline(BrokenError()) == "pipeline: BrokenError"
