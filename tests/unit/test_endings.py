"""When pages end, and how: after all that they led to, and with it."""

import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request, Spider
from scrapy.http import HtmlResponse
from scrapy.loader import ItemLoader

from scrapy_bloom.bloom.protocol.session import Key
from scrapy_bloom.crawl import endings
from scrapy_bloom.crawl.endings import ONCE, Endings, Page
from scrapy_bloom.crawl.local import LocalUrls
from scrapy_bloom.crawl.monitor import Monitor
from scrapy_bloom.crawl.ops import Op, OpKind
from scrapy_bloom.crawl.rule import Known
from scrapy_bloom.crawl.shared_objects import MAX_INSTANCES, SharedObjects, _objects
from scrapy_bloom.rules import RUN

CONFIRM, FAIL, STOP, DROP = OpKind.CONFIRM, OpKind.FAIL, OpKind.STOP, OpKind.DROP


class Crawl:
    """Pages of a crawl, which end. Pages and their URLs have the same names.

    Args:
        queue: "" in memory.
        items_only: whether pages without items are new again.
    """

    def __init__(self, queue: str = "", *, items_only: bool = False) -> None:
        self.local, self.ops, self.stats = LocalUrls(), list[Op](), dict[str, int]()
        context: Any = SimpleNamespace(
            local=self.local,
            monitor=Monitor(None),
            settings=SimpleNamespace(items_only=items_only),
            me=SimpleNamespace(queue=queue),
        )
        self.endings = Endings(context, self.ops.append)

    def page(self, name: str, *, window: str = "default", is_stored: bool = False) -> Page:
        """Return a page that is in progress; its request is a lambda's, unless it's stored."""
        claim = key(name, window)
        if not is_stored:
            self.endings.here[claim] = []
        return Page({claim: "{}" if is_stored else ""}, outcome=None)

    def waiting(self, name: str, *claims: str) -> Page:
        """Return a stored page that waits for others."""
        page = self.page(name, is_stored=True)
        for claim in claims:
            self.endings.wait(page, key(claim))
        return page

    def end(self, *pages: Page, error: str = "") -> None:
        """End the callbacks of pages."""
        for page in pages:
            page.error = page.error or error
            page.outcome = FAIL if page.error else CONFIRM
            self.endings.finish(page)

    @property
    def ended(self) -> list[tuple[str, str]]:
        """What was written: what becomes of which page."""
        return [(op.kind.name, op.key[1].decode()) for op in self.ops]

    def known(self, name: str, window: str = "default") -> Known | None:
        return self.local.known(key(name, window))


def key(name: str, window: str = "default") -> Key:
    return window, name.encode()


@pytest.fixture
def crawl() -> Crawl:
    return Crawl()


# -- pages that wait for a request that isn't stored --


def test_pages_wait_for_what_they_yield_however_long_the_chain_is(crawl: Crawl) -> None:
    """Such as a list of a thousand pages whose callbacks are lambdas."""
    pages = [crawl.page(f"{number}") for number in range(2_000)]
    for number, page in enumerate(pages[:-1]):
        crawl.endings.wait(page, key(f"{number + 1}"))
    crawl.end(*pages)
    assert crawl.ended == [("CONFIRM", f"{number}") for number in reversed(range(2_000))]


@pytest.mark.parametrize("queue", ["", "q1"])
def test_pages_fail_with_what_they_wait_for(queue: str) -> None:
    crawl = Crawl(queue)
    child, stored = crawl.page("child"), crawl.page("stored", is_stored=True)
    pages = [crawl.waiting(name, "child") for name in ("first", "second")]
    crawl.end(pages[0])
    crawl.end(child, stored, error="HTTP-503")
    crawl.end(pages[1])
    ops = {op.key[1].decode(): (op.kind, op.claim.nonce) for op in crawl.ops}
    assert len(ops) == len(crawl.ops)
    assert {kind for kind, _ in ops.values()} == {FAIL}
    assert ops["first"] == ops["second"] == (FAIL, "a-request-failed")
    assert ops["stored"] == (FAIL, "HTTP-503")
    assert crawl.known("child") is Known.ASTRAY
    assert {crawl.known(name) for name in ops.keys() - {"child"}} == {Known.FAILED}


def test_what_is_not_stored_fails_in_one_step_with_the_page_that_yields_it_again(
    crawl: Crawl,
) -> None:
    """A kill between them would leave it failed, and hidden when the page is retried."""
    child, page = crawl.page("child"), crawl.waiting("page", "child")
    crawl.end(child, error="HTTP-503")
    assert (crawl.ended, crawl.known("child")) == ([], Known.FAILED)
    crawl.end(page)
    assert sorted(crawl.ended) == [("FAIL", "child"), ("FAIL", "page")]


