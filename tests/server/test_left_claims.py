"""Claims on real servers that change hands: taken over, freed, shared, wanted again, or damaged."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st
from redis import Redis
from support.claims import HASH, OURS, THEIRS, A, B, C, Spider, key, text_of
from support.examples import examples

from scrapy_bloom.bloom.protocol.claims import DROPPED, FAILED, LEFT, RECRAWL, Recrawl
from scrapy_bloom.bloom.protocol.session import Verdict

NEW, SEEN = Verdict.NEW, Verdict.SEEN
CLAIMED, HAS_FAILED = Verdict.CLAIMED, Verdict.FAILED
WORKERS, SHARES = "{shop:bloom:0}:workers:shop", "{shop:bloom:0}:shares:shop:group"

# -- taking them over --


def test_claims_are_taken_from_the_owner_that_was_seen_and_from_nobody_else(
    spider: Spider,
) -> None:
    spider.claim(A, B, owner="dead")
    claims = [*spider.stored().values()]
    assert spider.take(*claims) == {item.hex(): text_of(item) for item in (A, B)}
    assert {(one.owner, one.nonce) for one in spider.stored().values()} == {(OURS, "n")}
    assert spider.take(*claims, owner=THEIRS) == {}


def test_a_claim_is_deleted_only_if_it_is_still_whose_it_was(spider: Spider) -> None:
    """A link may claim it after the scan."""
    spider.claim(A, B, request="")
    spider.fail(A, B, seconds=0)
    owners = {one.owner for one in spider.stored().values()}
    spider.claim(A)
    spider.run(spider.claims.drop(0, [A.hex(), B.hex()], owners))
    assert spider.owners() == {A: OURS}


def test_a_page_that_is_taken_over_keeps_its_attempts(spider: Spider) -> None:
    spider.claim(A)
    spider.fail(A, seconds=0)
    spider.take(spider.only())
    assert (spider.only().owner, spider.only().attempts) == (OURS, 1)


def test_what_comes_out_of_a_shared_queue_is_held_by_who_took_it(spider: Spider) -> None:
    """Also if it was freed while it was there; what failed isn't in a queue any more."""
    reasons = {A: LEFT, B: DROPPED, C: "HTTP-503"}
    spider.claim(*reasons, b"queued", owner="queue")
    for item, reason in reasons.items():
        spider.fail(item, reason=reason, seconds=0)
    spider.run(spider.claims.own([*map(key, reasons), key(b"queued"), key(b"none")], THEIRS))
    assert spider.owners() == {A: THEIRS, B: FAILED, C: FAILED, b"queued": THEIRS}
    assert spider.request(A) == text_of(A)


def test_urls_are_crawled_again_although_they_are_remembered_or_have_failed(spider: Spider) -> None:
    def again(request: str, *items: bytes, replaces: bool = False) -> list[Recrawl]:
        places = {(0, item.hex()): request for item in items}
        return [*spider.run(spider.claims.recrawl(places, replaces=replaces)).values()]

    spider.bloom.add(A)
    spider.claim(B, C)
    spider.fail(B, seconds=500, owner="-.category=a")
    assert again("", A, B, C) == [Recrawl.NONE, Recrawl.RETRIED, Recrawl.PENDING]
    assert again("{}", A, B, C) == [Recrawl.READY, Recrawl.RETRIED, Recrawl.PENDING]
    claims = spider.stored()
    assert (claims[A.hex()].owner, claims[A.hex()].nonce) == (FAILED, RECRAWL)
    assert claims[B.hex()].arguments == "category=a", "no other run gets it"
    assert (claims[A.hex()].has_failed, claims[B.hex()].has_failed) == (False, True)
    assert claims[B.hex()].attempts == 0
    assert claims[B.hex()].length > 2, "it keeps its own request"
    assert again("{}", B, replaces=True) == [Recrawl.RETRIED]
    assert spider.stored()[B.hex()].length == 2


# -- the runs that they are for --


@pytest.mark.parametrize("before", ["-.a=1", "-"])
def test_a_page_that_waited_waits_for_the_same_runs_when_another_run_has_dropped_it(
    spider: Spider, before: str
) -> None:
    """Also if it has gone through a queue that workers share."""
    spider.claim(A, B)
    spider.fail(A, seconds=0, owner=before)
    assert spider.claim(A, owner="w2.a=2", nonce="2") == [NEW]
    assert spider.claim(A, owner="w2.a=2", nonce="2") == [NEW], "it's the same call"
    spider.run(spider.claims.own([key(A), key(B)], "w2"))
    spider.settle(A, B, owner="w2", again=True)
    claim = spider.only()
    assert (claim.owner, claim.nonce, claim.attempts) == (before, "dropped", 1)
    assert spider.request(A) == text_of(A)
    assert spider.claim(A, nonce="3") == [NEW], "any link gets it"
    assert spider.confirm(A) == [NEW]
    assert not spider.stored()


