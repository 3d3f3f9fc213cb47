"""Pending requests as JSON: they come back exactly, or are refused; any text may be read."""

import json
import sys
from types import MethodType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scrapy import FormRequest, Request, Spider
from scrapy.http import JsonRequest, XmlRpcRequest
from scrapy.http.request import NO_CALLBACK
from support import stored_requests as kinds
from support.stored_requests import (
    OTHER,
    SPIDER,
    URL,
    Pages,
    assert_bad,
    assert_refused,
    assert_stored,
    of,
    sample,
    stored,
)

from scrapy_bloom.crawl.request_codec import MAX_LENGTH, dump, load

# -- what is stored --

header_names = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,10}", fullmatch=True)
methods = st.sampled_from([None, SPIDER.parse, SPIDER.failed, SPIDER.decorated, NO_CALLBACK])
#: ``test_request_values.py`` has others.
values = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
dicts = st.dictionaries(st.text(max_size=5), values, max_size=3)
encodable = st.text(st.characters(codec="cp1252", min_codepoint=32), max_size=10)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "callback": methods,
        "errback": methods,
        "method": st.sampled_from(["GET", "POST", "HEAD", "m-search"]),
        "headers": st.dictionaries(header_names, st.lists(st.binary(max_size=9), max_size=3)),
        "body": st.binary(max_size=30) | st.text(st.characters(codec="utf-8")),
        "cookies": dicts | st.lists(dicts, min_size=1, max_size=2),
        "meta": dicts,
        "cb_kwargs": dicts,
        "encoding": st.sampled_from(["utf-8", "UTF-8", "cp1252", "gb18030"]),
        "priority": st.integers(),
        "dont_filter": st.booleans(),
        "flags": st.lists(st.text(max_size=5), max_size=2),
    },
)


@given(encodable, arguments.filter(lambda chosen: "body" not in chosen or "encoding" not in chosen))
def test_a_request_comes_back_exactly(path: str, chosen: dict[str, Any]) -> None:
    assert_stored(Request(f"https://example.com/{path}?{path}", **chosen))


@pytest.mark.parametrize(
    "request_",
    [
        sample(FormRequest, formdata={"q": ["ä", "b"]}),
        sample(JsonRequest, data={"ä": [1]}, dumps_kwargs={"ensure_ascii": False}),
        sample(XmlRpcRequest, params=(1, "ä"), methodname="get", encoding="cp1252"),
        sample(kinds.TokenRequest, token=0),
        sample(kinds.Outer.InnerRequest),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_classes_of_requests_come_back(request_: Request) -> None:
    assert_stored(request_)


def test_restored_callbacks_are_methods_of_the_spider_that_restores() -> None:
    request = load(dump(sample(callback=SPIDER.parse), SPIDER), OTHER)
    assert request.callback == OTHER.parse
    assert request.callback != SPIDER.parse


def test_a_request_that_was_written_takes_no_more_memory() -> None:
    """Scrapy makes some attributes when they are read, and a queue has many requests."""
    names = [name for name in ("_cb_kwargs", "_cookies", "_flags") if hasattr(Request(URL), name)]
    request_ = Request(URL)
    dump(request_, SPIDER)
    assert [getattr(request_, name) for name in names] == [None] * len(names)


def test_the_longest_text_comes_back() -> None:
    room = MAX_LENGTH - len(dump(sample(meta={"a": ""}), SPIDER))
    assert_stored(sample(meta={"a": "x" * room}))
    assert_refused(sample(meta={"a": "x" * (room + 1)}), "65,537 characters, more than 65,536")


# -- what is refused --


def free(response: Any) -> None:
    pass


@pytest.mark.parametrize(
    "function",
    [
        *(lambda response: None, free, MethodType(free, SPIDER), OTHER.parse, SPIDER.static),
        *(SPIDER.of_the_class, SPIDER.partial, Pages.of_the_metaclass, SPIDER.start, SPIDER.closed),
    ],
)
@pytest.mark.parametrize("name", ["callback", "errback"])
def test_functions_that_are_no_callbacks_of_the_spider_are_refused(
    name: str, function: kinds.Method
) -> None:
    arguments: dict[str, Any] = {name: function}
    assert_refused(Request(URL, **arguments), "isn't a method of the spider")


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (Request("file:///etc/passwd"), "URL isn't one of http"),
        (sample(kinds.TokenRequest, token=range(1)), "a value of type range"),
        (sample(JsonRequest, dumps_kwargs={"cls": json.JSONEncoder}), "a value of type type"),
        (sample(kinds.NeedyRequest, needed="x"), "TypeError.*needed"),
        (sample(kinds.ChangingRequest), "ChangingRequest would come back as another one"),
        (
            sample(kinds.ScriptRequest, script="scroll()"),
            "ScriptRequest would come back as another",
        ),
        (sample(kinds.FailingRequest), "broken property"),
    ],
)
def test_a_request_that_its_class_does_not_restore_is_refused(
    request_: Request, reason: str
) -> None:
    assert_refused(request_, reason)


