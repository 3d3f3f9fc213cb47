"""Everything that one process knows about URLs, in one object."""

import random
import time
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import cycle

from scrapy_bloom.bloom.protocol.cached_ring import CachedRing, Verdict
from scrapy_bloom.fingerprinter import VERSIONED, Key, base_of

#: Seconds after its block's last reply that an entry counts: how late a rotation, or a ``clear``
#: by another process, may be noticed.
FRESH_SECONDS = 5.0
#: For the time without a server: whatever the block has not been found to have forgotten.
ANY_AGE = float("inf")
#: Entries for the time without a server, if there is no cache: 1.6 MB.
OUTAGE_CAPACITY = 200_000
#: Slots that an entry may be in, and bits of its stamp.
WAYS, STAMP_BITS = 2, 16
STAMP_MASK = (1 << STAMP_BITS) - 1
#: The stamp of a URL of which this process has claimed a version: seen until the claim ends.
CLAIMED = STAMP_MASK
#: Verdicts kept for requests that the scheduler has not been offered yet.
MAX_RESERVED = 100_000

#: A window, and a block of its filter.
BlockId = tuple[str, int]


@dataclass(slots=True)
class _KnownBlock:
    """Last reply of a block.

    Args:
        version: nonce of the ring under which it replied.
        ends: when that ring ends, on the local clock.
        replied: when the last call that it replied to was sent.
        stamp: of its entries, 1 to 65,534. A new one makes those it has void.
    """

    version: str
    ends: float
    replied: float
    stamp: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """A verdict for a request that the scheduler has not been offered yet.

    Args:
        verdict: of the filters.
        length: characters of the request stored with its claim.
    """

    verdict: Verdict
    length: int


class ClaimedVersions:
    """Notes in the cache the URLs of which this process has claimed a version.

    The filter does not know them yet, and would answer "new" to links without a version.

    Args:
        slots: of the cache.
        place: returns the first slot of a key, and the bits that stand for it.
        add: puts a key with a stamp into the cache.
        clock: returns seconds.
    """

    def __init__(
        self,
        slots: "array[int]",
        place: Callable[[Key], tuple[int, int]],
        add: Callable[[Key, int], None],
        clock: Callable[[], float],
    ) -> None:
        self._slots, self._place, self._add, self._clock = slots, place, add, clock
        #: URLs of versions that were crawled of late, and when.
        self._crawled: deque[tuple[float, Key]] = deque()

    def claimed(self, key: Key) -> None:
        """Note that this process has claimed a version."""
        base = base_of(key[1])
        if base is not None:
            self._add((key[0], base), CLAIMED)

    def crawled(self, key: Key) -> None:
        """Note that the job is queued that records the URL of a version.

        It is written in a moment; from then on, the filter knows when the URL is forgotten.
        """
        base = base_of(key[1])
        if base is not None:
            self._add((key[0], base), CLAIMED)
            self._crawled.append((self._clock(), (key[0], base)))
            self.sweep()

    def discard(self, key: Key) -> None:
        """Note that the claim on a version was ended otherwise."""
        base = base_of(key[1])
        if base is not None:
            self._end((key[0], base))

    def sweep(self) -> None:
        """Leave URLs to the filter whose jobs were queued some seconds ago."""
        before = self._clock() - FRESH_SECONDS
        while self._crawled and self._crawled[0][0] < before:
            self._end(self._crawled.popleft()[1])

    def _end(self, key: Key) -> None:
        start, tag = self._place(key)
        for slot in range(start, start + WAYS):
            if self._slots[slot] == tag << STAMP_BITS | CLAIMED:
                self._slots[slot] = tag << STAMP_BITS  # without a server, it counts


#: Stands for the verdict of a URL that is recorded here.
_TAKEN = Reserved(Verdict.SEEN, 0)


