"""Claims on real servers: made once, ended by their owners, confirmed, and left waiting."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis
from support.claims import HASH, OURS, THEIRS, A, B, C, Spider, key, text_of
from support.filters import small
from support.outages import full
from support.servers import Server

from scrapy_bloom.bloom.errors import LostError, RestartedError
from scrapy_bloom.bloom.protocol.claims import (
    DROPPED,
    FAILED,
    LEFT,
    MAX_ATTEMPTS,
    RECRAWL,
    NewClaim,
)
from scrapy_bloom.bloom.protocol.rings import MAX_WAVE_CALLS
from scrapy_bloom.bloom.protocol.scripts import Reply
from scrapy_bloom.bloom.protocol.session import Verdict

NEW, SEEN, CLAIMED = Verdict.NEW, Verdict.SEEN, Verdict.CLAIMED
UNSTORED, HAS_FAILED = Verdict.UNSTORED, Verdict.FAILED

# -- making claims --


def test_one_claim_is_for_one_and_the_same_call_again_has_the_same_answer(spider: Spider) -> None:
    for _ in range(2):
        assert spider.claim(A, B) == [NEW, NEW]
    assert spider.claim(A, nonce="2") == [CLAIMED]
    assert spider.claim(A, owner=THEIRS) == [CLAIMED]
    spider.bloom.add(C)
    assert spider.claim(A, C, nonce="3") == [CLAIMED, SEEN]
    assert spider.owners().keys() == {A, B}


def test_what_is_in_any_bitmap_is_not_claimed(client: Redis) -> None:
    spider, items = Spider(small(client, blocks=1, capacity=9)), [b"%d" % n for n in range(99)]
    spider.bloom.extend(items)
    assert spider.claim(*items, A) == [SEEN] * 99 + [NEW]


def test_any_number_of_claims_is_read_a_bounded_number_at_a_time(spider: Spider) -> None:
    """A reply for each of them waits in the memory of the server."""
    operation = spider.claims.find([(0, f"{number:x}") for number in range(1_000)])
    waves = [len(next(operation))]
    with suppress(StopIteration):
        while True:
            waves.append(len(operation.send([Reply("ok")] * waves[-1])))
    assert sum(waves) == 1_000
    assert max(waves) <= 256


def test_a_claim_says_whose_it_is_since_when_and_how_long_its_request_is(
    client: Redis, spider: Spider
) -> None:
    before = client.time()[0]
    spider.claim(A)
    claim = spider.only()
    assert (claim.field, claim.owner, claim.nonce, claim.attempts) == (A.hex(), OURS, "1", 0)
    assert before <= claim.time <= client.time()[0]
    assert claim.length == len(text_of(A))
    found = spider.run(spider.claims.find([(0, A.hex()), (0, B.hex())]))
    assert found == {(0, A.hex()): (claim, text_of(A))}
    spider.claim(B, request="")  # ends with its worker, because it isn't stored
    assert (spider.stored()[B.hex()].owner, spider.stored()[B.hex()].length) == ("worker", 0)


def test_keeping_claims_what_is_remembered_too_and_a_second_time_changes_nothing(
    spider: Spider,
) -> None:
    spider.bloom.add(A)
    for owner in (OURS, THEIRS):
        claims = [NewClaim(key(A), "1", "{}"), NewClaim(key(B), "1", "{}")]
        spider.run(spider.claims.keep(claims, owner))
    assert spider.owners() == {A: OURS, B: OURS}


@pytest.mark.each_server
def test_many_claims_are_made_found_and_ended_over_all_blocks(client: Redis) -> None:
    spider = Spider(small(client, blocks=7, capacity=100))
    items = [b"%d" % number for number in range(2_000)]
    assert spider.claim(*items) == [NEW] * 2_000
    pages = spider.run(spider.claims.scan(dict.fromkeys(range(7), "0"), 10_000))
    assert sum(len(page) for _, _, page in pages.values()) == 2_000
    places = [(block, one.field) for block, (_, _, page) in pages.items() for one in page]
    assert spider.run(spider.claims.find(places)).keys() == set(places)
    assert spider.confirm(*items[:1_500]) == [NEW] * 1_500  # and it grows
    spider.settle(*items[1_500:])
    assert not client.keys("*claims*")
    assert spider.bloom.contains(items) == [True] * 1_500 + [False] * 500


@pytest.mark.parametrize("blocks", [1, MAX_WAVE_CALLS + 1])
def test_claims_of_all_shards_are_counted(client: Redis, blocks: int) -> None:
    spider = Spider(small(client, blocks=blocks))
    spider.claim(*(bytes([number]) for number in range(200)))
    assert spider.run(spider.claims.count()) == 200


# -- requests that are stored later --


@pytest.mark.parametrize(
    ("has_failed", "stored", "unstored"),
    [(False, CLAIMED, UNSTORED), (True, HAS_FAILED, HAS_FAILED)],
    ids=["claimed", "failed"],
)
def test_a_claim_without_a_request_gets_that_of_a_link(
    spider: Spider, has_failed: bool, stored: Verdict, unstored: Verdict
) -> None:
    """It stays whose it is, as it is: only the next run finds more."""
    spider.claim(A, request="")
    if has_failed:
        spider.fail(A)
    before = spider.only()
    assert spider.claim(A, nonce="2", request="") == [unstored]
    assert spider.claim(A, owner=THEIRS, nonce="3", request="first") == [stored]
    assert spider.claim(A, owner="worker", nonce="4", request="second") == [stored]
    assert spider.claim(A, nonce="5", request="") == [stored]
    assert spider.only() == replace(before, length=len("first"))
    assert spider.request(A) == "first"


def test_a_caller_without_a_request_leaves_the_stored_one_in_a_claim_that_it_gets(
    spider: Spider,
) -> None:
    spider.claim(A)
    spider.fail(A, seconds=0)
    assert spider.claim(A, nonce="2", request="") == [NEW]
    assert (spider.only().owner, spider.request(A)) == ("worker", text_of(A))
    spider.fail(A, seconds=0)
    assert spider.claim(A, nonce="3", request="newer") == [NEW]
    assert (spider.only().owner, spider.request(A)) == (OURS, "newer")


# -- ending them --


def test_a_page_is_remembered_and_its_claim_ended_in_one_round_trip(spider: Spider) -> None:
    spider.claim(A, B, b"first")
    spider.confirm(b"first")
    before = spider.bloom.transport.round_trips
    assert spider.confirm(A) == [NEW]
    assert spider.bloom.transport.round_trips == before + 1
    assert spider.bloom.contains([A, B]) == [True, False]
    assert spider.only().field == B.hex()
    spider.bloom.add(B)
    assert spider.confirm(A, B) == [SEEN, SEEN]
    assert not spider.stored()


def test_a_page_that_another_claims_or_that_failed_stays_new(spider: Spider) -> None:
    """One that has no claim any more is remembered: nobody else crawls it."""
    spider.claim(A, owner=THEIRS)
    spider.claim(B)
    spider.fail(B, seconds=0)
    assert spider.confirm(A, B, C) == [CLAIMED, CLAIMED, NEW]
    assert spider.bloom.contains([A, B, C]) == [False, False, True]
    assert spider.owners().keys() == {A, B}
    assert spider.confirm(A, B, owners=[OURS, THEIRS, FAILED]) == [NEW, NEW]


@pytest.mark.each_server
def test_another_process_of_the_server_confirms_nothing(spider: Spider, client: Redis) -> None:
    """It may have lost the claims of the page's links."""
    spider.claim(A)
    with pytest.raises(RestartedError, match="restarted, or a replica was promoted"):
        spider.confirm(A, server="0" * 40)
    assert (spider.only().field, A in spider.bloom) == (A.hex(), False)
    assert spider.confirm(A, server=spider.bloom.transport.server_id()) == [NEW]


