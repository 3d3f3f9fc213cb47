"""Claims on real servers: made once, ended by whoever may, found and taken over."""

from functools import partial

import pytest
from redis import Redis
from support.claims import (
    LATER,
    NOW,
    OURS,
    STRANGER,
    THEIRS,
    A,
    B,
    C,
    claim_item,
    claim_text,
    claim_unkept,
    claims,
    only,
    reassign,
    release,
)

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.protocol import claim_protocol
from scrapy_bloom.bloom.protocol.cached_ring import Verdict
from scrapy_bloom.bloom.protocol.claim_protocol import KEPT, ClaimPage, StoredClaim

pytestmark = pytest.mark.each_server

MINE, OTHERS, NEW, SEEN = Verdict.MINE, Verdict.OTHERS, Verdict.NEW, Verdict.SEEN
YIELD_AGAIN, OTHERS_UNKEPT = Verdict.YIELD_AGAIN, Verdict.OTHERS_UNKEPT


@pytest.fixture
def bloom(client: Redis) -> BloomFilter:
    return BloomFilter(client, "k", blocks=2, capacity=1_000)


def test_one_claim_is_for_one(bloom: BloomFilter) -> None:
    """Whose reply was lost gets the same answer to the same call again."""
    for _ in range(2):
        assert claim_item(bloom, A, B, A, nonce="1") == NEW * 2 + MINE
    assert claim_item(bloom, A, owner=THEIRS, nonce="1") == OTHERS
    assert claim_item(bloom, A, nonce="3") == MINE


def test_the_same_page_learns_that_its_request_is_claimed_and_not_kept(bloom: BloomFilter) -> None:
    """Another worker that crawls the page too must not record it while the first one waits."""
    assert claim_unkept(bloom, B, page=A, owner=OURS, nonce="1") == NEW
    assert claim_unkept(bloom, B, page=A, owner=THEIRS, nonce="2") == YIELD_AGAIN
    assert claim_unkept(bloom, B, page=A, owner=OURS, nonce="3") == YIELD_AGAIN
    assert claim_unkept(bloom, B, page=A, owner=OURS, nonce="1") == NEW  # the same call
    assert claim_unkept(bloom, B, page=C, owner=THEIRS, nonce="4") == OTHERS_UNKEPT
    assert claim_unkept(bloom, B, page=C, owner=OURS, nonce="5") == Verdict.MINE_UNKEPT
    assert claim_item(bloom, B, owner=THEIRS, nonce="6") == OTHERS_UNKEPT
    # Also when that request has failed.
    release(bloom, B, failure=LATER)
    assert claim_unkept(bloom, B, page=A, owner=THEIRS, nonce="7") == YIELD_AGAIN
    assert claim_unkept(bloom, B, page=C, owner=THEIRS, nonce="8") == OTHERS_UNKEPT
    release(bloom, B, failure=NOW)
    assert claim_unkept(bloom, B, page=A, owner=THEIRS, nonce="9") == NEW


def test_the_request_of_a_failed_page_stays_where_another_is_not_kept(bloom: BloomFilter) -> None:
    """The page that yielded the first may be recorded: it would not yield the request again."""
    claim_item(bloom, B)
    release(bloom, B, failure=NOW)
    assert claim_unkept(bloom, B, page=A, owner=OURS, nonce="2") == NEW
    assert only(bloom).attempt == 1
    assert reassign(bloom, only(bloom)) == {B.hex(): claim_text(B)}


def test_what_is_recorded_can_be_claimed_if_it_is_not_tested(bloom: BloomFilter) -> None:
    bloom.add(A)
    assert claim_item(bloom, A, B) == SEEN + NEW
    assert set(claims(bloom)) == {B.hex()}
    again = partial(claim_protocol.claim, items=[A], requests=["{}"], owner=OURS, nonce="1")
    assert bloom.run(partial(again, tested=False)) == [NEW]


def test_a_claim_says_whose_it_is_since_when_and_how_long_its_request_is(
    bloom: BloomFilter, client: Redis
) -> None:
    before = client.time()[0]
    claim_item(bloom, A)
    claim = only(bloom)
    assert (claim.field, claim.owner, claim.attempt) == (A.hex(), OURS, 0)
    assert before <= claim.time <= client.time()[0]
    assert claim.length == len(claim_text(A))
    assert not claim.failed


