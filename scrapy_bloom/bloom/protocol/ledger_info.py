"""What a filter's ledger holds. No I/O."""

from dataclasses import dataclass

from scrapy_bloom.bloom.model import ledger
from scrapy_bloom.bloom.protocol.ledger_protocol import DueChunk, chunk, read_first
from scrapy_bloom.bloom.protocol.ring_store import Operation, Snapshot
from scrapy_bloom.bloom.protocol.scripts import Call, load
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.bloom.protocol.swaps import in_waves

#: Chunks that are unpacked to say how many pages a ledger has.
MAX_SAMPLES = 32


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """What a filter's ledger holds, of all spiders.

    Args:
        pages: how many; estimated by some of the chunks, if there are ``MAX_SAMPLES`` or more.
        due_pages: those of them that are forgotten, and packed; likewise.
        memory: bytes of their requests, packed and not; likewise.
    """

    pages: int
    due_pages: int
    memory: int


def describe(session: FilterSession, snapshot: Snapshot) -> Operation[LedgerInfo]:
    """Return what a filter's ledger holds.

    Args:
        session: the filter.
        snapshot: what is stored of it.
    """
    pages = memory = due = 0
    found, script = list[tuple[int, str]](), load("ledger_list")
    for wave in in_waves(snapshot.rings):
        for entries in (yield from read_first(session, wave, 1)).values():
            pages += entries.count
            memory += entries.count * sum(map(len, entries.texts))
        names = ((session.keys.entries(block), session.keys.ledger(block)) for block in wave)
        replies = yield [Call(script, keys, ("",)) for keys in names]
        for block, reply in zip(wave, replies, strict=True):
            before = ledger.due_before(snapshot.rings[block], snapshot.now)
            found += ((block, member) for member in reply.fields)
            due += sum(float(time) < before for time in reply.fields.values())
    samples = list[tuple[int, int]]()
    for block, member in found[:: len(found) // MAX_SAMPLES + 1]:
        one = yield from chunk(session, block, member)
        samples += [(_count(one), len(one.data))] if one is not None else []
    of_chunk = sum(count for count, _ in samples) / max(1, len(samples))
    size = sum(length for _, length in samples) / max(1, len(samples))
    return LedgerInfo(
        pages=pages + round(len(found) * of_chunk),
        due_pages=round(due * of_chunk),
        memory=memory + round(len(found) * size),
    )


def _count(chunk: DueChunk) -> int:
    """Return how many requests are in a chunk; 0 if it is damaged."""
    try:
        return len(ledger.unpack(chunk.data))
    except ValueError:
        return 0