@pytest.mark.parametrize("is_noticed", [False, True], ids=["", "another-notices-first"])
@pytest.mark.parametrize("lost", ["*", "*:default:*", "*:ring"])
def test_a_page_is_not_confirmed_when_a_part_of_the_filter_was_lost(
    spider: Spider, client: Redis, lost: str, is_noticed: bool
) -> None:
    """The URLs that the page led to may have been recorded there."""
    spider.claim(A, B, C)
    spider.confirm(C)
    spider.bloom.add(b"other")
    assert client.delete(*client.keys(lost))
    if is_noticed:
        small(client, blocks=1).add("another crawl's")
    left = spider.stored()
    with pytest.raises(LostError, match="a part of the filter was evicted or deleted"):
        spider.confirm(A, B)
    assert spider.bloom.contains([A, B]) == [False, False]
    assert spider.stored() == left
    assert spider.confirm(A, B) == [NEW, NEW], "it's whole again"


@pytest.mark.parametrize("other", ["w12", "w", "%S+", ""])
def test_only_owners_end_claims(spider: Spider, other: str) -> None:
    """Nor does one whose name is a part of the owner's, or the other way round."""
    spider.claim(A, owner="w1")
    assert spider.confirm(A, owners=[other, "w10"]) == [CLAIMED]
    spider.settle(A, owner=other)
    assert spider.only().owner == "w1"
    spider.settle(A, B, owner="w1")
    assert not spider.stored()


# -- pages that failed, and that wait --


def test_a_page_that_failed_waits_and_is_then_claimed_again(spider: Spider, client: Redis) -> None:
    spider.claim(A, B)
    spider.fail(A, B, reason="503")
    claim = spider.stored()[A.hex()]
    assert (claim.owner, claim.nonce, claim.attempts, claim.has_failed) == (FAILED, "503", 1, True)
    assert claim.length > 0
    assert 50 < claim.time - client.time()[0] <= 60
    assert spider.claim(A, nonce="2") == [HAS_FAILED]
    spider.fail(B, seconds=0)
    assert spider.claim(B, nonce="2") == [NEW]
    assert spider.stored()[B.hex()].attempts == 1
    # One that waits longer than any would have failed while the clock was ahead.
    spider.fail(A, seconds=5_000)
    assert spider.claim(A, nonce="2") == [NEW]


