"""The ledger on real servers: requests are kept, packed, and due when they are forgotten."""

import bz2
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from redis import Redis
from support.clock import MovedServer
from support.ledgers import (
    DUE,
    GENERATIONS,
    KEYS,
    OURS,
    TAG,
    add,
    claim,
    crawl,
    entries_of,
    fill,
    forget,
    items,
    missing_in,
    pack,
    pack_all,
    request_of,
)
from support.outages import full
from support.servers import Server

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model import ledger
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.protocol import claim_protocol, ledger_info, ledger_protocol
from scrapy_bloom.bloom.protocol.ledger_info import LedgerInfo
from scrapy_bloom.bloom.protocol.ledger_protocol import DueChunk

pytestmark = pytest.mark.each_server


@pytest.fixture
def bloom(client: Redis) -> BloomFilter:
    return BloomFilter(client, "k", blocks=2, capacity=10_000, window="6 months")


def requests_in(chunks: Sequence[DueChunk]) -> list[str]:
    return sorted(text for chunk in chunks for text in ledger.unpack(chunk.data))


def stored_requests(client: Any) -> list[str]:
    """Return the requests in all chunks of a block."""
    chunks = client.hvals("{k:0}:ledger:chunks")
    return sorted(text for chunk in chunks for text in ledger.unpack(chunk))


# -- what is kept --


def test_requests_are_due_when_their_pages_are_forgotten(moved: MovedServer) -> None:
    with moved.client() as client:
        bloom = BloomFilter(client, "k", blocks=2, capacity=1_000, window="6 months")
        found = items(20)
        assert crawl(bloom, found) == 20
        assert pack_all(bloom) == 20
        assert pack_all(bloom) == 0
        for _ in range(GENERATIONS - 1):
            moved.move(10)
            bloom.rotate()
            assert bloom.run(DUE) == []
        moved.move(10)
        bloom.rotate()
        assert bloom.run(partial(ledger_protocol.due, tag="other")) == []
        assert bloom.run(partial(ledger_protocol.due, tag="sho")) == []
        due = bloom.run(DUE)
        assert requests_in(due) == sorted(map(request_of, found))
        for chunk in due:
            bloom.run(partial(ledger_protocol.drop, chunk=chunk))
        assert bloom.run(DUE) == []
        assert not client.keys("*:ledger*")
        # So are those of a ring that is lost.
        crawl(bloom, items(9, 100))
        pack_all(bloom)
        moved.move(10)
        client.delete("{k:0}:ring", "{k:1}:ring")
        assert requests_in(bloom.run(DUE)) == sorted(map(request_of, items(9, 100)))


def test_only_claims_of_these_owners_are_kept(one: BloomFilter) -> None:
    mine, others, free = items(3)
    claim(one, [mine])
    claim(one, [others], owner="w-other")
    assert add(one, [mine, others, free]) == 1
    assert [text.split(" ", 1)[1] for text in entries_of(one).texts] == [
        f"{TAG} {request_of(mine)}"
    ]
    # An owner's name is no part of another's.
    for owners in (["w"], ["ours"], ["w-ours-2"], [""], []):
        assert add(one, [mine], "HTTP 404", owners=owners) == 0
    assert missing_in(one) == []
    assert add(one, [mine, others], owners=["w-other", OURS]) == 2


def test_requests_that_are_not_stored_are_not_kept(one: BloomFilter) -> None:
    bare, of_page, whole = items(3)
    pages = ["", field_of(whole), ""]
    texts = ["", "", request_of(whole)]
    make = partial(claim_protocol.claim, requests=texts, owner=OURS, nonce="1", pages=pages)
    one.run(partial(make, items=[bare, of_page, whole]))
    assert add(one, [bare, of_page]) == 0
    assert entries_of(one).count == 0
    assert add(one, [bare, of_page, whole], "HTTP 404") == 1
    assert [page.field for page in missing_in(one)] == [field_of(whole)]