@pytest.mark.parametrize("ends", ["drops", "fails", "dies"])
@pytest.mark.parametrize("had", ["had", "failed"])
def test_a_page_that_runs_with_different_arguments_link_is_for_any_run(
    spider: Spider, had: str, ends: str
) -> None:
    """A run that links it may remember its page, because it's pending."""
    spider.claim(A, owner="w1.a=1")
    if had == "failed":
        spider.fail(A, owner="-.a=1", seconds=60)
    assert spider.claim(A, owner="w2.a=1") == [HAS_FAILED if had == "failed" else CLAIMED]
    assert spider.only().arguments == "a=1"
    spider.claim(A, owner="w3.a=2")
    if had == "failed":
        assert (spider.only().owner, spider.only().nonce) == (FAILED, "why")
        spider.take(spider.only(), owner="w1.a=1")
    if ends == "drops":
        spider.settle(A, owner="w1.a=1", again=True)
    elif ends == "fails":
        spider.fail(A, owner="-.a=1")
    else:
        spider.leave(spider.only())
    assert spider.only().owner == FAILED
    assert spider.request(A) == text_of(A)


def test_a_page_that_fails_again_is_for_the_same_runs(spider: Spider) -> None:
    spider.claim(A, owner="w1.a=1")
    for _ in range(2):
        spider.fail(A, owner="-.a=1", seconds=0)
        assert spider.only().arguments == "a=1"
        spider.claim(A, owner="w1.a=1", nonce="2")


def test_a_page_that_was_crawled_does_not_wait_again(spider: Spider) -> None:
    """Though it isn't remembered, for example because it had no item."""
    spider.claim(A, B)
    spider.fail(A, B, seconds=0)
    assert spider.claim(A, nonce="2") == [NEW]
    spider.take(spider.stored()[B.hex()])
    spider.settle(A, B)
    assert not spider.stored()


# -- freeing those of workers that have ended --


def test_a_claim_that_is_freed_keeps_its_arguments_request_and_attempts(
    spider: Spider, client: Redis
) -> None:
    owners = {A: "w1.domain=a", B: "w1.", C: "w1"}
    for item, owner in owners.items():
        spider.claim(item)
        spider.fail(item, seconds=0, owner=owner.replace("w1", FAILED))
        spider.claim(item, owner=owner, nonce="2")
    before = client.time()[0]
    assert spider.leave(*spider.stored().values()) == 0
    found = {field: (one.owner, one.arguments) for field, one in spider.stored().items()}
    left = {A: ("-.domain=a", "domain=a"), B: ("-.", ""), C: (FAILED, None)}
    assert found == {item.hex(): one for item, one in left.items()}
    for item in owners:
        claim = spider.stored()[item.hex()]
        assert (claim.nonce, claim.attempts, claim.has_failed) == (LEFT, 1, False)
        assert before <= claim.due <= client.time()[0]
        assert spider.request(item) == text_of(item)
    assert spider.claim(*owners, owner=THEIRS) == [NEW] * 3, "a link gets it, whoever has it"


def test_a_claim_that_no_run_could_crawl_ends_when_it_is_freed(
    spider: Spider, client: Redis
) -> None:
    spider.claim(A, request="")
    client.hset(HASH, B.hex(), b"worker n 1 0 " + b"x" * 65_537)
    client.hset(HASH, C.hex(), b"worker n 1 0 " + b"x" * 65_536)
    assert spider.leave(*spider.stored().values()) == 2
    assert (spider.only().field, spider.only().nonce) == (C.hex(), LEFT)


def test_only_claims_of_the_owner_that_was_seen_are_freed(spider: Spider) -> None:
    spider.claim(A, B, owner="dead")
    spider.claim(C, request="")
    seen = [*spider.stored().values()]
    spider.take(*seen)
    spider.settle(B)
    before = spider.stored()
    assert spider.leave(*seen) == 0
    assert spider.stored() == before
    spider.leave(*before.values())
    left = spider.stored()
    assert spider.leave(*before.values()) == 0, "a second time changes nothing"
    assert spider.stored() == left


# -- workers --


@pytest.mark.each_server
def test_workers_live_until_the_time_that_they_said(spider: Spider, client: Redis) -> None:
    def beat(worker: str, seconds: int) -> dict[str, int]:
        now, workers = spider.run(spider.workers.beat(worker, seconds))
        assert abs(now - client.time()[0]) <= 1
        return {name: until - now for name, (until, _) in workers.items()}

    assert beat("one", 60) == {"one": 60}
    workers = beat("two", 30)
    assert (workers["two"], 50 < workers["one"] <= 60) == (30, True)
    assert beat("one", 0).keys() == {"two"}
    client.zadd(WORKERS, {"dead for days": 5, "x" * 900: 4e9})
    assert beat("two", 30) == {"two": 30}
    client.zadd(WORKERS, {f"{n}": 4e9 for n in range(3_000)})
    assert len(beat("two", 30)) == 999, "the 1,000 that live longest, but for the long name"


