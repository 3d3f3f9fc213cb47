"""Ledgers on a filter, written and read by the protocol."""

from collections.abc import Sequence
from functools import partial

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model import ledger
from scrapy_bloom.bloom.model.ledger import LedgerEntry
from scrapy_bloom.bloom.protocol import claim_protocol, ledger_protocol
from scrapy_bloom.bloom.protocol.ledger_protocol import Entries, Kept, MissingPage
from support.clock import MovedServer

OURS, TAG, GENERATIONS = "w-ours", "shop", 6
DUE = partial(ledger_protocol.due, tag=TAG)


def items(count: int, first: int = 0) -> list[bytes]:
    return [number.to_bytes(20, "big") for number in range(first, first + count)]


def request_of(item: bytes) -> str:
    return f'{{"url":"https://example.com/{int.from_bytes(item, "big")}"}}'


def claim(bloom: BloomFilter, found: Sequence[bytes], *texts: str, owner: str = OURS) -> None:
    requests = texts or [request_of(item) for item in found]
    make = partial(claim_protocol.claim, items=found, requests=requests, owner=owner, nonce="1")
    bloom.run(make)


def add(
    bloom: BloomFilter,
    found: Sequence[bytes],
    missing: str = "",
    *,
    owners: Sequence[str] = (OURS,),
    tag: str = TAG,
    tries: int = 0,
) -> int:
    """Keep the requests of pages whose claims stay; return how many were kept."""
    kept = Kept(tag, dict.fromkeys(found, missing) if missing else {})
    made = partial(ledger_protocol.add_failed, items=found, owners=owners, kept=kept, tries=tries)
    return bloom.run(made)


def crawl(bloom: BloomFilter, found: Sequence[bytes], *texts: str, missing: str = "") -> int:
    """Claim pages, record them, and keep their requests; return how many were kept."""
    claim(bloom, found, *texts)
    kept = Kept(TAG, dict.fromkeys(found, missing) if missing else {})
    before = entries_in(bloom)
    bloom.run(partial(claim_protocol.confirm, items=found, owners=[OURS], kept=kept))
    return entries_in(bloom) - before


def entries_in(bloom: BloomFilter) -> int:
    return sum(entries_of(bloom, block).count for block in bloom.session.held)


def entries_of(bloom: BloomFilter, block: int = 0) -> Entries:
    return bloom.run(partial(ledger_protocol.read, block=block))


def pack(bloom: BloomFilter, block: int, entries: Entries, nonce: str = "1") -> bool:
    """Pack entries that were read, but for damaged ones."""
    found = [entry for text in entries.texts if (entry := LedgerEntry.parse(text))]
    chunks = ledger.chunks_of(bloom.session.held[block].ring, found)
    done = partial(ledger_protocol.pack, block=block, entries=entries, chunks=chunks, nonce=nonce)
    return bloom.run(done)


def pack_all(bloom: BloomFilter) -> int:
    """Pack the first entries of all blocks; return how many there were."""
    packed = 0
    for block in bloom.session.held:
        entries = entries_of(bloom, block)
        if entries.texts:
            assert pack(bloom, block, entries)
        packed += len(entries.texts)
    return packed


def forget(bloom: BloomFilter, server: MovedServer) -> None:
    """Open as many generations as it takes to forget all."""
    for _ in range(GENERATIONS):
        server.move(10)
        bloom.rotate()


def missing_in(bloom: BloomFilter, block: int = 0) -> list[MissingPage]:
    """Return all missing pages of a block, read a few at a time."""
    return bloom.run(partial(ledger_protocol.missing, block=block, count=50))


KEYS = [f"{{k:0}}:{name}" for name in ("ledger:new", "ledger", "ledger:chunks", "missing")]


def fill(bloom: BloomFilter) -> None:
    """Make all keys of a ledger, in all blocks."""
    crawl(bloom, items(40), missing="HTTP 404")
    pack_all(bloom)
    crawl(bloom, items(40, 100))
