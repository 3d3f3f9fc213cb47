"""Pending requests as JSON: which are kept, exactly, and which are refused."""

import json
from types import MethodType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import FormRequest, Request
from scrapy.http import JsonRequest, XmlRpcRequest
from scrapy.http.request import NO_CALLBACK
from support import stored_requests as kinds
from support.stored_requests import OTHER, SPIDER, URL, assert_kept, assert_refused, sample

from scrapy_bloom.crawl import request_codec
from scrapy_bloom.crawl.request_codec import dump, load
from scrapy_bloom.crawl.request_values import MAX_LENGTH

# -- what is kept --

header_names = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,10}", fullmatch=True)
methods = st.sampled_from([None, SPIDER.parse, SPIDER.failed, SPIDER.decorated, NO_CALLBACK])
dicts = st.dictionaries(st.text(max_size=5), st.integers() | st.text() | st.binary(), max_size=3)
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
    assert_kept(Request(f"https://example.com/{path}?{path}", **chosen))


@pytest.mark.parametrize(
    "request_",
    [
        sample(FormRequest, formdata={"q": ["ä", "b"]}),
        sample(JsonRequest, data={"ä": [1]}, dumps_kwargs={"ensure_ascii": False}),
        sample(XmlRpcRequest, params=(1, "ä"), methodname="get", encoding="cp1252"),
        sample(kinds.SlottedRequest),
        sample(kinds.TokenRequest, token=0),
        sample(kinds.Outer.InnerRequest),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_classes_of_requests_come_back(request_: Request) -> None:
    assert_kept(request_)


def test_restored_callbacks_are_methods_of_the_spider_that_restores() -> None:
    request = load(dump(sample(callback=SPIDER.parse), SPIDER), OTHER)
    assert request.callback == OTHER.parse
    assert request.callback != SPIDER.parse


def test_the_longest_text_comes_back() -> None:
    room = MAX_LENGTH - len(dump(sample(meta={"a": ""}), None))
    assert_kept(sample(meta={"a": "x" * room}))
    assert_refused(sample(meta={"a": "x" * (room + 1)}), "more than 65,536 characters")


def test_what_is_too_long_is_refused_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_codec, "to_json", None)
    long: list[object] = ["x" * 70_000, b"x" * 70_000, ["x" * 100] * 1_000, [0] * 40_000]
    for value in (*long, {"x" * 70_000: 1}):
        assert_refused(sample(meta={"a": value}), "meta (takes more than 65,536|is .* too large)")


@pytest.mark.parametrize(
    ("referer", "stored_as"),
    [
        ("https://example.com/pages", [24, "s"]),
        (URL, [28, ""]),
        (f"{URL}#a", [28, "#a"]),
        ("http://example.org/", [4, "://example.org/"]),
        ("", [0, ""]),
        ("ä", [0, "\xc3\xa4"]),
    ],
)
def test_a_referer_is_stored_by_what_it_shares_with_the_url(
    referer: str, stored_as: list[object]
) -> None:
    request = sample(headers={"A": ["b"], "Referer": referer, "C": []})
    headers = json.loads(dump(request, None))["headers"]
    assert headers == [["A", "b"], ["Referer", *stored_as], ["C"]]
    assert_kept(request)


# -- what is refused --


def free(response: Any) -> None:
    pass


@pytest.mark.parametrize(
    "function",
    [
        *(lambda response: None, free, MethodType(free, SPIDER), OTHER.parse, SPIDER.static),
        *(SPIDER.of_the_class, SPIDER.partial, kinds.Pages.of_the_metaclass),
    ],
)
@pytest.mark.parametrize("name", ["callback", "errback"])
def test_functions_that_are_no_methods_of_the_spider_are_refused(
    name: str, function: kinds.Method
) -> None:
    arguments: dict[str, Any] = {name: function}
    assert_refused(Request(URL, **arguments), f"{name} is not a method of the spider")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", 1.5),
        ("flags", object()),
        ("callback", 1),
        ("_body", bytearray(b"x")),
        ("_encoding", "no-encoding"),
    ],
)
def test_attributes_that_were_changed_to_other_values_are_refused(name: str, value: object) -> None:
    request = sample()
    setattr(request, name, value)
    assert_refused(request, name.strip("_"))


def test_headers_that_a_class_would_add_again_are_refused() -> None:
    request = sample(JsonRequest)
    del request.headers["Accept"]
    assert_refused(request, "headers would not come back unchanged")


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (sample(kinds.SlottedRequest, page=2), "page would not come back"),
        (sample(kinds.TokenRequest, token=range(1)), "token holds a value of type range"),
        (sample(JsonRequest, dumps_kwargs={"cls": json.JSONEncoder}), "dumps_kwargs holds"),
        (sample(encoding="utf-16"), "url is not as Scrapy writes it"),  # it starts with a mark
        (sample(kinds.NeedyRequest, needed="x"), "TypeError.*needed"),
        (sample(kinds.ChangingRequest), "url is not as Scrapy writes it"),
        (sample(kinds.FailingRequest), "broken property"),
    ],
)
def test_a_request_that_its_class_does_not_restore_is_refused(
    request_: Request, reason: str
) -> None:
    assert_refused(request_, reason)