def test_an_owners_release_leaves_the_claims_of_others(bloom: BloomFilter) -> None:
    claim_item(bloom, A, owner=THEIRS)
    assert release(bloom, A, owner=OURS) == 0
    assert release(bloom, A, owner=OURS, failure=LATER) == 0
    assert only(bloom).owner == THEIRS
    assert release(bloom, A, B) == 1
    assert claim_item(bloom, A) == NEW


def test_what_failed_is_nobodys_until_it_is_due(bloom: BloomFilter, client: Redis) -> None:
    claim_item(bloom, A, B, C)
    for count in (1, 0):
        assert release(bloom, A, owner=OURS, failure=LATER) == count
    release(bloom, B, C, owner=OURS, failure=NOW)
    found = claims(bloom)
    later, due = found[A.hex()], found[C.hex()]
    assert (later.failed, later.attempt) == (True, 1)
    assert 990 <= later.time - client.time()[0] <= 1_000
    assert claim_item(bloom, A, B, owner=THEIRS, nonce="2") == OTHERS + NEW
    # It may be taken over.
    assert [reassign(bloom, later), reassign(bloom, due)] == [{}, {C.hex(): claim_text(C)}]
    assert claims(bloom)[C.hex()].attempt == 1


def test_failures_are_counted_and_the_request_is_kept_for_some_of_them(bloom: BloomFilter) -> None:
    for attempt, length in ((1, 50), (2, 50), (3, 0)):
        claim_item(bloom, A, nonce=str(attempt))
        release(bloom, A, owner=OURS, failure=NOW)
        assert (only(bloom).attempt, only(bloom).length) == (attempt, length)


def test_a_claim_is_taken_over_by_one_with_its_request(bloom: BloomFilter) -> None:
    claim_item(bloom, A)
    claim = only(bloom)
    assert reassign(bloom, claim) == {A.hex(): claim_text(A)}
    assert reassign(bloom, claim, "w-third") == {}
    assert only(bloom).owner == THEIRS
    assert claim_item(bloom, A, owner=THEIRS, nonce="9") == MINE
    claim = only(bloom)
    release(bloom, A)
    assert reassign(bloom, claim) == {}, "it is settled"
    assert not claims(bloom)


def test_whoever_has_a_request_in_hand_holds_its_claim(bloom: BloomFilter) -> None:
    claim_item(bloom, A, B, C, owner="q-queue")
    release(bloom, C, owner="q-queue", failure=LATER)
    bloom.run(lambda session: claim_protocol.hold(session, [A, C, b"none"], OURS, "n"))
    owners = {field: claim.owner for field, claim in claims(bloom).items()}
    assert owners == {A.hex(): OURS, B.hex(): "q-queue", C.hex(): "-the-shop"}


@pytest.mark.parametrize("item", [b"x" * 32, KEPT + b"12345678", bytes(250)])
def test_items_of_any_length_have_a_field(bloom: BloomFilter, item: bytes) -> None:
    assert claim_item(bloom, item) == NEW
    assert only(bloom).field == field_of(item)
    assert len(field_of(item)) <= 64
    assert release(bloom, item) == 1


def test_many_claims_are_found_page_by_page_and_ended(bloom: BloomFilter) -> None:
    items = [f"{number:020}".encode() for number in range(3_000)]
    assert claim_item(bloom, *items) == NEW * 3_000
    assert set(claims(bloom, count=50)) == {item.hex() for item in items}
    assert release(bloom, *items) == 3_000
    assert not claims(bloom)


def scan_damaged(bloom: BloomFilter, client: Redis, value: bytes) -> ClaimPage:
    """Store something under A in the place of a claim; return what a scan finds."""
    claim_item(bloom, A)
    (key,) = client.keys("*:claims")
    client.hset(key, A.hex(), value)
    block = bloom.session.hasher.block(A)
    return bloom.run(lambda session: claim_protocol.scan(session, {block: "0"}, 10))[block]


@pytest.mark.parametrize("value", [b"", OURS.encode(), b" n 1 0 {}", b"w n 1 x {}", b"\xff" * 9])
def test_a_damaged_claim_is_told_and_hides_nothing(
    bloom: BloomFilter, client: Redis, value: bytes
) -> None:
    page = scan_damaged(bloom, client, value)
    assert (page.damaged, page.claims) == ((A.hex(),), ())
    bloom.run(lambda session: claim_protocol.hold(session, [A], OURS, "n"))
    assert reassign(bloom, StoredClaim(A.hex(), OURS, "1", 0, 0, 0)) == {}
    assert claim_item(bloom, A, owner=THEIRS) == NEW
    release(bloom, A)
    scan_damaged(bloom, client, value)
    assert release(bloom, A, owner="", failure=LATER) == 1
    assert not client.keys("*:claims")


