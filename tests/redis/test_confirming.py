"""How claims end: pages that are recorded, pages that failed and why, URLs that are made due."""

from collections.abc import Sequence
from functools import partial

import pytest
from redis import Redis
from support.claims import NOW, OURS, THEIRS, A, B, C, claim_item, claims, release

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.errors import RestartedError
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.protocol import claim_protocol
from scrapy_bloom.bloom.protocol.cached_ring import Verdict
from scrapy_bloom.bloom.protocol.claim_protocol import RetryPolicy, StoredClaim

NEW = Verdict.NEW
pytestmark = pytest.mark.each_server


@pytest.fixture
def bloom(client: Redis) -> BloomFilter:
    return BloomFilter(client, "k", blocks=1, capacity=1_000)


def confirm(bloom: BloomFilter, *items: bytes, server: str = "") -> list[Verdict]:
    return bloom.run(
        lambda session: claim_protocol.confirm(session, items, (OURS, "q"), server=server)
    )


@pytest.mark.parametrize("counting", [False, True])
def test_a_page_is_recorded_and_its_claim_ended_in_one_round_trip(
    client: Redis, counting: bool
) -> None:
    bloom = BloomFilter(client, "k", capacity=1_000, blocks=1, counting=counting)
    claim_item(bloom, A, B, b"first")
    confirm(bloom, b"first")  # the server may not have the script yet
    before = bloom.round_trips
    assert confirm(bloom, A) == [Verdict.NEW]
    assert bloom.round_trips == before + 1
    assert bloom.contains([A, B]) == [True, False]
    assert set(claims(bloom)) == {B.hex()}


def test_a_page_whose_claim_is_gone_or_has_failed_is_not_recorded(bloom: BloomFilter) -> None:
    claim_item(bloom, A, B)
    release(bloom, A)
    release(bloom, B, owner=OURS, failure=NOW)
    assert confirm(bloom, A, B) == [Verdict.NOT_CLAIMED] * 2
    assert bloom.contains([A, B]) == [False, False]
    assert set(claims(bloom)) == {B.hex()}


@pytest.mark.parametrize("counting", [False, True])
def test_a_page_that_another_owner_claims_is_not_recorded(client: Redis, counting: bool) -> None:
    """That worker may wait for a request that the page yielded, and that is not stored."""
    bloom = BloomFilter(client, "k", capacity=1_000, blocks=1, counting=counting)
    claim_item(bloom, A, owner=THEIRS)
    claim_item(bloom, B, owner="q")
    claim_item(bloom, C, owner=OURS[:-1])
    assert confirm(bloom, A, B, C) == [Verdict.NOT_CLAIMED, NEW, Verdict.NOT_CLAIMED]
    assert bloom.contains([A, B, C]) == [False, True, False]
    assert set(claims(bloom)) == {A.hex(), C.hex()}


def test_a_page_that_another_page_has_recorded_is_confirmed(bloom: BloomFilter) -> None:
    claim_item(bloom, A)
    bloom.add(A)
    assert confirm(bloom, A) == [Verdict.SEEN]
    assert not claims(bloom)


@pytest.mark.parametrize("counting", [False, True])
def test_pages_are_confirmed_while_the_filter_grows(client: Redis, counting: bool) -> None:
    bloom = BloomFilter(client, "k", capacity=100, blocks=1, counting=counting)
    items = [b"%d" % number for number in range(300)]
    claim_item(bloom, *items)
    assert confirm(bloom, *items) == [Verdict.NEW] * 300
    assert all(bloom.contains(items))
    assert not claims(bloom)


def test_claims_of_pages_that_there_is_no_room_for_are_ended(client: Redis) -> None:
    bloom = BloomFilter(client, "k", capacity=100, blocks=1, growth=0)
    items = [b"%d" % number for number in range(150)]
    claim_item(bloom, *items)
    assert confirm(bloom, *items).count(Verdict.UNRECORDED) == 50
    assert not claims(bloom)


@pytest.mark.parametrize("counting", [False, True])
def test_another_process_of_the_server_neither_confirms_nor_ends_claims(
    client: Redis, counting: bool
) -> None:
    """It may have lost the claims of the page's links."""
    bloom = BloomFilter(client, "k", capacity=1_000, counting=counting)
    claim_item(bloom, A, B)
    other = "0" * 40
    with pytest.raises(RestartedError):
        confirm(bloom, A, B, server=other)
    with pytest.raises(RestartedError):
        bloom.run(lambda session: claim_protocol.release(session, [A], server=other))
    assert set(claims(bloom)) == {A.hex(), B.hex()}
    assert bloom.contains([A, B]) == [False, False]
    # Of a cluster, all primaries are named.
    assert confirm(bloom, A, server=f"{other},{bloom.server_id()}") == [Verdict.NEW]
    assert bloom.run(lambda session: claim_protocol.release(session, [B], server=bloom.server_id()))
    assert not claims(bloom)


D = b"d" * 20
#: Of one spider: the tag comes second in an owner.
WORKER, OTHER, FAILED = "wtheshop-1", "wtheshop-2", "-theshop-"
REQUEST = '{"url":"https://example.com/"}'


def claim(
    bloom: BloomFilter, *items: bytes, owner: str = WORKER, request: str = REQUEST
) -> list[Verdict]:
    requests = [request] * len(items)
    return bloom.run(
        lambda session: claim_protocol.claim(session, items, requests, owner, "n", tested=False)
    )