def test_from_1024_entries_on_there_is_something_to_pack(one: BloomFilter) -> None:
    assert crawl(one, items(1_023)) == 1_023
    assert one.run(ledger_protocol.to_pack) == []
    assert crawl(one, items(1, 1_100)) == 1
    assert one.run(ledger_protocol.to_pack) == [0]
    assert crawl(one, items(300, 1_200)) == 300
    assert one.run(ledger_protocol.to_pack) == [0]
    assert entries_of(one).count == 1_324
    assert len(entries_of(one).texts) == ledger.CHUNK_ENTRIES
    assert pack(one, 0, entries_of(one))
    assert one.run(ledger_protocol.to_pack) == []
    assert entries_of(one).count == 300
    # Large requests make smaller chunks.
    crawl(one, items(20, 2_000), *[f'{{"url":"{"x" * 65_000}{n}"}}' for n in range(20)])
    sizes = []
    while (entries := entries_of(one)).texts:
        sizes.append(len(entries.texts))
        assert sum(map(len, entries.texts)) <= ledger.CHUNK_LENGTH
        assert pack(one, 0, entries, nonce=f"{len(sizes)}")
    assert len(sizes) >= 3


# -- packing --


def test_of_two_that_pack_one_does(one: BloomFilter, client: Redis) -> None:
    crawl(one, items(10))
    entries = entries_of(one)
    crawl(one, items(5, 100))  # they come while it packs
    assert pack(one, 0, entries, nonce="1")
    assert not pack(one, 0, entries, nonce="2")
    assert entries_of(one).count == 5
    assert client.zcard("{k:0}:ledger") == client.hlen("{k:0}:ledger:chunks") == 1
    assert pack(one, 0, entries_of(one), nonce="3")
    assert stored_requests(client) == sorted(map(request_of, [*items(10), *items(5, 100)]))
    # Others have come into their places, or all is gone.
    crawl(one, items(20, 200))
    assert not pack(one, 0, entries, nonce="4")
    client.delete("{k:0}:ledger:new")
    assert not pack(one, 0, entries, nonce="5")


@pytest.mark.parametrize("place", [0, 2, 4])
@pytest.mark.parametrize("damage", [b"\xff\xfe", b"1 shop {}\n", b"9" * 99])
def test_damaged_entries_are_left_out(
    one: BloomFilter, client: Redis, place: int, damage: bytes
) -> None:
    """Wherever they are: what stands before and behind them is packed."""
    crawl(one, items(5))
    client.execute_command("LSET", "{k:0}:ledger:new", place, damage)
    assert one.run(ledger_protocol.to_pack) == [0] * (place == 0)
    assert pack(one, 0, entries_of(one))
    assert entries_of(one).count == 0
    left = [item for number, item in enumerate(items(5)) if number != place]
    assert stored_requests(client) == sorted(map(request_of, left))


# -- what is due --


def due_chunks(bloom: BloomFilter, server: MovedServer, *tags: str) -> None:
    """Make a chunk for each tag, which are due."""
    for number, tag in enumerate(tags):
        found = items(2, 1_000 * number)
        claim(bloom, found)
        add(bloom, found, tag=tag)
        pack(bloom, 0, entries_of(bloom), nonce=f"n{number}")
    forget(bloom, server)


def test_workers_begin_with_different_chunks_of_their_tag(
    moving: BloomFilter, moved: MovedServer
) -> None:
    due_chunks(moving, moved, TAG, "other", TAG, f"{TAG}s", TAG)
    found = [moving.run(partial(DUE, place=place)) for place in (0, 1, 2, 3, 2**32 - 1)]
    members = [chunk.member.decode() for (chunk,) in found]
    assert members[:4] == ["shop n0.0", "shop n2.0", "shop n4.0", "shop n0.0"]
    assert members[4] in members
    moving.run(partial(ledger_protocol.drop, chunk=found[0][0]))
    moving.run(partial(ledger_protocol.drop, chunk=found[0][0]))  # another has dropped it
    left = [moving.run(partial(DUE, place=place))[0].member for place in (0, 1)]
    assert left == [b"shop n2.0", b"shop n4.0"]


