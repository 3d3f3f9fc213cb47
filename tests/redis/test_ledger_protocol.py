"""The ledger on real servers: requests are kept, packed, and due when they are forgotten."""

import time
from functools import partial

import pytest
import redis

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model import ledger
from scrapy_bloom.bloom.model.ledger import LedgerEntry
from scrapy_bloom.bloom.protocol import claim_protocol, ledger_protocol
from scrapy_bloom.bloom.protocol.ledger_protocol import Kept

pytestmark = pytest.mark.each_server

ITEMS = [bytes([number]) * 20 for number in range(20)]
OURS, TAG = "w-ours", "shop"


@pytest.fixture
def bloom(client: redis.Redis) -> BloomFilter:
    return BloomFilter(client, "k", blocks=2, capacity=1_000, window="6 months")


def request_of(item: bytes) -> str:
    return f'{{"url":"https://example.com/{item[0]}"}}'


def crawl(bloom: BloomFilter, *items: bytes, missing: str = "") -> None:
    """Claim pages, and record them with their requests in the ledger."""
    texts = [request_of(item) for item in items]
    bloom.run(lambda session: claim_protocol.claim(session, items, texts, OURS, "1"))
    kept = Kept(TAG, dict.fromkeys(items, missing) if missing else {})
    bloom.run(lambda session: claim_protocol.confirm(session, items, [OURS], kept=kept))


def pack_all(bloom: BloomFilter) -> int:
    """Pack all entries; return how many there were."""
    packed = 0
    for block in range(2):
        entries = bloom.run(partial(ledger_protocol.read, block=block))
        found = [*map(LedgerEntry.parse, entries.texts)]
        assert None not in found
        if not found:
            continue
        ring = bloom.session.held[block].ring
        chunks = ledger.chunks_of(ring, [entry for entry in found if entry])
        pack = partial(ledger_protocol.pack, block=block, entries=entries, chunks=chunks, nonce="1")
        assert bloom.run(pack)
        packed += len(found)
    return packed


def test_requests_are_due_when_their_pages_are_forgotten(bloom: BloomFilter) -> None:
    crawl(bloom, *ITEMS)
    assert pack_all(bloom) == len(ITEMS)
    assert pack_all(bloom) == 0
    time.sleep(1.1)  # times are in seconds, and what is of the same one is not forgotten
    due = partial(ledger_protocol.due, tag=TAG)
    for _ in range(5):
        bloom.rotate()
        assert bloom.run(due) == []
    bloom.rotate()
    assert bloom.run(partial(ledger_protocol.due, tag="other")) == []
    found = bloom.run(due)
    requests = [request for chunk in found for request in ledger.unpack(chunk.data)]
    assert sorted(requests) == sorted(map(request_of, ITEMS))
    for chunk in found:
        bloom.run(partial(ledger_protocol.drop, chunk=chunk))
    assert bloom.run(due) == []