def fail(bloom: BloomFilter, *items: bytes, reason: str = "", owner: str = FAILED) -> None:
    reasons = {field_of(item): reason for item in items}
    failure = RetryPolicy(owner, 600, 5, reasons)
    assert bloom.run(
        lambda session: claim_protocol.release(session, items, WORKER, failure)
    ) == len(items)


def make_due(bloom: BloomFilter, *items: bytes) -> list[Verdict]:
    found = bloom.run(lambda session: claim_protocol.make_due(session, items, FAILED, "again"))
    return [found[field_of(item)] for item in items]


def stored(bloom: BloomFilter, item: bytes) -> StoredClaim:
    page = bloom.run(lambda session: claim_protocol.scan(session, {0: "0"}, 100))[0]
    assert not page.damaged
    return next(one for one in page.claims if one.field == field_of(item))


@pytest.mark.parametrize(
    "reason", ["HTTP 503", "a+b 100% é", "two\nlines\tand a tab", "x" * 5_000, "é" * 500, " "]
)
def test_a_reason_comes_back_as_one_short_line(bloom: BloomFilter, reason: str) -> None:
    claim(bloom, A, B)
    fail(bloom, A, reason=reason)
    found = stored(bloom, A)
    assert found.reason == " ".join(reason.split())[: len(found.reason)]
    assert bool(found.reason) == bool(reason.strip())
    assert (found.attempt, found.length) == (1, len(REQUEST))
    assert stored(bloom, B).reason == ""


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_url_that_failed_while_the_clock_was_ahead_is_due(
    bloom: BloomFilter, is_kept: bool
) -> None:
    """A time further away than any failure now would be."""
    claim(bloom, A, B, request=REQUEST if is_kept else "")
    ahead = RetryPolicy(FAILED, 400 * 86_400, 5)
    bloom.run(lambda session: claim_protocol.release(session, [A], WORKER, ahead))
    fail(bloom, B)

    def again(cooldown: int) -> list[Verdict]:
        make = partial(claim_protocol.claim, items=[A, B], requests=["", ""], owner=OTHER)
        return bloom.run(partial(make, nonce="m", cooldown=cooldown))

    waits = Verdict.OTHERS if is_kept else Verdict.OTHERS_UNKEPT
    assert again(0) == [waits, waits]
    assert again(600) == [Verdict.NEW, waits]


def test_one_that_failed_while_the_clock_was_ahead_is_taken_over(bloom: BloomFilter) -> None:
    claim(bloom, A, B)
    ahead = RetryPolicy(FAILED, 400 * 86_400, 5)
    bloom.run(lambda session: claim_protocol.release(session, [A], WORKER, ahead))
    fail(bloom, B)
    page = bloom.run(lambda session: claim_protocol.scan(session, {0: "0"}, 100))[0]
    take = partial(claim_protocol.reassign, block=0, claims=page.claims, owner=OTHER, nonce="m")
    assert bloom.run(take) == {}
    assert bloom.run(partial(take, cooldown=600)) == {field_of(A): REQUEST}
    assert {one.field for one in page.claims if one.due(page.now, 600) <= page.now} == {field_of(A)}


def test_a_failed_url_is_made_due_with_all_its_attempts(bloom: BloomFilter) -> None:
    claim(bloom, A)
    fail(bloom, A, reason="HTTP 503")
    assert make_due(bloom, A) == [Verdict.MINE]
    found = stored(bloom, A)
    assert (found.owner, found.attempt, found.length) == (FAILED, 0, len(REQUEST))
    page = bloom.run(lambda session: claim_protocol.scan(session, {0: "0"}, 9))[0]
    assert 0 <= page.now - found.time <= 60
    assert make_due(bloom, A) == [Verdict.MINE]  # again
    assert claim(bloom, A, owner=OTHER, request="") == [Verdict.NEW]
    assert stored(bloom, A).length == len(REQUEST)


def test_what_has_not_failed_stays_as_it_is(bloom: BloomFilter) -> None:
    claim(bloom, A)
    before = stored(bloom, A)
    assert make_due(bloom, A, B) == [Verdict.OTHERS, Verdict.SEEN]
    assert stored(bloom, A) == before


@pytest.mark.parametrize("page", [(), (field_of(D),)])
def test_a_url_without_a_request_is_due_and_needs_one(
    bloom: BloomFilter, page: Sequence[str]
) -> None:
    bloom.run(
        lambda session: claim_protocol.claim(session, [A], [""], WORKER, "n", pages=page or [""])
    )
    fail(bloom, A, reason="HTTP 503")
    assert make_due(bloom, A) == [Verdict.SEEN]
    assert claim(bloom, A, owner=FAILED) == [Verdict.NEW]
    found = stored(bloom, A)
    assert (found.owner, found.length) == (FAILED, len(REQUEST))


def test_a_failed_url_of_another_spider_is_due_and_its_request_of_no_use(
    bloom: BloomFilter,
) -> None:
    claim(bloom, A)
    fail(bloom, A, owner="-other")
    assert make_due(bloom, A) == [Verdict.SEEN]
    assert (stored(bloom, A).owner, stored(bloom, A).attempt) == ("-other", 0)
    assert claim(bloom, A, owner=FAILED) == [Verdict.NEW]
    assert stored(bloom, A).owner == FAILED