# -- texts that nobody has stored so --


def method_named(name: object) -> str:
    return stored(callback=name)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *[(text, ".") for text in ("", "{", "[]", "1", "null", '"a"', "[" * 60_000, "1" * 5_000)],
        ('{"url": "https://example.com/", "meta": ' + '{"a": ' * 900 + "1" + "}" * 901, "."),
        ('{"url": "https://example.com/", "priority": ' + "9" * 5_000 + "}", "."),
        (json.dumps({"url": "file:///etc/passwd"}), "URL of a page"),
        (stored(more=1), "TypeError"),
        (stored(url=[URL]), "URL of a page"),
        (stored(headers=[["A", "\u1234"]]), "UnicodeEncodeError"),
        (stored(meta={"a": {"bytes": 1}}), "AttributeError"),
        (stored(meta={"a": {"timedelta": "9" * 5_000}}), "ValueError"),
        (stored(meta={"a": {"set": [[1]]}}), "unhashable"),
        *[
            (method_named(name), "isn't a method of the spider")
            for name in ("__init__", "from_crawler", "start", "closed", "spider_idle", "static")
        ],
        *[
            (method_named(name), "isn't a method of the spider")
            for name in ("tempting", "partial", "number", "nothing", "crawler", "parse.__func__")
        ],
        (method_named(["parse"]), "TypeError"),
        (stored(**{"class": "subprocess:Popen"}), "there is no class"),
        (stored(**{"class": "antigravity:fly"}), "there is no class"),
        (stored(**{"class": of(kinds.Price)}), "isn't a class of requests"),
        (stored(**{"class": of(Pages)}), "isn't a class of requests"),
        (stored(meta={"a": {"dataclass": ["builtins:type", {}]}}), "not a class of kind"),
        (stored(meta={"a": {"dataclass": [of(kinds.Price), {}]}}), "KeyError"),
        (stored(meta={"a": {"enum": [of(kinds.Size), "mro"]}}), "KeyError"),
        (stored(meta={"a": {"namedtuple": [of(kinds.Point), []]}}), "TypeError"),
    ],
)
def test_a_bad_text_is_an_error_and_nothing_is_imported_or_evaluated(
    text: str, reason: str
) -> None:
    before = {*sys.modules}
    assert_bad(text, reason)
    assert {*sys.modules} == before
    assert not Pages.touched


def test_a_request_may_not_be_made_by_a_class_that_the_spider_does_not_know() -> None:
    text = dump(sample(kinds.TokenRequest, token=1), SPIDER)

    class Elsewhere(Spider):
        name = "elsewhere"

    Elsewhere.__module__ = "nowhere"
    with pytest.raises(ValueError, match="there is no class"):
        load(text, Elsewhere())


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=8) | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["a", "dict", "set", "dataclass", "enum", "namedtuple", "Decimal"]),
            inner,
        )
    ),
)


@given(st.dictionaries(st.sampled_from([*Request.attributes, "class"]), json_values))
@example({"method": ""})
def test_any_json_is_a_request_or_an_error(fields: dict[str, Any]) -> None:
    text = json.dumps({"url": URL, **fields})
    try:
        request = load(text, SPIDER)
    except ValueError:
        assert_bad(text, ".")
    else:
        assert_stored(request)
