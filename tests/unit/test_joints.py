"""Requests that share an object: those that have changed it end together."""

import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.http import HtmlResponse
from scrapy.loader import ItemLoader
from support.ended_pages import DROP, Crawl, key

from scrapy_bloom.crawl.rule import Known
from scrapy_bloom.crawl.shared_objects import MAX_INSTANCES, SharedObjects, _objects


@pytest.fixture
def crawl() -> Crawl:
    return Crawl()


class Shared:
    """Pages whose requests share an object, and the page that has yielded them.

    Args:
        crawl: their crawl.
        names: of these pages.
        value: the object.
        given: returns arguments of a page's request, by the object and the page's name.
    """

    def __init__(
        self,
        crawl: Crawl,
        names: Sequence[str],
        value: Any = None,
        given: Callable[[Any, str], dict[str, Any]] = lambda value, _: {"cb_kwargs": {"": value}},
    ) -> None:
        self.crawl, self.value = crawl, {} if value is None else value
        pages = SimpleNamespace(endings=crawl.endings)
        offers: Any = SimpleNamespace(unsaved={}, pages=pages)
        self.offers, self.objects = (
            offers,
            SharedObjects(offers, Request("https://example.com/"), None),
        )
        self.parent = crawl.page("parent", is_stored=True)
        self.pages = {name: crawl.page(name) for name in names}
        for name in names:
            request = Request("https://example.com/", **given(self.value, name))
            self.objects.add(request)
            crawl.endings.wait(self.parent, key(name))
            crawl.endings.join(key(name), self.offers.unsaved[request])

    def close(self) -> None:
        """End the callback that has yielded them."""
        self.objects.close()
        self.crawl.end(self.parent)

    def end(self, name: str, *, changes: bool = True, error: str = "") -> None:
        """End one of these pages, whose callback may change the object."""
        if changes:
            self.value[name] = 1
        self.crawl.end(self.pages[name], error=error)


def test_pages_that_have_changed_what_they_share_end_together(crawl: Crawl) -> None:
    shared = Shared(crawl, "abc")
    shared.close()
    shared.end("a")
    shared.end("b")
    assert crawl.ended == []
    shared.end("c")
    assert sorted(crawl.ended[:-1]) == [("CONFIRM", name) for name in "abc"]
    assert crawl.ended[-1] == ("CONFIRM", "parent")


def test_pages_end_together_though_another_page_has_a_request_for_one_of_them(
    crawl: Crawl,
) -> None:
    shared, other = Shared(crawl, "ab"), crawl.page("other", is_stored=True)
    shared.close()
    crawl.endings.led_to(other, key("a"), Known.HERE, "{}")
    crawl.end(other)
    shared.end("a")
    assert crawl.ended == []
    shared.end("b")
    assert sorted(crawl.ended) == [("CONFIRM", name) for name in ("a", "b", "other", "parent")]


def test_pages_that_share_what_nobody_changes_end_alone(crawl: Crawl) -> None:
    shared = Shared(crawl, "ab")
    shared.close()
    shared.end("a", changes=False)
    assert crawl.ended == [("CONFIRM", "a")]
    shared.end("b", changes=False)
    assert crawl.ended[1:] == [("CONFIRM", "b"), ("CONFIRM", "parent")]


def test_pages_end_together_that_share_objects_with_a_later_one(crawl: Crawl) -> None:
    """For example one request for the prices of all items on a page."""
    items: list[dict[str, int]] = [{}, {}]
    of = {"a": items[:1], "b": items[1:], "prices": items}
    shared = Shared(crawl, [*of], items, lambda _, name: {"cb_kwargs": {"items": of[name]}})
    shared.close()
    items[0]["a"] = items[1]["b"] = 1
    shared.end("a", changes=False)
    shared.end("b", changes=False)
    assert crawl.ended == []
    shared.end("prices", changes=False)
    assert {name for _, name in crawl.ended} == {*of, "parent"}


