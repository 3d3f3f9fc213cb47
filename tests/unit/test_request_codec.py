"""Pending requests as text: what is kept comes back exactly, and bad text is refused."""

import dataclasses
import enum
import functools
import json
import math
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PosixPath, PurePosixPath, PureWindowsPath
from types import MethodType, ModuleType
from typing import Any, ClassVar, NamedTuple
from uuid import UUID, SafeUUID, uuid1
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import FormRequest, Request, Spider
from scrapy.http import Headers, HtmlResponse, JsonRequest, XmlRpcRequest
from scrapy.http.request import NO_CALLBACK
from scrapy.link import Link
from scrapy.linkextractors import LinkExtractor
from scrapy.settings import Settings
from scrapy.spidermiddlewares.referer import RefererMiddleware
from scrapy.spiders import CrawlSpider, Rule

from scrapy_bloom.crawl.claims import request_codec
from scrapy_bloom.crawl.claims.request_codec import (
    MAX_LENGTH,
    MAX_PRIORITY,
    NotKeepableError,
    dump,
    load,
)
from scrapy_bloom.crawl.claims.request_values import MAX_BITS, MAX_DEPTH

URL = "https://example.com/page?q=1"
TODAY = datetime(2027, 1, 1, 12, tzinfo=timezone.utc)
Method = Callable[..., Any]


def renamed(method: Method) -> Method:
    def wrapper(*args: Any) -> Any:
        return method(*args)

    return wrapper


class Meta(type(Spider)):  # type: ignore[misc]
    def of_the_metaclass(cls) -> None:
        pass


class Pages(Spider, metaclass=Meta):
    name = "pages"
    number = 1
    touched = False

    def parse(self, response: Any, **kwargs: Any) -> None:
        pass

    def failed(self, failure: Any) -> None:
        pass

    alias = failed

    @renamed
    def decorated(self, response: Any) -> None:
        pass

    def __private(self, response: Any) -> None:
        pass

    private = property(lambda self: self.__private)

    @staticmethod
    def static(response: Any) -> None:
        pass

    @classmethod
    def of_the_class(cls, response: Any) -> None:
        pass

    @property
    def tempting(self) -> Method:
        type(self).touched = True
        return self.parse

    partial = functools.partialmethod(parse, page=1)


SPIDER = Pages()
OTHER = Pages()