def test_a_page_that_failed_waits_whoever_has_its_claim(spider: Spider) -> None:
    """The other may have taken a request for a duplicate that was lost with this failure."""
    spider.claim(A, owner=THEIRS)
    spider.fail(A)
    assert spider.only().owner == FAILED
    assert spider.confirm(A, owners=(THEIRS,)) == [CLAIMED]
    assert A not in spider.bloom


def test_a_failed_page_keeps_its_stored_request(spider: Spider) -> None:
    spider.claim(A)
    spider.claim(B, request="")
    spider.fail(A, B, request="the caller's")
    assert (spider.request(A), spider.request(B)) == (text_of(A), "the caller's")


def test_a_failed_page_whose_claim_the_server_has_lost_is_pending_again(
    spider: Spider, client: Redis
) -> None:
    """Without a request it isn't: no run could crawl it."""
    spider.claim(A, B)
    client.delete(HASH)
    spider.fail(A, owner="-.domain=a", request=text_of(A))
    spider.fail(B)
    claim = spider.only()
    assert (claim.field, claim.owner, claim.attempts) == (A.hex(), "-.domain=a", 1)
    assert spider.request(A) == text_of(A)


def test_a_page_may_wait_without_having_failed(spider: Spider) -> None:
    """Nobody takes one that a worker has meanwhile."""
    spider.claim(A, B)
    spider.fail(A, owner="-.domain=a", seconds=0, reason=DROPPED, attempts=0)
    spider.fail(B, owner="worker", seconds=0, reason="lost-by-server", attempts=0)
    claims = spider.stored().values()
    assert {(one.attempts, one.has_failed) for one in claims} == {(0, False)}
    assert spider.claim(A, B, nonce="2") == [NEW, CLAIMED]


@pytest.mark.parametrize("reason", [LEFT, DROPPED, RECRAWL])
def test_what_has_not_failed_waits_for_no_clock(spider: Spider, reason: str) -> None:
    """A clock that was ahead, and is corrected, hides nothing."""
    spider.claim(A)
    spider.fail(A, reason=reason, seconds=300, attempts=0)
    assert spider.claim(A, nonce="2") == [NEW]


def test_claims_without_a_request_may_end_where_others_wait(spider: Spider) -> None:
    """The page that has yielded their requests yields them again."""
    spider.claim(A)
    spider.claim(B, C, request="")
    spider.fail(A, B, ends_unstored=True)
    spider.fail(C, request="{}", ends_unstored=True)
    assert spider.owners().keys() == {A, C}


def test_a_page_that_has_failed_often_is_given_up_and_keeps_its_request(spider: Spider) -> None:
    """A failure counts once if it's told twice, because the first reply was lost."""
    for attempt in range(1, MAX_ATTEMPTS + 1):
        assert spider.claim(A, nonce=str(attempt)) == [NEW]
        assert not spider.only().is_given_up
        for _ in range(2):
            spider.fail(A, seconds=0)
            assert spider.only().attempts == attempt
    assert (spider.only().is_given_up, spider.only().length > 0) == (True, True)
    assert spider.claim(A, nonce="link") == [NEW]
    assert (spider.only().attempts, spider.only().is_given_up) == (MAX_ATTEMPTS, False)


def test_a_failed_target_of_a_redirect_is_told_from_a_failed_link(spider: Spider) -> None:
    """Until a link stores its request: whoever yielded a link yields it again."""
    spider.claim(A, B, request="")
    spider.fail(A, reason="redirect:HTTP-503")
    spider.fail(B, reason="HTTP-503")
    assert spider.claim(A, B, nonce="2", request="") == [Verdict.ASTRAY, HAS_FAILED]
    assert spider.claim(A, nonce="3", request="{}") == [HAS_FAILED]
    assert spider.claim(A, nonce="4", request="") == [HAS_FAILED]


def test_a_full_server_notes_how_pages_end(server: Server, spider: Spider) -> None:
    items = [bytes([number]) for number in range(6)]
    spider.claim(*items)
    with full(server):
        spider.fail(items[0])
        spider.settle(items[1])
        assert spider.confirm(items[2]) == [NEW]
        stored = spider.stored()
        assert spider.leave(stored[items[3].hex()]) == 0
        spider.take(stored[items[4].hex()], owner=THEIRS)
        spider.run(spider.workers.beat("w1", 60))
    waiting = {items[0]: FAILED, items[3]: FAILED}
    assert spider.owners() == waiting | {items[4]: THEIRS, items[5]: OURS}


def test_a_page_keeps_its_claim_until_a_full_bitmap_has_room_for_it(client: Redis) -> None:
    """A kill in between would lose it."""
    spider = Spider(small(client, blocks=1, capacity=9))
    spider.claim(A)
    (bitmap,) = spider.bloom.session.views["default", 0].written
    spider.bloom.extend(b"%d" % number for number in range(bitmap.capacity))

    def begin(operation: Any) -> Any:
        yield next(operation)

    spider.run(begin(spider.claims.confirm([key(A)], [OURS])))
    assert spider.request(A) == text_of(A)
    assert spider.confirm(A) == [NEW]
    assert spider.stored() == {}