class LocalState:
    """The cache of verdicts, the URLs recorded only here, and the verdicts not used yet.

    The cache has a fixed size, 8 bytes an entry, in one of two slots, where later ones replace
    earlier ones. An entry is 48 bits of a hash, keyed in each process, and the 16-bit stamp of its
    block's ring, 0 for none: of a million lookups, one is wrong with a probability of 1e-8. Entries
    are good until their ring ends, and for ``FRESH_SECONDS`` after their block last replied under
    the same ring. Without a server, all count.

    Args:
        capacity: entries of the cache; 0 for none but those that count without a server.
        forget_after: seconds without a reply after which all entries of a block are void: other
            workers may have taken over what is claimed.
        clock: returns seconds.
    """

    def __init__(
        self, capacity: int, forget_after: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._is_cache = capacity > 0
        self._sets = -(-(capacity or OUTAGE_CAPACITY) // WAYS)
        self._slots = array("Q", bytes(8 * WAYS * self._sets))
        self._forget_after = forget_after
        self._clock = clock
        self._salt = random.getrandbits(62)
        self._stamps = cycle(range(1, CLAIMED))
        self._blocks: dict[BlockId, _KnownBlock] = {}
        #: Per window, offset from server time to the local clock, at most 1 s too early.
        self._offsets: dict[str, float] = {}
        #: Fingerprints of the window "run", and those that are not recorded in a filter.
        self._taken: set[bytes] = set()
        #: Those of them that jobs will record, or claim, in a filter.
        self._late: set[bytes] = set()
        #: Those of them that a filter has recorded since, while lookups still went without it.
        self._recorded: set[bytes] = set()
        #: Those of them that stay, also once a filter has claimed them.
        self._for_run: set[bytes] = set()
        self._reserved: dict[Key, Reserved] = {}
        #: Claims in the window "run" that this run takes up again, although they are taken.
        self.to_repeat: set[Key] = set()
        self.versions = ClaimedVersions(self._slots, self._place, self._add, clock)

    # -- recorded here only --

    def has_taken(self, item: bytes) -> bool:
        """Whether a URL is recorded here; a filter may have it too."""
        return item in self._taken

    def is_over(self, item: bytes) -> bool:
        """Whether a URL is recorded here, and its request is not under way: no job records it."""
        return item in self._taken and item not in self._late

    def take(self, item: bytes, *, for_run: bool = False, is_late: bool = False) -> bool:
        """Record a URL here; return whether it was new.

        Args:
            item: its fingerprint, or that of its version.
            for_run: whether it stays until the crawl ends, because no filter remembers it.
            is_late: whether a job will record it in a filter.
        """
        is_new = item not in self._taken
        self._taken.add(item)
        if is_late:
            self._late.add(item)
        if for_run:
            base = base_of(item)
            items = (item,) if base is None else (item, base)
            self._taken.update(items)
            self._for_run.update(items)
        return is_new

    def recorded(
        self, keys: Collection[Key], unrecorded: Collection[bytes], *, is_up: bool
    ) -> None:
        """Note URLs that a filter has recorded; forget them here once lookups use the filter.

        Args:
            keys: of the URLs.
            unrecorded: those, or others, for which it has no room: they are kept here.
            is_up: whether lookups use it.
        """
        # Not what was discarded since: its page failed, and what yields it has to ask again.
        taken = [key for key in keys if key[1] in self._taken]
        for key in taken:
            self._add(key, 0)
        self._recorded.update(item for _, item in taken)
        self._recorded.difference_update(unrecorded)
        if is_up:
            self.server_is_used()
        self._taken.update(unrecorded)

    def server_is_used(self) -> None:
        """Forget the URLs that the filters have recorded."""
        self._taken -= self._recorded - self._for_run
        self._late -= self._recorded
        self._recorded.clear()

    # -- verdicts that the scheduler has not been offered --

    def reserve(self, key: Key, verdict: Verdict, length: int) -> None:
        """Keep the verdict of a lookup until the scheduler is offered the request."""
        self._reserved[key] = Reserved(verdict, length)

    def is_reserved(self, key: Key) -> bool:
        """Whether there is a verdict for a request."""
        return key in self._reserved

    def pop(self, key: Key) -> Reserved | None:
        """Return what is known of a URL outside the cache, and remove its reserved verdict."""
        reserved = self._reserved.pop(key, None)
        return _TAKEN if key[1] in self._taken else reserved

    def pop_oldest_reserved(self, most: int) -> Iterator[tuple[Key, Reserved]]:
        """Remove the oldest verdicts until at most so many are left: dropped on their way."""
        while len(self._reserved) > most:
            key = next(iter(self._reserved))
            yield key, self._reserved.pop(key)

    # -- the cache --

    def get(self, key: Key, block: int, max_age: float = FRESH_SECONDS) -> bool:
        """Whether a URL is known to be seen.

        Args:
            key: its key.
            block: the block of its window's filter that it is in.
            max_age: seconds since the block's last reply; ANY_AGE without a server: then URLs
                count that were claimed by anyone, and whatever their ring has become.
        """
        stamp = self._find(key)
        if stamp is None or max_age == ANY_AGE:
            return stamp is not None
        if stamp == CLAIMED:
            self.versions.sweep()
            return self._is_cache and self._find(key) == CLAIMED
        known = self._blocks.get((key[0], block))
        if known is None or known.stamp != stamp or not self._is_cache:
            return False
        now = self._clock()
        return now < known.ends and now - known.replied <= max_age

    def connected(self, window: str, server_time: int) -> None:
        """Note the server's time now, in seconds; a call's reply took up to a second."""
        self._offsets[window] = self._clock() - server_time - 1

    def has_ended(self, window: str, ends: int) -> bool:
        """Whether a moment of the server's clock may have passed; 0 is never."""
        return bool(ends) and self._clock() >= self._offsets[window] + ends

    def put(self, key: Key, held: CachedRing | None, sent: float, *, is_certain: bool) -> None:
        """Note the reply of a block about a URL that is seen from now on.

        Args:
            key: the URL's key.
            held: the ring that replied; None if it is not known.
            sent: when the call was sent, on the local clock.
            is_certain: whether it stays seen; otherwise the entry counts for ANY_AGE only.
        """
        if held is None:
            return
        window, _ = key
        ends = self._offsets[window] + held.ends if held.ends else ANY_AGE
        block = self._replied((window, held.ring.block), held.version, ends, sent)
        self._add(key, block.stamp if is_certain else 0)

    def discard(self, key: Key, *, for_run: bool = False, is_unkept: bool = False) -> None:
        """Forget a URL; if it is a version, also that it was claimed.

        Args:
            key: its key.
            for_run: also if it was to stay until the crawl ends: its page was not crawled.
            is_unkept: also if it is recorded here because the server did not answer: its request is
                not stored, and the filter knows which page has to yield it again.
        """
        if is_unkept:
            self._taken.discard(key[1])
            self._late.discard(key[1])
        for item in (key[1], base_of(key[1])) if for_run else ():
            if item in self._for_run:
                self._for_run.remove(item)
                self._taken.discard(item)
        if key[1].startswith(VERSIONED):
            self.versions.discard(key)
        start, tag = self._place(key)
        for slot in range(start, start + WAYS):
            if self._slots[slot] >> STAMP_BITS == tag:
                self._slots[slot] = 0

    def clear(self) -> None:
        """Make all entries void: they count without a server only."""
        self._blocks.clear()

    def _replied(self, place: BlockId, version: str, ends: float, sent: float) -> _KnownBlock:
        block = self._blocks.get(place)
        if block is None or block.version != version or sent - block.replied > self._forget_after:
            block = self._blocks[place] = _KnownBlock(version, ends, sent, next(self._stamps))
        elif sent > block.replied:
            block.replied = sent
        return block

    def _add(self, key: Key, stamp: int) -> None:
        if not stamp and self._find(key) is not None:
            return  # two pages may look a URL up in one call: the first has the certain verdict
        start, tag = self._place(key)
        slots = self._slots
        if slots[start] >> STAMP_BITS != tag:
            slots[start + 1] = slots[start]
        slots[start] = tag << STAMP_BITS | stamp

    def _find(self, key: Key) -> int | None:
        """Return the stamp of a URL's entry; None if it has none."""
        start, tag = self._place(key)
        for entry in self._slots[start : start + WAYS]:
            if entry >> STAMP_BITS == tag:
                return entry & STAMP_MASK
        return None

    def _place(self, key: Key) -> tuple[int, int]:
        """Return the first of a URL's slots, and the 48 bits that stand for it there."""
        number = hash((self._salt, key)) & 0xFFFF_FFFF_FFFF_FFFF
        return number % self._sets * WAYS, number >> STAMP_BITS or 1