@pytest.mark.each_server
def test_a_worker_says_whether_it_is_idle(spider: Spider) -> None:
    for is_idle in (True, False):
        now, workers = spider.run(spider.workers.beat("one", 60, is_idle=is_idle))
        assert workers == {"one": (now + 60, is_idle)}


# -- shared work --


def test_claims_are_given_in_shares_and_each_is_received_once(spider: Spider) -> None:
    workers, given = spider.workers, [A, B, b"d"]
    spider.claim(*given)
    spider.claim(C, owner=THEIRS)
    keys = [*map(key, (*given, C))]
    assert spider.run(workers.give(keys, OURS, "group", 2)) == {*map(key, given)}
    assert {*spider.owners().values()} == {"group", THEIRS}
    assert spider.run(workers.count_shares("group")) == 2
    for items in (given[:2], given[2:]):
        share = spider.run(workers.receive("group"))[0]
        assert spider.take(*share, owner=THEIRS) == {item.hex(): text_of(item) for item in items}
        assert spider.take(*share) == {}, "somebody has received it"
    assert spider.run(workers.receive("group")) == {}
    assert spider.run(workers.receive("another group")) == {}


@pytest.mark.parametrize("share", [b"\xff 0:ZZ 99999999:aa 0:" + b"a" * 500, b"0:0 " * 100_000])
def test_a_share_that_is_damaged_is_empty(spider: Spider, client: Redis, share: bytes) -> None:
    client.rpush(SHARES, share)
    assert spider.run(spider.workers.receive("group")) == {}


def test_a_huge_request_is_not_received(spider: Spider, client: Redis) -> None:
    client.hset(HASH, "aa", b"group n 1 0 " + b"x" * 100_000)
    client.rpush(SHARES, b"0:aa")
    assert spider.take(*spider.run(spider.workers.receive("group"))[0]) == {"aa": ""}


# -- what others write. Servers differ in their hash tables, which scans walk over, in how they
#    write numbers, and in their Lua, which gets any bytes. --

words = st.sampled_from(["w1", "q1", "-", "\u00e9", ""]) | st.text(max_size=5)
numbers = st.integers(-1, 10**14).map(str)
texts = st.tuples(words, words, numbers, numbers, st.text(max_size=9)).map(" ".join)


@pytest.mark.each_server
@given(st.binary() | texts.map(lambda text: text.encode("utf-8", "replace")))
@example(b"w1 1 " + b"9" * 5_000 + b" 0 {}")
@example(b"w1 1 1 0 \xff")
@example(b"o" * 900 + b" n 1 0 {}")
@example(b"a b 1 2")
@example(b"w1.a :b 1 0 {}")
@example(b"\xff\x00")
@examples(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_a_claim_or_none_and_its_url_is_not_hidden(
    client: Redis, spider: Spider, data: bytes
) -> None:
    """A scan and a look-up raise nothing, and show the same; no operation fails, or ends others."""
    spider.bloom.clear()
    spider.claim(B)
    client.hset(HASH, A.hex(), data)
    spider.claim(A, owner="w2.b", nonce="4")
    client.hset(HASH, A.hex(), data)
    scanned = spider.stored()
    found = spider.run(spider.claims.find([(0, A.hex())]))
    assert len(found) == len(scanned) - 1
    for one, _ in found.values():
        assert replace(one, length=0) == replace(scanned[A.hex()], length=0)
        assert spider.take(one).keys() == {A.hex()}
    spider.claim(A, nonce="2")
    spider.settle(A)
    spider.run(spider.claims.own([key(A)], OURS))
    spider.run(spider.claims.recrawl({(0, A.hex()): "{}"}))
    spider.confirm(A)
    owners = [one.owner for one in spider.stored().values() if one.field == A.hex()]
    spider.run(spider.claims.drop(0, [A.hex()], owners))
    assert spider.claim(A, nonce="3") in ([NEW], [SEEN])
    assert spider.owners()[B] == OURS


@pytest.mark.each_server
def test_a_forged_claim_without_a_field_name_ends_no_scan(spider: Spider, client: Redis) -> None:
    items = [b"%d" % number for number in range(600)]
    spider.claim(*items)
    for value in ("w1 n 1 0 {}", "- why 1 0 {}", "", "7"):
        client.hset(HASH, "", value)
        assert spider.stored().keys() == {item.hex() for item in items}