@pytest.mark.parametrize("damage", [None, b"x", bz2.compress(bytes(1 << 20))])
def test_a_damaged_chunk_can_be_dropped(
    moving: BloomFilter, moved: MovedServer, damage: bytes | None
) -> None:
    due_chunks(moving, moved, TAG)
    with moved.client() as client:
        if damage is None:
            client.delete("{k:0}:ledger:chunks")  # evicted
        else:
            client.hset("{k:0}:ledger:chunks", "shop n0.0", damage)
        client.zadd("{k:0}:ledger", {b"shop \xff": 1})
        for _ in range(2):
            (chunk,) = moving.run(DUE)
            with pytest.raises(ValueError, match="chunk"):
                ledger.unpack(chunk.data)
            moving.run(partial(ledger_protocol.drop, chunk=chunk))
        assert moving.run(DUE) == []
        assert client.keys("*:ledger*") == []


# -- keys --


def test_all_keys_are_known_cleared_and_deleted(bloom: BloomFilter, client: Redis) -> None:
    def stored() -> set[str]:
        return {key.decode() for key in client.scan_iter()}

    fill(bloom)
    both = {key.replace("0", str(block)) for key in KEYS for block in range(2)}
    assert both <= stored()
    assert set(bloom.keys()) == stored()
    assert len(bloom.keys()) == len(stored())
    bloom.clear()
    assert not both & stored()
    fill(bloom)
    client.delete("{k:1}:ring")
    assert both <= set(bloom.keys())
    client.delete("{k:1}:ring")
    assert bloom.delete()
    assert stored() == set()


def test_a_server_without_memory_keeps_and_packs(
    one: BloomFilter, server: Server, client: Redis
) -> None:
    claim(one, items(20))
    with full(server):
        assert add(one, items(20), "HTTP 404") == 20
        assert pack_all(one) == 20
        assert len(missing_in(one)) == 20
        one.run(partial(ledger_protocol.drop, chunk=DueChunk(0, b"shop 1.0", b"")))
    assert client.keys("*:ledger*") == []


# -- what info shows --


def described(bloom: BloomFilter) -> LedgerInfo:
    snapshot = bloom.look()
    assert snapshot is not None
    return bloom.run(partial(ledger_info.describe, snapshot=snapshot))


def test_it_says_what_it_holds_and_what_is_due(moving: BloomFilter, moved: MovedServer) -> None:
    """Of all spiders, packed and not."""
    moving.open()
    assert described(moving) == LedgerInfo(0, 0, 0)
    due_chunks(moving, moved, TAG, "other")
    with moved.client() as client:
        packed = sum(map(len, client.hvals("{k:0}:ledger:chunks")))
    crawl(moving, items(3, 50_000))
    found = described(moving)
    assert (found.pages, found.due_pages) == (4 + 3, 4)
    assert packed < found.memory < packed + 1_000


def test_of_many_chunks_some_are_read(one: BloomFilter, client: Redis) -> None:
    one.open()
    for number in range(100):
        client.zadd("{k:0}:ledger", {f"shop {number}": 2_000_000_000 if number % 4 else 1})
        client.hset("{k:0}:ledger:chunks", f"shop {number}", ledger.pack(["{}"] * 10))
    client.hset("{k:0}:ledger:chunks", "shop 99", b"damaged")
    found = described(one)
    assert (found.pages, found.due_pages) == (1_000, 250)
    assert found.memory == 100 * len(ledger.pack(["{}"] * 10))


# -- pages that are missing --


