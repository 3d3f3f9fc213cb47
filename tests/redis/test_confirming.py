"""Pages are recorded and their claims ended in one script: which, and which not."""

import pytest
import redis
from support.claims import NOW, OURS, THEIRS, A, B, C, claim_item, claims, release

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.errors import RestartedError
from scrapy_bloom.bloom.protocol import claim_protocol
from scrapy_bloom.bloom.protocol.cached_ring import Verdict

NEW = Verdict.NEW

pytestmark = pytest.mark.each_server


@pytest.fixture
def bloom(client: redis.Redis) -> BloomFilter:
    return BloomFilter(client, "k", blocks=2, capacity=1_000)


def confirm(bloom: BloomFilter, *items: bytes, server: str = "") -> list[Verdict]:
    return bloom.run(
        lambda session: claim_protocol.confirm(session, items, (OURS, "q"), server=server)
    )


@pytest.mark.parametrize("counting", [False, True])
def test_a_page_is_recorded_and_its_claim_ended_in_one_round_trip(
    client: redis.Redis, counting: bool
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
def test_a_page_that_another_owner_claims_is_not_recorded(
    client: redis.Redis, counting: bool
) -> None:
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
def test_pages_are_confirmed_while_the_filter_grows(client: redis.Redis, counting: bool) -> None:
    bloom = BloomFilter(client, "k", capacity=100, blocks=1, counting=counting)
    items = [b"%d" % number for number in range(300)]
    claim_item(bloom, *items)
    assert confirm(bloom, *items) == [Verdict.NEW] * 300
    assert all(bloom.contains(items))
    assert not claims(bloom)


def test_claims_of_pages_that_there_is_no_room_for_are_ended(client: redis.Redis) -> None:
    bloom = BloomFilter(client, "k", capacity=100, blocks=1, growth=0)
    items = [b"%d" % number for number in range(150)]
    claim_item(bloom, *items)
    assert confirm(bloom, *items).count(Verdict.UNRECORDED) == 50
    assert not claims(bloom)


@pytest.mark.parametrize("counting", [False, True])
def test_another_process_of_the_server_neither_confirms_nor_ends_claims(
    client: redis.Redis, counting: bool
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
