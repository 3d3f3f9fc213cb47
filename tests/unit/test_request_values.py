"""Values of a request's attributes, stored as JSON: they come back exactly, or are refused."""

import enum
from collections import defaultdict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import PosixPath, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from scrapy import Request
from scrapy.http import Headers
from support import stored_requests as kinds
from support.stored_requests import SPIDER, URL, assert_kept, assert_refused, made, of, sample

from scrapy_bloom.crawl.request_codec import dump
from scrapy_bloom.crawl.request_values import MAX_DEPTH

TODAY = datetime(2027, 1, 1, 12, tzinfo=UTC)

# -- what is kept --

PLAIN = [
    *(None, True, 1, 1.0, -0.0, float("inf"), 10**300, "a", "", b"", b"\xff"),
    *("\udc00", "a\udfff", "\udc00\ud800", "\ud800"),
    *(date(2027, 1, 2), time(1, 2, 3, 4), timedelta(-1, 2, 3), TODAY, UUID(int=7)),
    datetime.max.replace(tzinfo=timezone(timedelta(seconds=-1))),
    time(1, tzinfo=timezone(timedelta(seconds=-1))),
    *(Decimal("1.50"), Decimal("-0"), Decimal("1E+99"), Decimal("-Infinity")),
    *(PurePosixPath("/a/é"), PosixPath("a\udc80"), PureWindowsPath("C:/a")),
    *(*kinds.Colour, *kinds.Size, kinds.Rights.READ, kinds.Rights.ALL, kinds.Boxed.Colour.RED),
    *(kinds.Text("a"), kinds.Number(1), kinds.Fraction(1.5), kinds.Octets(b"a")),
    *(kinds.Point(1), kinds.Fixed((1, b"a")), frozenset([1, (2, "a")]), (1, (b"a",))),
]
HOLDING = [
    *(PLAIN, tuple(PLAIN), set(PLAIN), kinds.Items([1, [2]]), kinds.Pair((1, {2}))),
    *(dict.fromkeys(PLAIN, 1), {"set": [1]}, {"dict": 1, "tuple": 2}),
    *(kinds.Mapping(a=kinds.Text("b")), {kinds.Text("a"): 1, 2: kinds.Text("b")}),
    *(defaultdict(list, a=[1]), Headers({"A": "b"})),
    *(kinds.Spot(1, [2]), kinds.Price([1], "a"), kinds.Slotted({1: {2: (3,)}})),
    *(kinds.Discount(kinds.Point(kinds.Spot({}, 1))), kinds.Sealed([kinds.Price(1)], {"enum": 1})),
    made(kinds.Raising, amount=[1]),
]


@pytest.mark.parametrize("value", HOLDING, ids=lambda value: type(value).__name__)
def test_values_come_back_exactly(value: object) -> None:
    """The fuzzer of requests finds others, by way of what is stored."""
    held = {"a": value, "b": [value], 1: value}
    assert_kept(sample(kinds.TokenRequest, token=value, meta=held, cb_kwargs=held, cookies=held))


# -- how it is stored --


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({3, 1, 2}, '{"set":[1,2,3]}'),
        (date(2027, 1, 2), '{"date":"2027-01-02"}'),
        (timedelta(-1, 2, 3), '{"timedelta":"-1 2 3"}'),
        (kinds.Colour.CRIMSON, f'{{"enum":["{of(kinds.Colour)}","RED"]}}'),
        (kinds.Boxed.Colour.RED, f'{{"enum":["{of(kinds.Boxed)}.Colour","RED"]}}'),
        (kinds.Price(1), f'{{"dataclass":["{of(kinds.Price)}",{{"amount":1,"currency":"EUR"}}]}}'),
        (kinds.Point(1), f'{{"namedtuple":["{of(kinds.Point)}",[1,null]]}}'),
        ({"set": 1}, '{"dict":[["set",1]]}'),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_are_stored_under_their_tags(value: object, text: str) -> None:
    request = sample(meta={"a": value})
    assert dump(request, SPIDER) == f'{{"url":"{URL}","meta":{{"a":{text}}}}}'
    assert_kept(request)


@pytest.mark.parametrize("innermost", [1, (), {"tuple": 1}, {1: [2]}, kinds.Point(1), {1}])
def test_what_is_stored_can_be_read_however_deep_it_is(innermost: object) -> None:
    value, is_kept = innermost, False
    for _ in range(MAX_DEPTH):
        value = [value]
    for _ in range(MAX_DEPTH):
        value = value[0]  # type: ignore[index]
        request = sample(meta={"a": value})
        try:
            dump(request, SPIDER)
        except ValueError:
            assert not is_kept
        else:
            is_kept = True
            assert_kept(request)


# -- what is refused --


@pytest.mark.parametrize(
    "value",
    [
        object(),
        bytearray(b"x"),
        [kinds.Text("\ud83d\ude00")],
        PurePosixPath("\ud83d\ude00"),
        SPIDER.parse,
        kinds.Rights(0),
        made(kinds.Price, amount=1, currency="EUR", more=1),
        type("Moment", (datetime,), {})(2027, 1, 1),
        TODAY.replace(fold=1),
        TODAY.replace(tzinfo=ZoneInfo("UTC")),
        time(1, fold=1),
        tuple.__new__(kinds.Point, (1,)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_of_other_types_are_refused(value: object) -> None:
    for where in ("meta", "cb_kwargs", "cookies"):
        arguments: dict[str, Any] = {where: {"a": [value]}}
        assert_refused(Request(URL, **arguments), f"{where} holds a value of type")


def spot_with_attributes() -> kinds.Spot:
    spot = kinds.Spot(1, 2)
    spot.note = "x"  # type: ignore[attr-defined]
    return spot


def local_class() -> Any:
    class Local(enum.Enum):
        RED = 1

    return Local


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (made(kinds.Slotted, amount=1), "AttributeError.*currency"),
        (kinds.PriceError(), "not safe"),
        (spot_with_attributes(), "meta holds a value of type Spot"),
        (local_class().RED, "not imported"),
        ({kinds.Loose("a"): 1, "a": 2}, "meta would not come back unchanged"),
        ({kinds.Hashable()}, "unhashable"),
        (10**5000, "digits"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_would_not_come_back_exactly_are_refused(value: object, reason: str) -> None:
    assert_refused(sample(meta={"a": [value]}), reason)


def test_a_value_that_holds_itself_and_a_class_behind_the_path_of_another_are_refused() -> None:
    value: list[object] = []
    value += [value, value]
    assert_refused(sample(meta={"a": value}), "meta is nested too deeply or too large")
    hidden: Any = enum.Enum("Colour", {"RED": 1}, module=kinds.Colour.__module__)  # type: ignore[misc]
    assert_refused(sample(meta={"a": hidden.RED}), "Colour' is another class")
