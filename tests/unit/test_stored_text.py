"""Stored text may be anything: it is read as a request, or refused, and runs nothing."""

import sys
from types import MethodType, ModuleType
from typing import Any

import pytest
from scrapy import Request, Spider
from support import stored_requests as kinds
from support.stored_requests import (
    OTHER,
    SPIDER,
    assert_bad,
    assert_kept,
    assert_refused,
    of,
    sample,
    stored,
)

from scrapy_bloom.crawl.request_codec import dump, load
from scrapy_bloom.crawl.request_values import MAX_LENGTH

MODULE = kinds.__name__


def held(value: object) -> str:
    return stored(meta={"a": value})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "TypeError"),
        (stored(body="x" * MAX_LENGTH), "more than 65,536 characters"),
        ("", "JSONDecodeError"),
        ("[]", "not a JSON object"),
        ("{}", "URL of a page"),
        ('{"url":"https://a/","meta":{"a":' + "[" * 40 + "]" * 40 + "}}", "nested too deeply"),
        (stored(url=1), "URL of a page"),
        (stored(url="file:///etc/passwd"), "URL of a page"),
        (stored(url="https://a/" + " " * 60_000), "not as Scrapy writes it"),
        (stored(url="https://["), "ValueError|Invalid|IPv6"),
        (stored(headers=[["a", "\u1234"]]), "UnicodeEncodeError"),
        (stored(priority=1.0), "priority"),
        (stored(_class=of(kinds.TokenRequest), more=1), "TypeError.*more"),
        (stored(_class=f"{MODULE}:RaisingRequest"), "KeyError"),
        (held({"timedelta": "9" * 999 + " 0 0"}), "OverflowError"),
        (held({"enum": [of(kinds.Price), "currency"]}), "Price is not a class of kind enum"),
        (held({"enum": ["os:environ", "PATH"]}), "not imported"),
        (held({"dataclass": [of(Spider), {}]}), "Spider is not a class of kind dataclass"),
        (held({"dataclass": [of(kinds.PriceError), {"amount": 1}]}), "not safe"),
        (held({"dataclass": [of(kinds.Word), {"amount": 1}]}), "not safe"),
        (held({"namedtuple": [of(kinds.Point), [1]]}), "Expected 2 arguments"),
        (held({"namedtuple": [of(kinds.Pair), []]}), "Pair is not a class of kind namedtuple"),
    ],
)
def test_bad_text_is_refused_with_a_reason(text: object, reason: str) -> None:
    """What else Python refuses is a ValueError too: the fuzzer's target of requests."""
    assert_bad(text, reason)


# -- callbacks --


@pytest.mark.parametrize("name", ["callback", "errback"])
@pytest.mark.parametrize(
    "value",
    [
        *(True, 1, "", "a.b", "no_such_method", "name", "number", "logger", "static", "mro"),
        *("of_the_class", "of_the_metaclass", "partial", "tempting", "__class__", "__reduce__"),
        *("__init__", "__repr__", "_set_crawler", "log", "start", "close", "from_crawler"),
        *("closed", "start_requests", "spider_idle"),
    ],
)
def test_what_is_no_method_of_the_spider_is_no_callback(name: str, value: object) -> None:
    assert_bad(stored(**{name: value}), f"^{name}")


def free(response: Any) -> None:
    pass


def test_no_property_of_the_spider_is_evaluated() -> None:
    class Tempted(kinds.Pages):
        pass

    spider = Tempted()
    assert_refused(sample(callback=OTHER.parse), "callback", spider)
    assert_refused(sample(callback=MethodType(free, spider)), "callback", spider)
    with pytest.raises(ValueError, match="callback 'tempting'"):
        load(stored(callback="tempting"), spider)
    assert not Tempted.touched


# -- classes --


class Lazy(ModuleType):
    """A module that would import something when an attribute is read."""

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(name)


@pytest.mark.parametrize(
    "path",
    [
        *("", "Request", ":Request", "scrapy.http.request:", "scrapy.http.request:Request.copy"),
        *("scrapy.http.request:Request.__class__", "scrapy.http.response:Response"),
        *("builtins:eval", "builtins:int", "antigravity:Request", "lazy_module:Request"),
        *("none_module:Request", f"{MODULE}:SPIDER.__class__", f"{MODULE}:kinds.Pages.tempting"),
        *(f"{MODULE}:json.Request", f"{MODULE}:Price"),
    ],
)
def test_what_is_not_an_imported_class_of_requests_is_refused(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lazy_module", Lazy("lazy_module"))
    monkeypatch.setitem(sys.modules, "none_module", None)
    before = set(sys.modules)
    assert_bad(stored(_class=path), "^class .* is not")
    assert set(sys.modules) == before
    assert not kinds.Pages.touched


def test_classes_are_found_only_through_the_modules_of_the_spider(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OwnRequest(Request):
        pass

    elsewhere = ModuleType("elsewhere")
    OwnRequest.__module__, OwnRequest.__qualname__ = "elsewhere", "OwnRequest"
    monkeypatch.setitem(vars(elsewhere), "OwnRequest", OwnRequest)
    monkeypatch.setitem(sys.modules, "elsewhere", elsewhere)
    request = sample(OwnRequest)
    assert_refused(request, "is not imported by the spider's module")
    for through in (OwnRequest, elsewhere):
        with monkeypatch.context() as patch:
            patch.setitem(vars(kinds), "other_name", through)
            text = dump(request, SPIDER)
            assert_kept(request)
            assert_refused(request, "is not imported by the spider's module", None)
        assert_bad(text, "is not imported by the spider's module")
