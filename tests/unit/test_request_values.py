"""Values of a request's attributes, stored as JSON: they come back exactly, or are refused."""

import enum
from collections import OrderedDict, defaultdict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from support import stored_requests as kinds
from support.stored_requests import SPIDER, URL, assert_refused, assert_stored, made, of, sample

from scrapy_bloom.crawl.request_codec import dump
from scrapy_bloom.crawl.request_values import MAX_DEPTH

TODAY = datetime(2027, 1, 1, 12, tzinfo=UTC)

# -- what is stored --

PLAIN = [
    *(None, True, 1, 1.0, -0.0, float("inf"), 10**300, "a", "", "ä", b"", b"\xff"),
    *("\udc00", "a\udfff", "\udc00\ud800", "\ud800"),
    *(date(2027, 1, 2), time(1, 2, 3, 4), timedelta(-1, 2, 3), TODAY, UUID(int=7)),
    datetime.max.replace(tzinfo=timezone(timedelta(seconds=-1))),
    *(Decimal("1.50"), Decimal("-0"), Decimal("1E+99"), Decimal("-Infinity")),
    *(*kinds.Colour, *kinds.Size, kinds.Rights.READ, kinds.Rights.ALL, kinds.Boxed.Colour.RED),
    *(kinds.Text("a"), kinds.Point(1), frozenset([1, (2, "a")]), (1, (b"a",))),
]
HOLDING = [
    *(PLAIN, tuple(PLAIN), set(PLAIN), dict.fromkeys(PLAIN, 1)),
    *({"set": [1]}, {"dict": 1, "tuple": 2}, {"ä": 1, "\ud83d\ude00"[:1]: 2}, {2: {3: {}}}),
    *(
        kinds.Price([1], "a"),
        kinds.Price({1: {2: (3,)}}),
        kinds.Sealed([kinds.Price(1)], {"enum": 1}),
    ),
    made(kinds.Raising, amount=[1]),
]


@pytest.mark.parametrize("value", HOLDING, ids=lambda value: type(value).__name__)
def test_values_come_back_exactly(value: object) -> None:
    held = {"a": value, "b": [value], 1: value}
    assert_stored(sample(kinds.TokenRequest, token=value, meta=held, cb_kwargs=held, cookies=held))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (date(2027, 1, 2), '{"date":"2027-01-02"}'),
        (timedelta(-1, 2, 3), '{"timedelta":"-1 2 3"}'),
        (kinds.Colour.CRIMSON, f'{{"enum":["{of(kinds.Colour)}","RED"]}}'),
        (kinds.Price(1), f'{{"dataclass":["{of(kinds.Price)}",{{"amount":1,"currency":"EUR"}}]}}'),
        (kinds.Point(1), f'{{"namedtuple":["{of(kinds.Point)}",[1,null]]}}'),
        ({"set": 1}, '{"dict":[["set",1]]}'),
        ({1: [2]}, '{"dict":[[1,[2]]]}'),
        ((1, b"\xff"), r'{"tuple":[1,{"bytes":"\u00ff"}]}'),
        ({2, 1}, '{"set":[1,2]}'),
        (frozenset({1}), '{"frozenset":[1]}'),
        (TODAY, '{"datetime":"2027-01-01T12:00:00+00:00"}'),
        (time(1, 2), '{"time":"01:02:00"}'),
        (Decimal("1.50"), '{"Decimal":"1.50"}'),
        (UUID(int=7), '{"UUID":"00000000-0000-0000-0000-000000000007"}'),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_are_stored_under_their_tags(value: object, text: str) -> None:
    """If this changes, raise ``spec.FORMAT``, because versions read each other's requests."""
    request = sample(meta={"a": value})
    assert dump(request, SPIDER) == f'{{"url":"{URL}","meta":{{"a":{text}}}}}'
    assert_stored(request)


@pytest.mark.parametrize("innermost", [1, (), {"tuple": 1}, {1: [2]}, kinds.Point(1), {1}, b"a"])
def test_what_is_stored_can_be_read_however_deep_it_is(innermost: object) -> None:
    value, stored = innermost, 0
    for depth in range(MAX_DEPTH + 2):
        request = sample(meta={"a": value})
        try:
            dump(request, SPIDER)
        except ValueError:
            assert stored
        else:
            assert stored == depth, "what is less deep was refused"
            stored += 1
            assert_stored(request)
        value = (value,) if depth % 2 else [value]
    assert MAX_DEPTH // 2 <= stored <= MAX_DEPTH + 1


# -- what is refused --


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
        (object(), "a value of type object"),
        (bytearray(b"x"), "a value of type bytearray"),
        (SPIDER.parse, "a value of type method"),
        (defaultdict(list), "a value of type defaultdict"),
        (OrderedDict(), "a value of type OrderedDict"),
        (PurePosixPath(), "a value of type PurePosixPath"),
        (kinds.Text("\ud83d\ude00"), "a value of type str"),
        (TODAY.replace(fold=1), "a value of type datetime"),
        (TODAY.replace(tzinfo=ZoneInfo("UTC")), "a value of type datetime"),
        (kinds.Rights(0), "a Rights that has"),
        (made(kinds.Price, amount=1, currency="EUR", more=1), "a Price that has"),
        (made(kinds.Sealed, amount=1), "AttributeError.*more"),
        (kinds.PriceError(), "a PriceError that has"),
        (tuple.__new__(kinds.Point, (1,)), "a Point that has"),
        (spot_with_attributes(), "a Spot that has"),
        (local_class().RED, "does not import the class"),
        (10**5000, "digits"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_would_not_come_back_exactly_are_refused(value: object, reason: str) -> None:
    for where in ("meta", "cb_kwargs", "cookies"):
        arguments: dict[str, Any] = {where: {"a": [value]}}
        assert_refused(sample(**arguments), reason)


def test_a_value_that_holds_itself_and_a_class_behind_the_path_of_another_are_refused() -> None:
    value: list[object] = []
    value += [value]
    assert_refused(sample(meta={"a": value}), "nested too deeply")
    hidden: Any = enum.Enum("Colour", {"RED": 1}, module=kinds.Colour.__module__)  # type: ignore[misc]
    assert_refused(sample(meta={"a": hidden.RED}), "does not import the class")
