"""How claims end: pages that are recorded, pages that failed and why, URLs that are made due."""

from functools import partial

import pytest
from redis import Redis
from support.claims import NOW, OURS, THEIRS, A, B, C, claim_item, claim_text, claims, only, release

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.errors import RestartedError
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.protocol import claim_protocol
from scrapy_bloom.bloom.protocol.cached_ring import Verdict
from scrapy_bloom.bloom.protocol.claim_protocol import RetryPolicy

NEW = Verdict.NEW
D, FAILED = b"d" * 20, "-the-shop"
#: Of the requests.
LENGTH = len(claim_text(A))
pytestmark = pytest.mark.each_server


@pytest.fixture
def bloom(client: Redis) -> BloomFilter:
    return BloomFilter(client, "k", blocks=1, capacity=1_000)


def confirm(bloom: BloomFilter, *items: bytes, server: str = "") -> list[Verdict]:
    return bloom.run(
        lambda session: claim_protocol.confirm(session, items, (OURS, "q"), server=server)
    )


@pytest.fixture(params=[False, True], ids=["bits", "counters"])
def either(client: Redis, request: pytest.FixtureRequest) -> BloomFilter:
    """A filter of bits, or of counters."""
    return BloomFilter(client, "k", capacity=100, blocks=1, counting=request.param)


def test_a_page_is_recorded_and_its_claim_ended_in_one_round_trip(either: BloomFilter) -> None:
    claim_item(either, A, B, b"first")
    confirm(either, b"first")  # the server may not have the script yet
    before = either.round_trips
    assert confirm(either, A) == [Verdict.NEW]
    assert either.round_trips == before + 1
    assert either.contains([A, B]) == [True, False]
    assert set(claims(either)) == {B.hex()}
    # Another page has recorded it.
    either.add(B)
    assert confirm(either, B) == [Verdict.SEEN]
    assert not claims(either)


def test_a_page_whose_claim_is_gone_or_has_failed_or_is_anothers_is_not_recorded(
    either: BloomFilter,
) -> None:
    """Another worker may wait for a request that the page yielded, and that is not stored."""
    claim_item(either, A, B)
    release(either, A)
    release(either, B, owner=OURS, failure=NOW)
    assert confirm(either, A, B) == [Verdict.NOT_CLAIMED] * 2
    claim_item(either, A, owner=THEIRS)
    claim_item(either, D, owner="q")
    claim_item(either, C, owner=OURS[:-1])
    assert confirm(either, A, D, C) == [Verdict.NOT_CLAIMED, NEW, Verdict.NOT_CLAIMED]
    assert either.contains([A, B, C, D]) == [False, False, False, True]
    assert set(claims(either)) == {A.hex(), B.hex(), C.hex()}


def test_pages_are_confirmed_while_the_filter_grows(either: BloomFilter) -> None:
    items = [b"%d" % number for number in range(300)]
    claim_item(either, *items)
    assert confirm(either, *items) == [Verdict.NEW] * 300
    assert all(either.contains(items))
    assert not claims(either)


def test_claims_of_pages_that_there_is_no_room_for_are_ended(client: Redis) -> None:
    bloom = BloomFilter(client, "k", capacity=100, blocks=1, growth=0)
    items = [b"%d" % number for number in range(150)]
    claim_item(bloom, *items)
    assert confirm(bloom, *items).count(Verdict.UNRECORDED) == 50
    assert not claims(bloom)


def test_another_process_of_the_server_neither_confirms_nor_ends_claims(
    either: BloomFilter,
) -> None:
    """It may have lost the claims of the page's links."""
    claim_item(either, A, B)
    other = "0" * 40
    with pytest.raises(RestartedError):
        confirm(either, A, B, server=other)
    with pytest.raises(RestartedError):
        either.run(lambda session: claim_protocol.release(session, [A], server=other))
    assert set(claims(either)) == {A.hex(), B.hex()}
    assert either.contains([A, B]) == [False, False]
    # Of a cluster, all primaries are named.
    named = f"{other},{either.server_id()}"
    assert confirm(either, A, server=named) == [Verdict.NEW]
    assert either.run(lambda session: claim_protocol.release(session, [B], server=named))
    assert not claims(either)