@pytest.mark.parametrize("error", ["", "HTTP-503"])
def test_a_page_ends_together_with_one_that_it_passes_an_object_on_to(
    crawl: Crawl, error: str
) -> None:
    shared = Shared(crawl, "ab")
    shared.close()
    page = crawl.page("c")
    own, further = (Request("https://example.com/", meta={"item": shared.value}) for _ in "ac")
    objects = SharedObjects(shared.offers, own, shared.pages["a"])
    objects.add(further)
    objects.decide([further])
    joint = shared.offers.unsaved[further]
    assert joint.is_passed_on
    crawl.endings.join(key("c"), joint)
    objects.close()
    shared.end("a", changes=False)
    shared.end("b")
    assert crawl.ended == []
    crawl.end(page, error=error)
    kind = "FAIL" if error else "CONFIRM"
    assert sorted(crawl.ended) == [(kind, name) for name in ("a", "b", "c", "parent")]


class Slots:
    """An object without a dict."""

    __slots__ = ("parts", "self")

    def __init__(self) -> None:
        self.parts, self.self = [0], self


@dataclass
class Size:
    """What an Enum can be made of; it has no hash, and so the members haven't."""

    count: int


class Sizes(Size, Enum):
    SMALL = 1


class Guarded(Slots):
    """An object that can't be copied, as a selector."""

    def __getstate__(self) -> Any:
        raise TypeError


@pytest.mark.parametrize(
    ("value", "change"),
    [
        (ItemLoader({"parts": 0}), lambda one: one.add_value("parts", 1)),
        (SimpleNamespace(inner=[{"parts": 0}]), lambda one: one.inner[0].update(parts=1)),
        (Slots(), lambda one: one.parts.append(1)),
        (Guarded(), lambda one: setattr(one, "parts", None)),
        (deque([0]), lambda one: one.append(1)),
        ([{0}, b"", 1.0], lambda one: one[0].add(1)),
        ([[0], []], lambda one: one.reverse()),
        ([True], lambda one: one.__setitem__(0, 1)),
        ([[0]] * 10_000, lambda one: one.pop()),
        ([Sizes.SMALL], lambda one: one.append(Sizes.SMALL)),
    ],
    ids=[
        *("item-loader", "attributes", "slots", "guarded", "deque", "set", "order", "type"),
        *("large", "not-hashable"),
    ],
)
def test_pages_share_objects_of_any_class(
    crawl: Crawl, value: Any, change: Callable[[Any], object]
) -> None:
    shared = Shared(crawl, "abc", value)
    shared.close()
    shared.end("a", changes=False)
    assert crawl.ended == [("CONFIRM", "a")]
    change(value)
    shared.end("b", changes=False)
    assert crawl.ended == [("CONFIRM", "a")]
    shared.end("c", changes=False)
    assert sorted(crawl.ended[1:]) == [("CONFIRM", name) for name in ("b", "c", "parent")]


OPTIONS = {"browser": True}
HALF = SimpleNamespace(tabs=tuple(SimpleNamespace(is_busy=False) for _ in range(MAX_INSTANCES)))
SPIDER = Spider("shop")


class Bag(list[int]):
    """An object with a method that is a callback."""

    def take(self, response: object) -> None:
        pass


def _late(value: list[int], name: str) -> dict[str, Any]:
    """Return a constant with each request, and the object with all but the first."""
    return {"meta": {"options": OPTIONS} | ({} if name == "first" else {"item": value})}


@pytest.mark.parametrize(
    "given",
    [
        _late,
        lambda value, _: {"callback": lambda response, item=value: item},
        lambda value, _: {"callback": lambda response: value},
        lambda value, _: {"callback": partial(print, value)},
        lambda value, _: {"callback": partial(print, item=value), "errback": SPIDER.log},
        lambda value, _: {"callback": value.take},
        lambda value, _: {"cb_kwargs": {"item": value, "half": HALF}},
        lambda value, _: {"cb_kwargs": {"item": value, "half": HALF, "spider": SPIDER}},
        lambda value, _: {"cb_kwargs": {"file": bytearray(), "callback": lambda: value}},
    ],
    ids=[
        *("besides-a-constant", "default", "closure", "partial", "keyword", "method"),
        *("besides-half-of-the-crawl", "besides-the-spider", "function-in-kwargs"),
    ],
)
def test_pages_share_objects_in_many_ways(
    crawl: Crawl, given: Callable[[Any, str], dict[str, Any]]
) -> None:
    value = Bag()
    shared = Shared(crawl, ["first", "a", "b"], value, given)
    shared.close()
    value.append(1)
    shared.end("a", changes=False)
    assert crawl.ended == []
    shared.end("b", changes=False)
    shared.end("first", changes=False)
    assert {name for _, name in crawl.ended} == {"first", "a", "b", "parent"}


