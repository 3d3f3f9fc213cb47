"""When pages end, and how: after all that they led to, and with it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.ended_pages import CONFIRM, DROP, FAIL, Crawl, key

from scrapy_bloom.crawl import endings
from scrapy_bloom.crawl.endings import ONCE
from scrapy_bloom.crawl.rule import Known
from scrapy_bloom.rules import RUN


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