def test_a_page_is_left_whose_link_has_ended_since_it_was_looked_up(crawl: Crawl) -> None:
    """Nobody can tell how."""
    link, page = crawl.page("link"), crawl.page("page", is_stored=True)
    crawl.end(link)
    crawl.endings.led_to(page, key("link"), Known.HERE, "")
    crawl.end(page)
    assert crawl.ended == [("CONFIRM", "link")]


@pytest.mark.parametrize("queue", ["", "q"])
def test_a_page_is_left_that_links_what_has_failed_with_no_page(queue: str) -> None:
    """Another run has put the request into the queue, for instance."""
    crawl = Crawl(queue)
    crawl.end(crawl.page("link"), error="HTTP-503")
    known = crawl.known("link")
    assert known
    page = crawl.page("page", is_stored=True)
    crawl.endings.led_to(page, key("link"), known, "")
    crawl.end(page)
    assert crawl.ended == [("FAIL", "link")]


def test_what_is_not_stored_in_the_window_of_the_run_is_new_again_when_it_has_failed(
    crawl: Crawl,
) -> None:
    """Only this process knows it; the page that yielded it may be retried in this run."""
    child, page = crawl.page("child", window=RUN), crawl.page("page", is_stored=True)
    crawl.local.taken[b"child"] = Known.RECORDED
    crawl.endings.wait(page, key("child", RUN))
    crawl.end(child, error="HTTP-503")
    crawl.end(page)
    assert crawl.ended == [("FAIL", "page")]
    assert crawl.known("child", RUN) is None


def test_a_page_whose_request_was_dropped_keeps_nobody_waiting(crawl: Crawl) -> None:
    """A link to it has no effect; a redirect to it is dropped, too."""
    child, linked, moved = (
        crawl.page("child"),
        crawl.waiting("linked", "child"),
        crawl.page("moved"),
    )
    moved.target = key("child")
    crawl.endings.wait(moved, key("child"))
    crawl.end(linked, moved)
    child.outcome = DROP
    crawl.endings.settle(child)
    ended = [("CONFIRM", "linked"), ("DROP", "child"), ("DROP", "moved")]
    assert sorted(crawl.ended) == ended
    assert crawl.known("child") is crawl.known("moved") is Known.DROPPED


def test_nobody_waits_for_a_request_any_more_that_is_stored(crawl: Crawl) -> None:
    crawl.page("child")
    page = crawl.waiting("page", "child")
    crawl.end(page)
    crawl.endings.store(key("child"), "{}")
    assert crawl.ended == [("CLAIM", "child"), ("CONFIRM", "page")]
    assert (crawl.ops[0].claim.request, crawl.known("child")) == ("{}", Known.RECORDED)
    assert not crawl.endings.here


def test_pages_whose_request_was_never_scheduled_are_left_to_the_next_run(crawl: Crawl) -> None:
    crawl.page("child")
    page = crawl.waiting("page", "child")
    crawl.endings.lose(key("child"))
    crawl.endings.lose(key("another"))
    crawl.end(page)
    assert (crawl.ended, crawl.endings.here) == ([], {})


def test_the_oldest_pages_that_wait_are_left_to_the_next_run_if_too_many_do(
    crawl: Crawl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endings, "MAX_WAITING", 3)
    child = crawl.page("child")
    crawl.end(*[crawl.waiting(f"{number}", "child") for number in range(5)], child)
    assert sorted(crawl.ended[1:]) == [("CONFIRM", f"{number}") for number in (2, 3, 4)]


def test_pages_that_still_wait_in_the_end_are_left_to_the_next_run_unless_they_failed(
    crawl: Crawl,
) -> None:
    crawl.page("child")
    crawl.end(crawl.waiting("page", "child"))
    crawl.end(crawl.waiting("failed", "child"), error="KeyError")
    crawl.endings.close()
    assert crawl.ended == [("FAIL", "failed")]


