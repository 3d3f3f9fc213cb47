"""The ledger of a block: requests of pages that are recorded, by when they were. Pure.

An entry is the time at which its page was recorded, and its request. Entries are packed into
chunks. A chunk is *due* when the generation that recorded its pages is forgotten.
"""

import bz2
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from scrapy_bloom.bloom.model.ring import Ring

#: Entries of a chunk: of larger ones, a request takes hardly fewer bytes.
CHUNK_ENTRIES = 1024
#: Characters of the requests in a chunk at most, except for the first of them.
CHUNK_LENGTH = 1 << 19
#: Bytes of a chunk once it is unpacked, at most: a request takes 65,536 at most.
MAX_UNPACKED = CHUNK_LENGTH + (1 << 17)
#: Windows in a row for which a page has to be missing to be gone.
GONE_AFTER = 2

#: An entry as it is stored.
_ENTRY = re.compile(r"([0-9]{1,12}) ([!-~]{1,60}) ([^\n]+)")


@dataclass(frozen=True, slots=True)
class LedgerChunk:
    """Requests that are due together.

    Args:
        time: of the newest entry in it.
        tag: whose requests they are.
        data: the requests, packed.
    """

    time: int
    tag: str
    data: bytes


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A page that is recorded.

    Args:
        time: when it was, in Unix seconds on the server.
        tag: whose request it is.
        request: its request, in one line.
    """

    time: int
    tag: str
    request: str

    @classmethod
    def parse(cls, text: str) -> "LedgerEntry | None":
        """Read what ``prelude_ledger.lua`` has written; None if it is damaged."""
        match = _ENTRY.fullmatch(text)
        return cls(int(match[1]), match[2], match[3]) if match else None


def pack(requests: Iterable[str]) -> bytes:
    """Return requests as a chunk; sorted, so that those that begin alike stand together."""
    return bz2.compress("\n".join(sorted(requests)).encode("utf-8", "surrogatepass"))


def unpack(chunk: bytes) -> list[str]:
    """Return the requests in a chunk.

    Raises:
        ValueError: it is damaged, or larger than any that is written.
    """
    unpacker = bz2.BZ2Decompressor()
    try:
        text = unpacker.decompress(chunk, MAX_UNPACKED)
    except OSError as error:
        raise ValueError(f"a chunk cannot be unpacked: {error}") from None
    if not unpacker.eof:
        raise ValueError(f"a chunk is cut off, or takes more than {MAX_UNPACKED:,} bytes")
    return text.decode("utf-8", "surrogatepass").split("\n")


def due_before(ring: Ring, now: int) -> int:
    """Return the time before which a page was recorded that is forgotten, in Unix seconds.

    A page is remembered as long as its ring has the generation that was active when it was
    recorded, or an older one. So what a lost or cleared ring remembered is due as well.

    Args:
        ring: the block's.
        now: Unix time in seconds on the server; generations that have to go by then are gone.
    """
    return ring.advance(now).generations[-1].opened


def is_to_pack(ring: Ring, count: int, oldest: int) -> bool:
    """Whether entries are to be packed.

    Args:
        ring: the block's.
        count: how many there are.
        oldest: when the oldest was made.
    """
    return count >= CHUNK_ENTRIES or 0 < oldest < ring.active.opened


def chunks_of(ring: Ring, entries: Iterable[LedgerEntry]) -> list[LedgerChunk]:
    """Return entries as chunks: each of one tag, and of pages that are forgotten together.

    Args:
        ring: the block's; entries from before its oldest generation are forgotten already.
        entries: of the block.
    """
    opened = sorted(generation.opened for generation in ring.generations)
    parts: dict[tuple[int, str], list[LedgerEntry]] = defaultdict(list)
    for entry in entries:
        parts[bisect_right(opened, entry.time), entry.tag].append(entry)
    return [
        LedgerChunk(max(one.time for one in part), tag, pack(one.request for one in part))
        for (_, tag), part in parts.items()
    ]