def test_a_missing_page_is_counted_once_a_window_and_is_gone_after_two(
    moving: BloomFilter, moved: MovedServer
) -> None:
    (page,) = found = items(1)
    first = int(moved.now())
    for kept in (1, 0):  # the second time, it is kept already
        claim(moving, found)
        assert add(moving, found, "HTTP 404") == kept
        moved.move(10)
    moving.run(partial(claim_protocol.confirm, items=found, owners=[OURS]))
    (missing,) = missing_in(moving)
    assert (missing.field, missing.url) == (field_of(page), "https://example.com/0")
    assert (missing.times, missing.reason) == (1, "HTTP 404")
    assert first <= missing.first <= first + 2
    assert missing.first == missing.last
    forget(moving, moved)
    assert crawl(moving, found, missing="HTTP 410") == 0  # gone: it is kept no longer
    (gone,) = missing_in(moving)
    assert (gone.times, gone.reason) == (2, "HTTP 410")
    assert gone.first == missing.first < gone.last
    forget(moving, moved)
    assert crawl(moving, found) == 1  # it is there again, by a link
    assert missing_in(moving) == []
    forget(moving, moved)
    assert crawl(moving, found, missing="HTTP 404") == 1
    assert [page.times for page in missing_in(moving)] == [1]


def test_missing_pages_are_noted_up_to_a_bound(
    one: BloomFilter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_protocol, "MAX_MISSING", 100)
    found = items(120)
    claim(one, found)
    assert add(one, found, "HTTP 404") == 120  # kept nevertheless
    assert add(one, found, "HTTP 410") == 20  # those that are not noted
    assert [page.reason for page in missing_in(one)] == ["HTTP 404"] * 100
    noted = [page.field for page in missing_in(one)]
    there = [item for item in found if field_of(item) in noted][:7]
    add(one, there)
    assert len(missing_in(one)) == 93
    add(one, found, "HTTP 404")  # there is room again
    assert len(missing_in(one)) == 100


@pytest.mark.parametrize(
    ("request_", "url"),
    [
        *(("no JSON", ""), ("[]", ""), ("1", ""), ("{}", ""), ('{"url":7}', "")),
        *(('{"url":{"a":1}}', ""), ("[" * 2_000, "")),
        ('{"url":"http://x/\\u00e9 \\n\\u4e2d"}', "http://x/\u00e9 \n\u4e2d"),
        (json.dumps({"url": "x" + "\u4e2d" * 9_000}), "x" + "\u4e2d" * 666),
        (json.dumps({"url": "x" * 2_000}), "x" * 2_000),
    ],
    ids=range(10),
)
def test_urls_of_odd_requests_are_noted_as_far_as_they_are_urls(
    one: BloomFilter, request_: str, url: str
) -> None:
    assert crawl(one, items(1), request_, missing="") == 1
    one.clear()
    assert crawl(one, items(1), request_, missing="a reason of words, caf\u00e9") == 1
    (missing,) = missing_in(one)
    assert missing.url == url
    assert missing.reason == "a reason of words, caf\u00e9"


def test_damaged_notes_are_left_out_and_start_again(one: BloomFilter, client: Redis) -> None:
    found = items(4)
    crawl(one, found, missing=" ")  # of no reason
    assert {page.reason for page in missing_in(one)} == {""}
    client.hset("{k:0}:missing", field_of(found[0]), "damaged")
    client.hset("{k:0}:missing", field_of(found[1]), b"1 2 \xff ! x")
    client.hset("{k:0}:missing", field_of(found[3]), f"1 2 {'9' * 20} ! x")
    assert [page.field for page in missing_in(one)] == [field_of(found[2])]
    claim(one, [*items(3, 50)])
    for item in items(3, 50):
        client.hset("{k:0}:missing", field_of(item), "1 x 1 ! y")
    assert add(one, items(3, 50), "HTTP 404") == 3
    assert [page.times for page in missing_in(one)] == [1] * 4