@given(st.data(), st.integers(1, 9))
def test_pages_end_in_any_order_whatever_they_lead_to(data: st.DataObject, count: int) -> None:
    """Each of them once, and after what it waits for, also where they lead in circles."""
    crawl = Crawl()
    pages = [crawl.page(f"{number}") for number in range(count)]
    numbers = st.integers(0, count - 1)
    after = set[tuple[str, str]]()
    for first, second in data.draw(st.lists(st.tuples(numbers, numbers), max_size=3 * count)):
        before = pages[first].waits
        crawl.endings.led_to(pages[first], key(f"{second}"), Known.HERE, "")
        if pages[first].waits > before:
            after.add((f"{first}", f"{second}"))
    crawl.end(*data.draw(st.permutations(pages)))
    names = [name for _, name in crawl.ended]
    assert sorted(names) == sorted(f"{number}" for number in range(count))
    assert all(names.index(first) > names.index(second) for first, second in after)
    assert not crawl.endings.here


# -- what a page leads to --


@pytest.mark.parametrize(
    ("known", "request_", "ends"),
    [
        (Known.RECORDED, "{}", ["CONFIRM"]),
        (Known.STORED, None, ["CONFIRM"]),
        (Known.FAILED, "{}", ["CLAIM", "CONFIRM"]),
        (Known.FAILED, "", ["CONFIRM"]),
        (Known.FAILED, None, ["FAIL"]),
        (Known.DROPPED, "{}", ["CONFIRM"]),
        (Known.DROPPED, None, ["DROP"]),
        (Known.ELSEWHERE, "", []),
        (Known.ELSEWHERE, None, []),
        (Known.HERE, "{}", ["CLAIM", "CONFIRM"]),
        (Known.HERE, "", []),
        (Known.HERE, None, []),
    ],
)
def test_a_page_ends_as_the_rule_says(
    crawl: Crawl, known: Known, request_: str | None, ends: list[str]
) -> None:
    """See ``test_rule.py``. A link is found before the callback ends, a redirect's target after."""
    crawl.page("target")
    page = crawl.page("page", is_stored=True)
    if request_ is None:
        page.outcome = CONFIRM
    crawl.endings.led_to(page, key("target"), known, request_)
    page.outcome = page.outcome or CONFIRM
    crawl.endings.finish(page)
    assert [op.kind.name for op in crawl.ops] == ends


def test_a_link_in_the_window_of_the_run_is_waited_for(crawl: Crawl) -> None:
    """Its request can't be stored with its URL, which the server doesn't know."""
    target, page = crawl.page("target", window=RUN), crawl.page("page", is_stored=True)
    crawl.endings.led_to(page, key("target", RUN), Known.HERE, "{}")
    crawl.end(page)
    assert crawl.ended == []
    crawl.end(target)
    assert crawl.ended == [("CONFIRM", "page")]


def test_a_page_without_an_item_is_new_again_but_not_in_this_run() -> None:
    crawl = Crawl(items_only=True)
    pages = [crawl.page(name, is_stored=True) for name in ("item", "listing", f"{ONCE.decode()}1")]
    pages[0].has_item = True
    crawl.end(*pages)
    assert [kind for kind, _ in crawl.ended] == ["CONFIRM", "RELEASE", "RELEASE"]
    assert [crawl.known(name) for name in ("item", "listing")] == [Known.RECORDED] * 2


def test_a_page_fails_for_its_first_reason_as_far_as_a_claim_has_room_for_it(crawl: Crawl) -> None:
    """A pipeline's reason may be a text of any length."""
    page = crawl.page("page", is_stored=True)
    page.fail("pipeline:it is full\n" + "x" * 100_000)
    page.fail("HTTP-503")
    crawl.end(page)
    (op,) = crawl.ops
    assert op.claim.nonce.startswith("pipeline:it-is-full-xxx")
    assert len(op.claim.nonce) <= 200


def test_a_claim_always_has_a_nonce_or_a_reason(crawl: Crawl) -> None:
    """One with an empty word would be damaged."""
    crawl.end(crawl.page("page", is_stored=True))
    assert [op.claim.nonce for op in crawl.ops] == ["-"]


def test_a_page_is_the_target_of_a_redirect_until_it_ends(crawl: Crawl) -> None:
    """The next link to it has a request that is stored."""
    for is_target in (True, False):
        page = crawl.page("page", is_stored=True)
        crawl.endings.targets |= {key("page")} if is_target else set()
        crawl.end(page, error="HTTP-503")
    assert [op.claim.nonce for op in crawl.ops] == ["redirect:HTTP-503", "HTTP-503"]


# -- requests that share an object --


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
        self.objects = SharedObjects(offers)
        self.parent = crawl.page("parent", is_stored=True)
        self.pages = {name: crawl.page(name) for name in names}
        for name in names:
            request = Request("https://example.com/", **given(self.value, name))
            self.objects.add(request)
            crawl.endings.wait(self.parent, key(name))
            crawl.endings.join(key(name), offers.unsaved[request])

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