class TokenRequest(Request):
    """Says in ``attributes`` what it takes, as Scrapy's documentation asks for."""

    attributes = (*Request.attributes, "token")

    def __init__(self, *args: Any, token: object = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.token = token


class SlottedRequest(Request):
    """Has arguments of its own that ``attributes`` does not name."""

    __slots__ = ("empty", "page")

    def __init__(self, *args: Any, page: object = 1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.page = page


class PlainRequest(Request):
    pass


class NeedyRequest(Request):
    def __init__(self, *args: Any, needed: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class ChangingRequest(Request):
    def __init__(self, url: str, **kwargs: Any) -> None:
        super().__init__(f"{url}x", **kwargs)


class GreedyRequest(Request):
    """Changes what it is given."""

    def __init__(self, url: str, **kwargs: Any) -> None:
        if "meta" in kwargs:
            kwargs["meta"]["seen"] = True
        super().__init__(url, **kwargs)


class FailingRequest(Request):
    attributes = (*Request.attributes, "failing")

    @property
    def failing(self) -> None:
        raise RuntimeError("broken property")


class RaisingRequest(Request):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise KeyError("missing")


class Outer:
    class InnerRequest(Request):
        pass


class Lying:
    """Of subclasses: methods that show another value than the base class has."""

    def lie(self, *args: object) -> Any:
        raise AssertionError("a method of the subclass was called")

    __str__ = __int__ = __index__ = __float__ = __bytes__ = lie
    __iter__ = __len__ = __getitem__ = items = keys = values = decode = bit_length = lie


class Text(Lying, str):  # type: ignore[misc]
    pass


class Number(Lying, int):  # type: ignore[misc]
    pass


class Fraction(Lying, float):
    pass


class Octets(Lying, bytes):  # type: ignore[misc]
    pass


class Items(Lying, list):  # type: ignore[type-arg, misc]
    pass


class Mapping(Lying, dict):  # type: ignore[type-arg, misc]
    pass


class Pair(Lying, tuple):  # type: ignore[type-arg, misc]
    pass


BASES = {cls: cls.__mro__[2] for cls in (Text, Number, Fraction, Octets, Items, Mapping, Pair)}
BASES |= {OrderedDict: dict, defaultdict: dict, Headers: dict}


class Loose(str):
    """Equal strings that are different keys."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


class Colour(int, enum.Enum):
    RED = 1
    CRIMSON = 1  # noqa: PIE796
    BLUE = 2


class Size(enum.Enum):
    SMALL = ("s", 1)
    LARGE = ("l", 2)

    @classmethod
    def _missing_(cls, value: object) -> Any:
        raise AssertionError(value)


class Rights(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
    ALL = READ | WRITE


class Point(NamedTuple):
    x: object
    y: object = None


class Spot(Point):
    """Instances have a dict."""


class Boxed:
    class Colour(enum.Enum):
        RED = "red"


@dataclass
class Price:
    amount: object
    currency: str = "EUR"
    kind: ClassVar[str] = "price"
    given: dataclasses.InitVar[object] = None


@dataclass(frozen=True)
class Fixed:
    amount: object


@dataclass(slots=True)
class Slotted:
    amount: object
    currency: str = "EUR"


@dataclass(frozen=True, slots=True)
class Sealed(Fixed):
    more: object = None


class Discount(Price):
    """Inherits the fields."""


@dataclass(init=False, repr=False, eq=False)
class Hooked:
    """Nothing of it may run when stored text is read."""

    amount: object = 1

    def hook(self, *args: object) -> Any:
        raise AssertionError("code of the class was run")

    __init__ = __post_init__ = __setattr__ = __delattr__ = __eq__ = __reduce__ = hook  # type: ignore[assignment]
    __setstate__ = __repr__ = __getattr__ = __hash__ = hook  # type: ignore[assignment]
    total = property(hook)

    def __new__(cls, *args: object) -> Any:
        raise AssertionError("__new__ was called")


@dataclass
class Guarded:
    """Has a field that is a property."""

    amount: object

    def _set(self, value: object) -> None:
        raise AssertionError("a property was set")


Guarded.amount = property(lambda self: 1, Guarded._set)  # type: ignore[assignment]


@dataclass
class PriceError(Exception):
    amount: object = 1


@dataclass
class Word(str):
    amount: object = 1


class Shade(enum.Enum):
    DARK = 1

    def __hash__(self) -> int:
        raise AssertionError("code of the class was run")


class OddPoint(NamedTuple):
    x: object

    def __eq__(self, other: object) -> bool:
        raise AssertionError("code of the class was run")

    __hash__ = tuple.__hash__


def made(cls: Any, **state: Any) -> Any:
    value = object.__new__(cls)
    for name, item in state.items():
        object.__setattr__(value, name, item)
    return value


def of(cls: Any) -> str:
    """Return a class as it is stored."""
    return f"{cls.__module__}:{cls.__qualname__}"


def sample(cls: type[Request] = Request, **arguments: Any) -> Request:
    return cls(URL, **arguments)


def exact(value: Any) -> tuple[type, object]:
    """Return a value with the types of all its parts, so that 1, 1.0 and True differ."""
    cls = BASES.get(type(value), type(value))
    parts: object
    if isinstance(value, dict):
        own = OrderedDict if isinstance(value, OrderedDict) else dict
        parts = [(exact(key), exact(item)) for key, item in own.items(value)]
    elif isinstance(value, list):
        parts = [exact(item) for item in list.__iter__(value)]
    elif isinstance(value, tuple):
        parts = [exact(item) for item in tuple.__iter__(value)]
    elif isinstance(value, set | frozenset):
        parts = sorted(repr(exact(item)) for item in value)
    elif dataclasses.is_dataclass(cls):
        parts = [exact(getattr(value, field.name)) for field in dataclasses.fields(cls)]
    elif isinstance(value, UUID):
        parts = (value.int, value.is_safe)
    else:
        parts = cls.__repr__(value)
    return cls, parts


def attributes(request: Request) -> dict[str, object]:
    return {name: exact(getattr(request, name)) for name in request.attributes}


def assert_kept(request: Request, spider: Spider = SPIDER) -> None:
    text = dump(request, spider)
    assert text.isascii()
    assert "\n" not in text
    assert len(text) <= MAX_LENGTH
    again = load(text, spider)
    assert type(again) is type(request)
    assert attributes(again) == attributes(request)
    assert again.headers.encoding == request.headers.encoding


def assert_refused(request: Request, reason: str, spider: Spider | None = SPIDER) -> None:
    with pytest.raises(NotKeepableError, match=reason) as caught:
        dump(request, spider)
    assert len(str(caught.value)) <= 200


def stored(**fields: Any) -> str:
    return json.dumps({"url": URL, **fields})


def assert_bad(text: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        load(text, SPIDER)
    assert type(caught.value) is ValueError
    assert len(str(caught.value)) <= 200


# -- strategies --

ours = st.sampled_from(
    [
        *("bytes", "tuple", "dict", "set", "frozenset", "enum", "dataclass", "namedtuple"),
        *("datetime", "date", "time", "timedelta", "decimal", "uuid", "PurePosixPath"),
    ]
)
# Any characters: surrogates too, except that two in a row are one character in JSON.
texts = st.text(
    st.characters(exclude_characters=[chr(code) for code in range(0xDC00, 0xE000)]), max_size=8
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**MAX_BITS) + 1, 2**MAX_BITS - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.sampled_from(["\udc00", "a\udfff", "\udc00\ud800"])
    | st.binary(max_size=8)
)
offsets = st.integers(-80_000, 80_000).map(lambda seconds: timezone(timedelta(seconds=seconds)))
zones = st.none() | offsets
moments = (
    st.datetimes(timezones=zones).map(lambda value: value.replace(fold=0))
    | st.dates()
    | st.times(timezones=zones).map(lambda value: value.replace(fold=0))
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.uuids()
)
path_texts = st.text(st.sampled_from("/\\.:aé\udc80 "), max_size=6)
paths = path_texts.map(PurePosixPath) | path_texts.map(PosixPath)
named = st.sampled_from([*Colour, *Size, Rights.READ, Rights.ALL, Boxed.Colour.RED])
rich = (
    moments
    | paths
    | named
    | st.sampled_from([Decimal("NaN"), Decimal("sNaN12"), Decimal("-0"), Decimal("1E+99999")])
    | texts.map(Text)
    | st.integers(-9, 9).map(Number)
    | st.floats(allow_nan=False, allow_infinity=False).map(Fraction)
    | st.binary(max_size=3).map(Octets)
)
flat_keys = scalars | moments | paths | named
deep_keys = (
    st.tuples(flat_keys, flat_keys)
    | st.builds(Point, flat_keys, flat_keys)
    | st.frozensets(flat_keys, max_size=2)
)


@st.composite
def hashables(draw: st.DrawFn) -> object:
    """A strategy with a short repr."""
    return draw(flat_keys | deep_keys)


@st.composite
def all_values(draw: st.DrawFn) -> object:
    return draw(nested)


hashable = hashables()
keys = hashable | ours
nested = st.recursive(
    scalars | rich,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.lists(inner, max_size=3).map(Items)
        | st.lists(inner, max_size=3).map(Pair)
        | st.dictionaries(texts, inner, max_size=3).map(Mapping)
        | st.sets(hashable, max_size=3)
        | st.frozensets(hashable, max_size=3)
        | st.builds(Point, inner, inner)
        | st.builds(Spot, inner, inner)
        | st.builds(Price, inner, texts)
        | st.builds(Fixed, inner)
        | st.builds(Slotted, inner, texts)
        | st.builds(Discount, inner, texts)
        | st.builds(Sealed, inner, inner)
        | st.dictionaries(keys, inner, max_size=3)
        | st.dictionaries(texts | ours, inner, max_size=3)
        | st.dictionaries(ours, inner, max_size=1)
    ),
    max_leaves=10,
)
values = all_values()
dicts = st.dictionaries(texts | ours | st.just("depth"), values, max_size=4)
header_names = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,10}", fullmatch=True)
methods = st.sampled_from([None, SPIDER.parse, SPIDER.failed, SPIDER.decorated, NO_CALLBACK])
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
        "priority": st.integers(-MAX_PRIORITY, MAX_PRIORITY),
        "dont_filter": st.booleans(),
        "flags": st.lists(texts, max_size=2),
    },
)
encodable = st.text(st.characters(codec="cp1252", min_codepoint=32), max_size=10)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | ours, inner, max_size=3)
        | st.dictionaries(ours, inner, max_size=1)
    ),
    max_leaves=8,
)


# -- what is kept --


@given(encodable, arguments.filter(lambda chosen: "body" not in chosen or "encoding" not in chosen))
def test_a_request_comes_back_exactly(path: str, chosen: dict[str, Any]) -> None:
    assert_kept(Request(f"https://example.com/{path}?{path}", **chosen))


@given(dicts)
def test_an_argument_that_a_class_names_comes_back(token: dict[object, object]) -> None:
    assert_kept(sample(TokenRequest, token=token))


@pytest.mark.parametrize(
    "request_",
    [
        sample(FormRequest, formdata={"q": ["ä", "b"]}),
        sample(FormRequest, formdata={"q": "x"}, method="GET"),
        sample(JsonRequest, data={"ä": [1]}, dumps_kwargs={"ensure_ascii": False}),
        sample(JsonRequest, headers={"Accept": "*/*"}, callback=SPIDER.parse),
        sample(XmlRpcRequest, params=(1, "ä"), methodname="get", encoding="cp1252"),
        sample(XmlRpcRequest, params=(), methodname="get", dont_filter=False, method="PUT"),
        sample(PlainRequest, meta={"depth": 3}),
        sample(SlottedRequest),
        sample(Outer.InnerRequest),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_classes_of_requests_come_back(request_: Request) -> None:
    assert_kept(request_)


def test_restored_callbacks_are_methods_of_the_spider_that_restores() -> None:
    request = load(dump(sample(callback=SPIDER.parse), SPIDER), OTHER)
    assert request.callback == OTHER.parse
    assert request.callback != SPIDER.parse


@pytest.mark.parametrize("method", [SPIDER.alias, SPIDER.decorated, SPIDER.private])
def test_methods_under_another_name_come_back(method: Method) -> None:
    assert_kept(sample(callback=method))


def test_a_callback_like_any_other_object_comes_back_in_a_spider_that_hides_it() -> None:
    spider = Pages()
    spider.parse = spider.failed  # type: ignore[method-assign]
    assert_kept(sample(callback=spider.parse), spider)


def test_no_spider_is_needed_without_callbacks() -> None:
    assert dump(sample(), None) == f'{{"url":"{URL}"}}'


def test_defaults_are_left_out() -> None:
    text = dump(sample(callback=SPIDER.parse, meta={"depth": 3}), SPIDER)
    assert text == f'{{"url":"{URL}","callback":"parse","meta":{{"depth":3}}}}'


def test_the_deepest_nesting_comes_back() -> None:
    value: object = {"tuple": 1}
    for _ in range(MAX_DEPTH - 2):  # within that dict and meta
        value = [value]
    assert_kept(sample(meta={"a": value}))
    assert_refused(sample(meta={"a": [value]}), "meta is nested too deeply")


def test_the_longest_text_comes_back() -> None:
    room = MAX_LENGTH - len(dump(sample(meta={"a": ""}), None))
    assert_kept(sample(meta={"a": "x" * room}))
    assert_refused(sample(meta={"a": "x" * (room + 1)}), "more than 65,536 characters")


def test_a_class_that_changes_its_arguments_does_not_change_the_defaults() -> None:
    load(stored(**{"class": of(GreedyRequest)}), SPIDER)
    assert load(stored(), SPIDER).meta == {}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({3, 1, 2}, '{"set":[1,2,3]}'),
        (frozenset({"b", "a"}), '{"frozenset":["a","b"]}'),
        ([Text("a")], '["a"]'),
        (OrderedDict(a=1), '{"a":1}'),
        (date(2027, 1, 2), '{"date":"2027-01-02"}'),
        (timedelta(-1, 2, 3), '{"timedelta":"-1 2 3"}'),
        (Colour.CRIMSON, f'{{"enum":["{of(Colour)}","RED"]}}'),
        (Boxed.Colour.RED, f'{{"enum":["{of(Boxed)}.Colour","RED"]}}'),
        (Price(1), f'{{"dataclass":["{of(Price)}",{{"amount":1,"currency":"EUR"}}]}}'),
        (Point(1), f'{{"namedtuple":["{of(Point)}",[1,null]]}}'),
        ({"set": 1}, '{"dict":[["set",1]]}'),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_are_stored_under_their_tags(value: object, text: str) -> None:
    request = sample(meta={"a": value})
    assert dump(request, SPIDER) == f'{{"url":"{URL}","meta":{{"a":{text}}}}}'
    assert_kept(request)


@pytest.mark.parametrize(
    "value",
    [
        defaultdict(list, a=[1]),
        Headers({"A": "b"}),
        Path("a/b"),
        PureWindowsPath("C:/a"),
        uuid1(),
        UUID(int=1, is_safe=SafeUUID.unsafe),
        datetime.max.replace(tzinfo=timezone(timedelta(seconds=-1))),
        timedelta.min,
        {Text("a"): 1, 2: Text("b")},
        {Colour.RED: Size.LARGE, (Rights.ALL,): {Boxed.Colour.RED}},
        {frozenset({frozenset()}): 1},
        {Point(1, "a"), Point("b", Colour.BLUE)},
        [Price(Fixed(Slotted(Sealed({Decimal("1.50")}))))],
        Discount([1]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_of_more_types_come_back(value: object) -> None:
    assert_kept(sample(meta={"a": value}, cb_kwargs={"a": value}, cookies={"a": value}))


def test_items_keep_the_order_of_an_ordered_dict() -> None:
    value = OrderedDict(a=1, b=2)
    value.move_to_end("a")
    again = load(dump(sample(meta={"a": value}), SPIDER), SPIDER)
    assert list(again.meta["a"].items()) == [("b", 2), ("a", 1)]


# -- requests as Scrapy makes them --


class Shop(CrawlSpider):
    name = "shop"
    rules = (
        Rule(LinkExtractor(allow="/a"), callback="item", cb_kwargs={"page": 1}),
        Rule(LinkExtractor(allow="/b"), callback=lambda response: None, follow=True),
        Rule(LinkExtractor(allow="/c", restrict_css="p")),
        Rule(LinkExtractor(allow="/d"), process_links="some", errback="failed"),
        Rule(LinkExtractor(allow="/e"), process_request="marked"),
    )

    def item(self, response: Any, page: int) -> None:
        pass

    def failed(self, failure: Any) -> None:
        pass

    def some(self, links: list[Link]) -> list[Link]:
        return links

    def marked(self, request: Request, response: Any) -> Request:
        request.meta["price"] = Price(Decimal(1))
        return request.replace(priority=1, cb_kwargs={"page": Text("2")})


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
def test_requests_of_a_crawl_spider_come_back(encoding: str) -> None:
    spider = Shop()
    body = "".join(f'<p><a href="/{name}?q=é">Seite <b>{name}</b> é</a></p>' for name in "abcde")
    response = HtmlResponse(URL, body=body.encode(encoding), encoding=encoding)
    requests = [request for request in spider._requests_to_follow(response) if request]
    assert [request.meta["rule"] for request in requests] == [0, 1, 2, 3, 4]
    assert type(requests[0].meta["link_text"]) is not str
    BASES[type(requests[0].meta["link_text"])] = str
    for request in requests:
        referred(request, response)
        assert_kept(request, spider)


@pytest.mark.parametrize(
    "request_",
    [
        sample(callback=SPIDER.parse, headers={"Referer": URL}),
        sample(callback=SPIDER.parse, encoding="cp1252"),
        sample(meta={"link_text": Text("a"), "at": [TODAY, Colour.RED, {1}]}),
        sample(cb_kwargs={"point": Point(1, 2), 1: PurePosixPath("a")}),
    ],
)
def test_no_trial_is_needed_for_plain_requests(
    request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise AssertionError("read back")

    monkeypatch.setattr(request_codec, "_read", fail)
    dump(request_, SPIDER)


def referred(request: Request, response: HtmlResponse) -> None:
    RefererMiddleware(Settings()).get_processed_request(request, response)


@pytest.mark.parametrize(
    ("referer", "stored_as"),
    [
        ("https://example.com/pages", [24, "s"]),
        (URL, [28, ""]),
        (f"{URL}#a", [28, "#a"]),
        ("https://example.com/", [20, ""]),
        ("http://example.org/", [4, "://example.org/"]),
        ("", [0, ""]),
        ("ä", [0, "\xc3\xa4"]),
    ],
)
def test_a_referer_is_stored_by_what_it_shares_with_the_url(
    referer: str, stored_as: list[object]
) -> None:
    request = sample(headers={"A": ["b"], "Referer": referer})
    fields = json.loads(dump(request, None))
    assert fields["referer"] == stored_as
    assert fields["headers"] == [["A", "b"]]
    assert_kept(request)


@pytest.mark.parametrize(
    "headers", [{"Referer": ["a", "b"]}, {"Referer": []}, {"Referer": "a", "B": "c"}]
)
def test_other_referers_are_stored_as_headers(headers: dict[str, Any]) -> None:
    request = sample(headers=headers)
    assert "referer" not in json.loads(dump(request, None))
    assert_kept(request)


@given(encodable, encodable, st.lists(st.sampled_from(["A", "Referer", "B"]), unique=True))
def test_headers_come_back_in_their_order(path: str, parent: str, names: list[str]) -> None:
    url = "https://example.com/"
    assert_kept(Request(url + path, headers=dict.fromkeys(names, url + parent)))


# -- what is refused --


@pytest.mark.parametrize(
    "value",
    [
        object(),
        math.nan,
        math.inf,
        2**MAX_BITS,
        [Number(2**MAX_BITS)],
        [Fraction("nan")],
        bytearray(b"x"),
        "\ud83d\ude00",
        [Text("\ud83d\ude00")],
        PurePosixPath("\ud83d\ude00"),
        SPIDER.parse,
        range(2),
        {math.inf},
        Rights(0),
        made(Price, amount=1),
        made(Price, amount=1, currency="EUR", more=1),
        made(Slotted, amount=1),
        type("Moment", (datetime,), {})(2027, 1, 1),
        type("Ids", (set,), {})(),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("where", ["meta", "cb_kwargs", "cookies"])
def test_values_of_other_types_are_refused(where: str, value: object) -> None:
    assert_refused(sample(**{where: {"a": [value]}}), f"{where} holds a value of type")


def spot_with_attributes() -> Spot:
    spot = Spot(1, 2)
    spot.note = "x"  # type: ignore[attr-defined]
    return spot


def local_class() -> type:
    class Local(enum.Enum):
        RED = 1

    return Local


def fake_colour() -> object:
    fake = int.__new__(Colour, 3)
    fake._name_ = "RED"
    return fake


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (TODAY.replace(fold=1), "a fold or such a time zone"),
        (datetime(2027, 1, 1, tzinfo=timezone(timedelta(hours=1), "CET")), "such a time zone"),
        (datetime(2027, 1, 1, tzinfo=ZoneInfo("UTC")), "such a time zone"),
        (time(1, fold=1), "a fold or such a time zone"),
        (PriceError(), "meta holds a value of type PriceError"),
        (Word(), "not safe"),
        (spot_with_attributes(), "meta holds a value of type Spot"),
        (tuple.__new__(Point, (1,)), "meta holds a value of type Point"),
        (fake_colour(), "meta holds a value of type Colour"),
        (local_class().RED, "not imported"),  # type: ignore[attr-defined]
        ({Fixed(1)}, "Fixed has a __hash__ or __eq__ of its own"),
        ({Fixed(1): 1}, "Fixed has a __hash__ or __eq__ of its own"),
        ({(1, Sealed(2))}, "Sealed has a __hash__ or __eq__ of its own"),
        ({OddPoint(1): 1}, "OddPoint has a __hash__ or __eq__ of its own"),
        ({Loose("a"), Loose("a")}, "meta would not come back unchanged"),
        ({Loose("a"): 1, Loose("a"): 2}, "meta would not come back unchanged"),
        ({Loose("a"): 1, "a": 2}, "meta would not come back unchanged"),
    ],
)
def test_values_that_would_not_come_back_exactly_are_refused(value: object, reason: str) -> None:
    assert_refused(sample(meta={"a": [value]}), reason)


def test_a_path_that_its_text_does_not_name_is_refused() -> None:
    path = PureWindowsPath("./c:x")
    if PureWindowsPath(str(path)).parts == path.parts:
        assert_kept(sample(meta={"a": path}))
    else:
        assert_refused(sample(meta={"a": path}), "path")


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[object] = []
    value += [value, value]
    assert_refused(sample(meta={"a": value}), "meta is nested too deeply or too large")


def test_a_value_that_grows_when_written_is_refused() -> None:
    value: list[object] = []
    for _ in range(MAX_DEPTH - 2):
        value = [value, value]
    assert_refused(sample(meta={"a": value}), "meta is nested too deeply or too large")


def free(response: Any) -> None:
    pass


@pytest.mark.parametrize(
    "function",
    [
        lambda response: None,
        free,
        OTHER.parse,
        SPIDER.static,
        SPIDER.of_the_class,
        SPIDER.partial,
        functools.partial(SPIDER.parse),
        MethodType(free, SPIDER),
        MethodType(functools.partial(free), SPIDER),
        Pages.of_the_metaclass,
    ],
)
@pytest.mark.parametrize("name", ["callback", "errback"])
def test_functions_that_are_no_methods_of_the_spider_are_refused(
    name: str, function: Method
) -> None:
    assert_refused(sample(**{name: function}), f"{name} is not a method of the spider")


def test_a_callback_without_a_spider_is_refused() -> None:
    assert_refused(sample(callback=SPIDER.parse), "callback is not a method", spider=None)


@pytest.mark.parametrize("url", ["ftp://a/b", "data:,x", "about:blank", "s3://b/k", "file:///x"])
def test_other_schemes_are_refused(url: str) -> None:
    assert_refused(Request(url), "url is of a wrong type or out of bounds")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", True),
        ("priority", MAX_PRIORITY + 1),
        ("dont_filter", 1),
        ("method", "get"),
        ("method", "GET / HTTP/1.1"),
        ("method", None),
        ("flags", [1]),
        ("flags", ("a",)),
        ("cookies", ({"name": "a"},)),
        ("cookies", [("a", "b")]),
        ("callback", 1),
        ("headers", Headers({"a": "ä"}, encoding="latin-1")),
        ("_body", bytearray(b"x")),
        ("_encoding", "no-encoding"),
        ("_encoding", Loose("utf-8")),
    ],
)
def test_attributes_that_were_changed_to_other_values_are_refused(name: str, value: object) -> None:
    request = sample()
    setattr(request, name, value)
    assert_refused(request, name.strip("_"))


@pytest.mark.parametrize("name", ["caf\xc3\xa9s".encode("latin-1"), b"lower"])
def test_headers_that_scrapy_would_spell_otherwise_are_refused(name: bytes) -> None:
    request = sample()
    dict.__setitem__(request.headers, name, [b"x"])
    assert_refused(request, "headers have a name that Scrapy spells otherwise")


def test_headers_that_are_not_bytes_are_refused() -> None:
    request = sample()
    dict.__setitem__(request.headers, b"A", ["x"])
    assert_refused(request, "headers holds a value of type str")


def test_headers_that_a_class_would_add_again_are_refused() -> None:
    request = sample(JsonRequest)
    del request.headers["Accept"]
    assert_refused(request, "headers would not come back unchanged")


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (sample(SlottedRequest, page=2), "page would not come back"),
        (sample(SlottedRequest, page=True), "page would not come back"),
        (sample(SlottedRequest, page=SPIDER), "page holds a value of type Pages"),
        (sample(TokenRequest, token=range(1)), "token holds a value of type range"),
        (sample(JsonRequest, dumps_kwargs={"cls": json.JSONEncoder}), "dumps_kwargs holds"),
        (sample(encoding="utf-16"), "url is not as Scrapy writes it"),  # it starts with a mark
        (sample(NeedyRequest, needed="x"), "TypeError.*needed"),
        (sample(ChangingRequest), "url is not as Scrapy writes it"),
        (sample(GreedyRequest), "meta would not come back"),
        (sample(FailingRequest), "broken property"),
    ],
)
def test_a_request_that_its_class_does_not_restore_is_refused(
    request_: Request, reason: str
) -> None:
    assert_refused(request_, reason)


def test_an_attribute_of_the_users_own_is_refused() -> None:
    request = sample(PlainRequest)
    request.note = "x"  # type: ignore[attr-defined]
    assert_refused(request, "note would not come back unchanged")


def test_a_class_behind_the_name_of_another_is_refused() -> None:
    hidden = type("PlainRequest", (Request,), {"__module__": __name__, "__slots__": ()})
    assert_refused(sample(hidden), "PlainRequest' is another class")


# -- stored text that is not good --


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "ASCII text"),
        (b"{}", "ASCII text"),
        ("é", "ASCII text"),
        (stored(body="x" * MAX_LENGTH), "more than 65,536 characters"),
        ("", "JSONDecodeError"),
        ("{", "JSONDecodeError"),
        ("[" * 60_000, "RecursionError|JSONDecodeError|nested"),
        ("null", "not a JSON object"),
        ("[]", "not a JSON object"),
        ("{}", "^url is of a wrong type"),
        ('{"url":"https://a/","meta":{"a":' + "[" * 40 + "]" * 40 + "}}", "nested too deeply"),
        (stored(meta={"a": math.nan}), "number out of bounds"),
        ('{"url":"https://a/","meta":{"a":1e999}}', "out of bounds"),
        (stored(meta={"a": 2**MAX_BITS}), "out of bounds"),
        (stored(extra=1), "'extra' is unknown"),
        (stored(_class="scrapy.Request"), "'_class' is unknown"),
        (stored(url=1), "^url"),
        (stored(url="example.com"), "^url"),
        (stored(url="javascript:x"), "^url"),
        (stored(url="file:///etc/passwd"), "^url"),
        (stored(url=" https://a/"), "^url"),
        (stored(url="https://a/" + " " * 60_000), "not as Scrapy writes it"),
        (stored(url="https://["), "ValueError|Invalid|IPv6"),
        (stored(method=1), "^method"),
        (stored(method="GET\r\nX: y"), "^method"),
        (stored(method="GET\n"), "^method"),
        (stored(method="get"), "^method"),
        (stored(headers={}), "^headers"),
        (stored(headers=[[]]), "^headers"),
        (stored(headers=["ab"]), "^headers"),
        (stored(headers=[["a", 1]]), "^headers"),
        (stored(headers=[["a", "\u1234"]]), "bytes beyond 255"),
        (stored(body=["x"]), "^body"),
        (stored(body="\ud800"), "bytes beyond 255"),
        (stored(cookies="a=b"), "^cookies"),
        (stored(cookies=["a"]), "^cookies"),
        (stored(meta=[]), "^meta"),
        (stored(meta={"tuple": []}), "^meta"),
        (stored(meta=None), "^meta"),
        (stored(cb_kwargs=1), "^cb_kwargs"),
        (stored(encoding=None), "^encoding"),
        (stored(encoding="no-encoding"), "^encoding"),
        (stored(encoding="rot13"), "^encoding"),
        (stored(encoding="\0"), "^encoding"),
        (stored(priority="1"), "^priority"),
        (stored(priority=True), "^priority"),
        (stored(priority=1.0), "^priority"),
        (stored(priority=-MAX_PRIORITY - 1), "^priority"),
        (stored(dont_filter=0), "^dont_filter"),
        (stored(flags="a"), "^flags"),
        (stored(flags=[1]), "^flags"),
        (stored(more=[]), "^more"),
        (stored(more={"token": 1}), "^more"),
        (stored(more={"url": URL}), "^more"),
        (stored(more={"url": URL}, **{"class": of(TokenRequest)}), "^more"),
        (stored(meta={"a": {"bytes": 1}}), "bytes is of a wrong type"),
        (stored(meta={"a": {"bytes": "\u1234"}}), "bytes beyond 255"),
        (stored(meta={"a": {"tuple": {}}}), "tuple is of a wrong type"),
        (stored(meta={"a": {"dict": {}}}), "dict is of a wrong type"),
        (stored(meta={"a": {"dict": [1]}}), "TypeError"),
        (stored(meta={"a": {"dict": [[1, 2, 3]]}}), "too many values"),
        (stored(meta={"a": {"dict": [[[], 1]]}}), "unhashable"),
        (stored(meta={"a": {"set": {}}}), "set is of a wrong type"),
        (stored(meta={"a": {"set": [[]]}}), "unhashable"),
        (stored(meta={"a": {"date": 1}}), "date is of a wrong type"),
        (stored(meta={"a": {"date": ["2027-01-01"]}}), "date is of a wrong type"),
        (stored(meta={"a": {"date": "1"}}), "Invalid isoformat"),
        (stored(meta={"a": {"datetime": "é"}}), "Invalid isoformat"),
        (stored(meta={"a": {"timedelta": "1"}}), "not enough values"),
        (stored(meta={"a": {"timedelta": "9" * 999 + " 0 0"}}), "OverflowError"),
        (stored(meta={"a": {"timedelta": "1 2 3 4"}}), "too many values"),
        (stored(meta={"a": {"decimal": "x"}}), "InvalidOperation"),
        (stored(meta={"a": {"decimal": "1e" + "9" * 99}}), "InvalidOperation"),
        (stored(meta={"a": {"uuid": "1"}}), "not enough values"),
        (stored(meta={"a": {"uuid": f"{UUID(int=1)} x"}}), "KeyError"),
        (stored(meta={"a": {"WindowsPath": "a"}}), "WindowsPath"),
        (stored(meta={"a": {"enum": of(Colour)}}), "enum is of a wrong type"),
        (stored(meta={"a": {"enum": [of(Colour)]}}), "not enough values"),
        (stored(meta={"a": {"enum": [of(Colour), "NONE"]}}), "enum is not what Colour holds"),
        (stored(meta={"a": {"enum": [of(Colour), 1]}}), "enum is not what Colour holds"),
        (stored(meta={"a": {"enum": [of(Colour), ["RED"]]}}), "enum is not what Colour holds"),
        (stored(meta={"a": {"enum": [of(Size), "_missing_"]}}), "enum is not what Size holds"),
        (stored(meta={"a": {"enum": [of(Price), "currency"]}}), "enum cannot hold"),
        (stored(meta={"a": {"enum": ["os:environ", "PATH"]}}), "not imported"),
        (stored(meta={"a": {"set": [{"enum": [of(Shade), "DARK"]}]}}), "Shade has a __hash__"),
        (stored(meta={"a": {"dataclass": [of(Point), {}]}}), "dataclass cannot hold"),
        (stored(meta={"a": {"dataclass": [of(Spider), {}]}}), "dataclass cannot hold"),
        (stored(meta={"a": {"dataclass": [of(Pages), {}]}}), "dataclass cannot hold"),
        (stored(meta={"a": {"dataclass": [of(Price), {}]}}), "not what Price holds"),
        (stored(meta={"a": {"dataclass": [of(Price), []]}}), "not what Price holds"),
        (stored(meta={"a": {"dataclass": [of(Fixed), {"_x": 1}]}}), "not what Fixed holds"),
        (stored(meta={"a": {"dataclass": [of(Fixed), {"amount": 1, "x": 1}]}}), "not what Fixed"),
        (stored(meta={"a": {"dataclass": [of(Guarded), {"amount": 1}]}}), "is a property"),
        (stored(meta={"a": {"dataclass": [of(PriceError), {"amount": 1}]}}), "not safe"),
        (stored(meta={"a": {"dataclass": [of(Word), {"amount": 1}]}}), "not safe"),
        (stored(meta={"a": {"set": [{"dataclass": [of(Fixed), {"amount": 1}]}]}}), "__hash__"),
        (stored(meta={"a": {"set": [{"dataclass": [of(Hooked), {"amount": 1}]}]}}), "__hash__"),
        (stored(meta={"a": {"namedtuple": [of(Point), [1]]}}), "not what Point holds"),
        (stored(meta={"a": {"namedtuple": [of(Point), [1, 2, 3]]}}), "not what Point holds"),
        (stored(meta={"a": {"namedtuple": [of(Point), {}]}}), "not what Point holds"),
        (stored(meta={"a": {"namedtuple": [of(Pair), []]}}), "namedtuple cannot hold"),
        (stored(meta={"a": {"namedtuple": [of(Fixed), []]}}), "namedtuple cannot hold"),
        (stored(referer=1), "^referer"),
        (stored(referer=[]), "^referer"),
        (stored(referer=[0]), "^referer"),
        (stored(referer=[-1, ""]), "^referer"),
        (stored(referer=[len(URL) + 1, ""]), "^referer"),
        (stored(referer=[True, ""]), "^referer"),
        (stored(referer=["1", ""]), "^referer"),
        (stored(referer=[0, 1]), "^referer"),
        (stored(referer=[0, "\u1234"]), "bytes beyond 255"),
    ],
)
def test_bad_text_is_refused_with_a_reason(text: object, reason: str) -> None:
    assert_bad(text, reason)


@pytest.mark.parametrize("name", ["callback", "errback"])
@pytest.mark.parametrize(
    "value",
    [
        True,
        1,
        "",
        ["parse"],
        "a.b",
        "no_such_method",
        "name",
        "number",
        "logger",
        "static",
        "of_the_class",
        "of_the_metaclass",
        "partial",
        "tempting",
        "__class__",
        "__reduce__",
        "mro",
    ],
)
def test_what_is_no_method_of_the_spider_is_no_callback(name: str, value: object) -> None:
    assert_bad(stored(**{name: value}), f"^{name}")


def test_no_property_of_the_spider_is_evaluated() -> None:
    class Tempted(Pages):
        pass

    spider = Tempted()
    assert_refused(sample(callback=OTHER.parse), "callback", spider)
    assert_refused(sample(callback=MethodType(free, spider)), "callback", spider)
    with pytest.raises(ValueError, match="callback 'tempting'"):
        load(stored(callback="tempting"), spider)
    assert not Tempted.touched


class Lazy(ModuleType):
    """A module that would import something when an attribute is read."""

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(name)


@pytest.mark.parametrize(
    "path",
    [
        None,
        1,
        ["scrapy:Request"],
        "",
        "Request",
        ":Request",
        "scrapy.http.request:",
        "scrapy.http.request",
        "scrapy.http.request.Request",
        "scrapy.http.request:Request.copy",
        "scrapy.http.request:Request.__class__",
        "scrapy.http.request:scrapy.Request",
        "scrapy.http.response:Response",
        "scrapy.no_module:Request",
        "scrapy.signals:request_scheduled",
        "builtins:eval",
        "builtins:int",
        "os:system",
        "typing:Any",
        "antigravity:Request",
        "lazy_module:Request",
        "no_module:Request",
        "none_module:Request",
        f"{__name__}:SPIDER",
        f"{__name__}:SPIDER.__class__",
        f"{__name__}:sys.Request",
        f"{__name__}:local_class.<locals>.Local",
        f"{__name__}:Pages.tempting",
        f"{__name__}:Price",
    ],
)
def test_what_is_not_an_imported_class_of_requests_is_refused(
    path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lazy_module", Lazy("lazy_module"))
    monkeypatch.setitem(sys.modules, "none_module", None)
    before = set(sys.modules)
    assert_bad(stored(**{"class": path}), "^class .* is not")
    assert set(sys.modules) == before
    assert not Pages.touched


def test_a_module_is_not_asked_for_attributes_it_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def imports(name: str) -> object:
        raise AssertionError(name)

    module = ModuleType("asked")
    module.__getattr__ = imports  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "asked", module)
    monkeypatch.setitem(globals(), "asked", module)
    assert_bad(stored(**{"class": "asked:Request"}), "^class .* is not imported")


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

class Outer:
    Colour = Colour
"""


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a module that is imported, but not by the spider's module."""
    module = ModuleType("elsewhere")
    monkeypatch.setitem(sys.modules, "elsewhere", module)
    exec(ELSEWHERE, vars(module))
    return module


@pytest.mark.parametrize("name", ["Colour", "Price", "Point", "OwnRequest"])
@pytest.mark.parametrize("held", ["class", "module"])
def test_classes_are_found_only_through_the_modules_of_the_spider(
    elsewhere: Any, name: str, held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls = getattr(elsewhere, name)
    request = sample(cls) if issubclass(cls, Request) else sample(meta={"a": cls(1)})
    assert_refused(request, "is not imported by the spider's module")
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "other_name", cls if held == "class" else elsewhere)
        text = dump(request, SPIDER)
        assert_kept(request)
        assert_refused(request, "is not imported by the spider's module", None)
    assert_bad(text, "is not imported by the spider's module")


def test_classes_are_found_through_the_modules_of_base_classes(elsewhere: Any) -> None:
    elsewhere.Base = type("Base", (Spider,), {"__module__": "elsewhere"})

    class Derived(elsewhere.Base):  # type: ignore[misc, name-defined]
        name = "derived"

    assert_kept(sample(meta={"a": elsewhere.Colour.RED, "b": Colour.RED}), Derived())


def test_a_class_behind_the_path_of_another_is_refused() -> None:
    hidden = enum.Enum("Colour", {"RED": 1}, module=__name__)  # type: ignore[misc]
    assert_refused(sample(meta={"a": hidden.RED}), "Colour' is another class")


@pytest.mark.parametrize("name", ["hook", "__post_init__"])
def test_no_code_of_a_dataclass_runs(name: str) -> None:
    with pytest.raises(AssertionError):
        getattr(Hooked, name)(None)
    text = stored(meta={"a": {"dataclass": [of(Hooked), {"amount": [1]}]}})
    value = load(text, SPIDER).meta["a"]
    assert type(value) is Hooked
    assert vars(value) == {"amount": [1]}
    assert_kept(sample(meta={"a": made(Hooked, amount=[1])}))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("NeedyRequest", "TypeError.*needed"),
        ("ChangingRequest", "url is not as Scrapy writes it"),
        ("RaisingRequest", "KeyError"),
    ],
)
def test_a_class_that_fails_is_an_error_of_the_stored_request(name: str, reason: str) -> None:
    assert_bad(stored(**{"class": f"{__name__}:{name}"}), reason)


# A good request with everything in it, to be damaged.
RICH = json.loads(
    dump(
        sample(
            TokenRequest,
            callback=SPIDER.parse,
            errback=NO_CALLBACK,
            method="POST",
            headers={"A": ["b", "c"], "Referer": "https://example.com/p"},
            body=b"\xff",
            cookies=[{"name": "a", "value": b"b"}],
            meta={"a": (1, {2: [b"x"]}), "b": {"tuple": 1.5}},
            cb_kwargs={"page": 2},
            encoding="cp1252",
            priority=-1,
            dont_filter=True,
            flags=["x"],
            token=("t", Price(1), {Colour.RED}, Point(1, 2), TODAY, Path("a")),
        ),
        SPIDER,
    )
)


def loads_or_is_refused(text: str) -> None:
    try:
        request = load(text, SPIDER)
    except ValueError:
        pass
    else:
        assert request.url.startswith(("http://", "https://"))
        for method in (request.callback, request.errback):
            good = getattr(method, "__self__", None) is SPIDER
            assert good or method is None or method is NO_CALLBACK


@given(json_values)
def test_any_json_is_a_request_or_refused(value: object) -> None:
    loads_or_is_refused(json.dumps(value))


@given(st.text(max_size=50))
def test_any_text_is_a_request_or_refused(text: str) -> None:
    loads_or_is_refused(text)


@given(st.sampled_from(sorted(RICH)), json_values)
def test_any_value_of_a_field_is_good_or_refused(name: str, value: object) -> None:
    loads_or_is_refused(json.dumps({**RICH, name: value}))


@given(st.data())
def test_a_text_with_a_piece_replaced_is_a_request_or_refused(data: st.DataObject) -> None:
    text = json.dumps(RICH)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 20)))
    piece = data.draw(st.text('{}[]",:\\u0189abtuple e-.', max_size=6) | st.text(max_size=3))
    loads_or_is_refused(text[:start] + piece + text[end:])