def test_pages_share_objects_that_hide_their_changes(crawl: Crawl) -> None:
    """As those that are written in C: nobody knows whether they are changed."""
    shared = Shared(crawl, "ab", bytearray())
    shared.close()
    shared.end("a", changes=False)
    assert crawl.ended == []
    shared.end("b", changes=False)
    assert len(crawl.ended) == 3


def test_pages_that_share_what_they_only_read_end_alone(crawl: Crawl) -> None:
    response = HtmlResponse("https://example.com/", body=b"<p>")
    read = {"response": response, "selector": response.css("p")[0], "pattern": re.compile("a")}
    shared = Shared(crawl, "ab", read)
    shared.close()
    response.css("p").getall()
    shared.end("a", changes=False)
    assert crawl.ended == [("CONFIRM", "a")]


def test_what_half_of_the_crawl_hangs_on_is_no_item(crawl: Crawl) -> None:
    """For example a browser, a connection or a spider: pages that share one end alone."""
    shared = Shared(crawl, "ab", HALF)
    shared.close()
    HALF.tabs[0].is_busy ^= True
    shared.end("a", changes=False)
    assert crawl.ended == [("CONFIRM", "a")]


@pytest.mark.parametrize("failing", "abc")
@pytest.mark.parametrize("changes", [True, False], ids=["changing", "not-changing"])
@pytest.mark.parametrize("is_first", [True, False], ids=["callback-first", "callback-last"])
def test_pages_that_have_changed_what_they_share_fail_together(
    crawl: Crawl, failing: str, changes: bool, is_first: bool
) -> None:
    """And with them the page that yields them again, so that they share an object again."""
    shared = Shared(crawl, "abc")
    if is_first:
        shared.close()
    for name in "abc":
        is_failing = name == failing
        error = "HTTP-503" if is_failing else ""
        shared.end(name, changes=changes or not is_failing, error=error)
    if not is_first:
        shared.close()
    assert sorted(crawl.ended) == [("FAIL", name) for name in ("a", "b", "c", "parent")]


def test_a_page_that_is_dropped_changes_nothing_that_others_share(crawl: Crawl) -> None:
    shared = Shared(crawl, "ab")
    shared.close()
    shared.end("a")
    shared.pages["b"].outcome = DROP
    crawl.endings.settle(shared.pages["b"])
    assert sorted(crawl.ended) == [("CONFIRM", "a"), ("CONFIRM", "parent"), ("DROP", "b")]


def test_pages_that_share_an_object_are_as_old_as_the_oldest(crawl: Crawl) -> None:
    """If the server was restarted meanwhile, all are crawled again."""
    shared = Shared(crawl, "abc")
    shared.close()
    for epoch, name in ((5, "a"), (3, "b"), (4, "c")):
        shared.pages[name].epoch = epoch
        shared.end(name)
    assert {op.epoch for op in crawl.ops if op.key[1] != b"parent"} == {3}


def test_one_item_of_pages_that_share_an_object_is_enough() -> None:
    crawl = Crawl(items_only=True)
    shared = Shared(crawl, "abc")
    shared.close()
    shared.pages["b"].has_item = True
    for name in "abc":
        shared.end(name)
    assert [kind for kind, name in crawl.ended if name in "abc"] == ["CONFIRM"] * 3


@dataclass
class Box:
    content: object


@pytest.mark.parametrize(
    "wrap",
    [lambda one: one, lambda one: {"key": (one,)}, Box],
    ids=["itself", "in containers", "in a dataclass"],
)
def test_a_shared_object_is_found_in_any_other_one(wrap: Callable[[object], object]) -> None:
    shared, wrapped = dict[str, object](), list[object]()
    wrapped += wrap([shared]), wrap({"key": shared}), wrap((Box(shared), shared))
    for one in wrapped:
        assert any(found is shared for found in _objects([one]))


def test_a_request_that_turns_out_to_share_nothing_is_not_joint_any_more(crawl: Crawl) -> None:
    shared = Shared(crawl, "ab")
    crawl.endings.store(key("a"), "{}")
    shared.close()
    shared.end("b")
    assert crawl.ended == [("CLAIM", "a"), ("CONFIRM", "b"), ("CONFIRM", "parent")]