def fail(bloom: BloomFilter, item: bytes, reason: str = "", owner: str = FAILED) -> None:
    failure = RetryPolicy(owner, 600, 5, {field_of(item): reason})
    assert release(bloom, item, owner=OURS, failure=failure) == 1


def make_due(bloom: BloomFilter, *items: bytes) -> list[Verdict]:
    found = bloom.run(lambda session: claim_protocol.make_due(session, items, FAILED, "again"))
    return [found[field_of(item)] for item in items]


@pytest.mark.parametrize(
    "reason", ["a+b 100% é", "two\nlines\tand a tab", "x" * 5_000, "é" * 500, " "]
)
def test_a_reason_comes_back_as_one_short_line(bloom: BloomFilter, reason: str) -> None:
    claim_item(bloom, A, B)
    fail(bloom, A, reason)
    found = claims(bloom)
    assert found[A.hex()].reason == " ".join(reason.split())[: len(found[A.hex()].reason)]
    assert bool(found[A.hex()].reason) == bool(reason.strip())
    assert (found[A.hex()].attempt, found[A.hex()].length) == (1, LENGTH)
    assert found[B.hex()].reason == ""


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_url_that_failed_while_the_clock_was_ahead_is_due(
    bloom: BloomFilter, is_kept: bool
) -> None:
    """A time further away than any failure now would be: it is taken over, or claimed again."""
    kept, items = [claim_text(A), claim_text(B)], [A, B]
    make = partial(claim_protocol.claim, items=items, nonce="1")
    bloom.run(partial(make, owner=OURS, requests=kept if is_kept else ["", ""]))
    release(bloom, A, owner=OURS, failure=RetryPolicy(FAILED, 400 * 86_400, 5))
    fail(bloom, B)
    again = partial(make, owner=THEIRS, requests=["", ""])
    page = bloom.run(lambda session: claim_protocol.scan(session, {0: "0"}, 100))[0]
    take = partial(claim_protocol.reassign, block=0, claims=page.claims, owner=THEIRS, nonce="m")
    waits = Verdict.OTHERS if is_kept else Verdict.OTHERS_UNKEPT
    assert bloom.run(again) == [waits, waits]
    assert bloom.run(take) == {}
    assert {one.field for one in page.claims if one.due(page.now, 600) <= page.now} == {A.hex()}
    if is_kept:
        assert bloom.run(partial(take, cooldown=600)) == {A.hex(): claim_text(A)}
    else:
        assert bloom.run(partial(again, cooldown=600)) == [NEW, waits]


def test_a_failed_url_is_made_due_with_all_its_attempts(bloom: BloomFilter, client: Redis) -> None:
    claim_item(bloom, A)
    fail(bloom, A, "HTTP 503")
    assert make_due(bloom, A) == [Verdict.MINE]
    found = only(bloom)
    assert (found.owner, found.attempt, found.length) == (FAILED, 0, LENGTH)
    assert 0 <= client.time()[0] - found.time <= 60
    assert make_due(bloom, A) == [Verdict.MINE]  # again
    claim = partial(claim_protocol.claim, items=[A], requests=[""], owner=THEIRS, nonce="2")
    assert bloom.run(claim) == [NEW]
    # What has not failed stays as it is.
    before = only(bloom)
    assert before.length == LENGTH
    assert make_due(bloom, A, B) == [Verdict.OTHERS, Verdict.SEEN]
    assert only(bloom) == before


@pytest.mark.parametrize("page", ["", field_of(D)])
def test_a_url_without_a_request_or_of_another_spider_is_due_and_needs_one(
    bloom: BloomFilter, page: str
) -> None:
    claim_item(bloom, B)
    bloom.run(lambda session: claim_protocol.claim(session, [A], [""], OURS, "n", pages=[page]))
    fail(bloom, A, "HTTP 503")
    fail(bloom, B, owner="-other")
    assert make_due(bloom, A, B) == [Verdict.SEEN] * 2
    other = claims(bloom)[B.hex()]
    assert (other.owner, other.attempt) == ("-other", 0)
    assert claim_item(bloom, A, B, owner=FAILED) == NEW * 2
    assert {(one.owner, one.length) for one in claims(bloom).values()} == {(FAILED, LENGTH)}