@pytest.mark.parametrize(("length", "is_read"), [(0, True), (65_536, True), (200_000, False)])
def test_a_claim_that_is_far_too_long_is_damaged(
    bloom: BloomFilter, client: Redis, length: int, is_read: bool
) -> None:
    """Its request is never fetched: it takes the memory of the crawler."""
    page = scan_damaged(bloom, client, b"w n 1 0 " + b"x" * length)
    assert page.damaged == (() if is_read else (A.hex(),))
    assert [claim.length for claim in page.claims] == ([length] if is_read else [])


def test_others_clear_the_claims_or_all_or_lose_a_bitmap(bloom: BloomFilter, client: Redis) -> None:
    other = BloomFilter(client, "k")
    claim_item(bloom, A)
    other.clear()
    assert claim_item(bloom, A, owner=THEIRS) == NEW  # claims go with a clear
    assert claim_item(other, A) == OTHERS
    bloom.extend([B, C])
    bloom.clear(claims_only=True)
    assert not claims(bloom)
    assert bloom.contains([B, C]) == [True, True]
    for key in client.keys("*:1.0"):
        client.delete(key)
    assert claim_item(bloom, B, C) == NEW * 2
    assert bloom.lost_blocks in (1, 2)  # the items are in one block or in two


def test_claims_are_held_in_a_filter_that_was_created_anew(client: Redis) -> None:
    """Its items are in other blocks, and no script compares the ring here."""
    crawl, writer = BloomFilter(client, "shop"), BloomFilter(client, "shop")
    writer.open()
    crawl.delete()
    items = [b"%d" % number for number in range(50)]
    assert claim_item(crawl, *items) == NEW * 50
    held = writer.run(lambda session: claim_protocol.hold(session, items, "me", "2"))
    assert held == {field_of(item) for item in items}
    assert writer.seeds == crawl.seeds


# -- other spiders --


def scan_as(bloom: BloomFilter, tag: str) -> dict[str, StoredClaim]:
    bloom.open()
    pages = claim_protocol.scan_all(bloom.run, range(2), 100, tag)
    return {claim.field: claim for _, page in pages for claim in page.claims}


def test_another_spiders_request_is_kept_with_the_claim(bloom: BloomFilter) -> None:
    request = {A.hex(): claim_text(A)}
    claim_item(bloom, A, B)
    for nonce in ("2", "3"):
        assert claim_item(bloom, A, owner=STRANGER, nonce=nonce) == Verdict.OTHER_SPIDERS
    assert scan_as(bloom, "stranger").keys() == {A.hex()}
    assert scan_as(bloom, "the-shop").keys() == {A.hex(), B.hex()}
    assert claims(bloom)[A.hex()].length == scan_as(bloom, "stranger")[A.hex()].length
    other = claims(bloom)[B.hex()]
    assert reassign(bloom, other, owner=STRANGER) == {}, "it has no request there"
    assert reassign(bloom, claims(bloom)[A.hex()], owner=STRANGER) == request
    assert claims(bloom)[A.hex()].owner == STRANGER
    assert reassign(bloom, claims(bloom)[A.hex()], owner=OURS) == request, "the first's is there"


def test_a_claim_that_ends_is_left_to_the_spider_that_waits_for_it(bloom: BloomFilter) -> None:
    claim_item(bloom, A)
    claim_item(bloom, A, owner=STRANGER, nonce="2")
    assert release(bloom, A, owner=OURS) == 1
    left = only(bloom)
    assert (left.owner, left.was_tried) == ("-stranger", False)
    assert claim_item(bloom, A, owner=STRANGER, nonce="3") == NEW
    assert release(bloom, A, owner=STRANGER) == 1
    assert not claims(bloom)
    # A page that is confirmed ends what they wait for.
    claim_item(bloom, A)
    claim_item(bloom, A, owner=STRANGER, nonce="4")
    bloom.run(lambda session: claim_protocol.confirm(session, [A], [OURS]))
    assert claim_item(bloom, A, owner=STRANGER, nonce="5") == SEEN
    assert not claims(bloom)
