"""Stored text may be anything: it is read as a request, or refused, and runs nothing."""

import sys
from types import MethodType, ModuleType
from typing import Any

import pytest
from scrapy import Request, Spider
from support import stored_requests
from support.stored_requests import (
    OTHER,
    SPIDER,
    Pages,
    Pair,
    Point,
    Price,
    PriceError,
    Raising,
    TokenRequest,
    Word,
    assert_bad,
    assert_kept,
    assert_refused,
    of,
    sample,
    stored,
)

from scrapy_bloom.crawl.request_codec import dump, load
from scrapy_bloom.crawl.request_values import MAX_LENGTH


def held(value: object) -> str:
    return stored(meta={"a": value})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "TypeError"),
        (stored(body="x" * MAX_LENGTH), "more than 65,536 characters"),
        ("", "JSONDecodeError"),
        ("[" * 60_000, "RecursionError|JSONDecodeError|nested"),
        ("[]", "not a JSON object"),
        ("{}", "URL of a page"),
        ('{"url":"https://a/","meta":{"a":' + "[" * 40 + "]" * 40 + "}}", "nested too deeply"),
        (stored(url=1), "URL of a page"),
        (stored(url="file:///etc/passwd"), "URL of a page"),
        (stored(url="https://a/" + " " * 60_000), "not as Scrapy writes it"),
        (stored(url="https://["), "ValueError|Invalid|IPv6"),
        (stored(headers=[["a", "\u1234"]]), "UnicodeEncodeError"),
        (stored(encoding="no-encoding"), "LookupError"),
        (stored(priority=1.0), "priority"),
        (stored(_class=of(TokenRequest), more=1), "TypeError.*more"),
        (held({"timedelta": "9" * 999 + " 0 0"}), "OverflowError"),
        (held({"enum": [of(Price), "currency"]}), "Price is not a class of kind enum"),
        (held({"enum": ["os:environ", "PATH"]}), "not imported"),
        (held({"dataclass": [of(Spider), {}]}), "Spider is not a class of kind dataclass"),
        (held({"dataclass": [of(PriceError), {"amount": 1}]}), "not safe"),
        (held({"dataclass": [of(Word), {"amount": 1}]}), "not safe"),
        (held({"namedtuple": [of(Point), [1]]}), "Expected 2 arguments"),
        (held({"namedtuple": [of(Pair), []]}), "Pair is not a class of kind namedtuple"),
    ],
)
def test_bad_text_is_refused_with_a_reason(text: object, reason: str) -> None:
    """What else Python refuses is a ValueError too: the fuzzer's target of requests."""
    assert_bad(text, reason)


def test_no_initialization_of_a_dataclass_runs() -> None:
    value = load(held({"dataclass": [of(Raising), {"amount": [1]}]}), SPIDER).meta["a"]
    assert type(value) is Raising
    assert vars(value) == {"amount": [1]}


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
    class Tempted(Pages):
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


MODULE = stored_requests.__name__


@pytest.mark.parametrize(
    "path",
    [
        *("", "Request", ":Request", "scrapy.http.request:", "scrapy.http.request"),
        *("scrapy.http.request.Request", "scrapy.http.request:Request.copy"),
        *("scrapy.http.request:Request.__class__", "scrapy.http.request:scrapy.Request"),
        *("scrapy.http.response:Response", "scrapy.no_module:Request"),
        *("scrapy.signals:request_scheduled", "builtins:eval", "builtins:int", "os:system"),
        *("typing:Any", "antigravity:Request", "lazy_module:Request", "no_module:Request"),
        *("none_module:Request", f"{MODULE}:SPIDER", f"{MODULE}:SPIDER.__class__"),
        *(f"{MODULE}:json.Request", f"{MODULE}:Pages.tempting", f"{MODULE}:Price"),
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
    assert not Pages.touched


ELSEWHERE = """
import enum
from dataclasses import dataclass
from typing import NamedTuple
from scrapy import Request

class Colour(enum.Enum):
    RED = 1

@dataclass
class Price:
    amount: int = 1

class Point(NamedTuple):
    x: int = 1

class OwnRequest(Request):
    pass
"""


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a module that is imported, but not by the spider's module."""
    module = ModuleType("elsewhere")
    monkeypatch.setitem(sys.modules, "elsewhere", module)
    exec(ELSEWHERE, vars(module))
    return module


@pytest.mark.parametrize("name", ["Colour", "Price", "Point", "OwnRequest"])
@pytest.mark.parametrize("through", ["class", "module"])
def test_classes_are_found_only_through_the_modules_of_the_spider(
    elsewhere: Any, name: str, through: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls = getattr(elsewhere, name)
    request = sample(cls) if issubclass(cls, Request) else sample(meta={"a": cls(1)})
    assert_refused(request, "is not imported by the spider's module")
    with monkeypatch.context() as patch:
        value = cls if through == "class" else elsewhere
        patch.setitem(vars(stored_requests), "other_name", value)
        text = dump(request, SPIDER)
        assert_kept(request)
        assert_refused(request, "is not imported by the spider's module", None)
    assert_bad(text, "is not imported by the spider's module")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("NeedyRequest", "TypeError.*needed"),
        ("ChangingRequest", "url is not as Scrapy writes it"),
        ("RaisingRequest", "KeyError"),
    ],
)
def test_a_class_that_fails_is_an_error_of_the_stored_request(name: str, reason: str) -> None:
    assert_bad(stored(_class=f"{MODULE}:{name}"), reason)


def test_a_module_is_not_asked_for_attributes_it_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def imports(name: str) -> object:
        raise AssertionError(name)

    module = ModuleType("asked")
    module.__getattr__ = imports  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "asked", module)
    monkeypatch.setitem(vars(stored_requests), "asked", module)
    assert_bad(stored(_class="asked:Request"), "^class .* is not imported")
