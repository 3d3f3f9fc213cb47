"""Packs the entries of ledgers, and finds those that are due, in the background thread.

The crawl's thread posts messages (``want``, ``proposed``, ``look_for_entries``) by
``WriteBehind.post``, and receives ``LedgerEvents``.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

from scrapy_bloom.bloom.model import ledger
from scrapy_bloom.bloom.model.ledger import LedgerEntry
from scrapy_bloom.bloom.protocol import ledger_protocol
from scrapy_bloom.bloom.protocol.ledger_protocol import DueChunk
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.crawl.claims.ledger_rules import LedgerRules
from scrapy_bloom.crawl.claims.request_codec import without_meta
from scrapy_bloom.crawl.claims.tracker import META
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.crawl.runtime import InMain
from scrapy_bloom.crawl.write_behind import LONG_SECONDS, PeriodicTask

#: Blocks whose entries are packed before the thread does something else, as sending heartbeats.
MAX_PACKED = 16


class LedgerEvents(Protocol):
    """Receives what is found; always in the crawl's thread."""

    def due(self, requests: Sequence[str]) -> None:
        """These requests are due, or may be by rules that have changed.

        Nothing more comes until ``proposed``, and ``want`` again.
        """

    def none_due(self) -> None:
        """No request is due."""


class Given(NamedTuple):
    """Requests that are due, and where they are.

    Args:
        window: of their filter.
        chunk: of that filter.
        stays: whether it is not due: the rules have changed.
    """

    window: str
    chunk: DueChunk
    stays: bool = False


class LedgerTask:
    """Keeps the ledgers of a crawl's filters.

    Args:
        tag: the spider's.
        events: receives what is found.
        in_main: schedules a function in the crawl's thread.
        token: returns so many random bytes as hexadecimal text.
        rules: by which the requests have their windows.
    """

    def __init__(
        self,
        tag: str,
        events: LedgerEvents,
        in_main: InMain,
        token: Callable[[int], str],
        rules: LedgerRules,
    ) -> None:
        self._tag, self._token, self._rules = tag, token, rules
        self._events, self._in_main = events, in_main
        #: Whether the crawl takes requests that are due.
        self._is_wanted = False
        #: Whether to look for blocks with entries to pack: at once; before the next requests that
        #: are due, of which these may be some.
        self._looks_now, self._looks_first = False, True
        #: Blocks with entries to pack.
        self._full: set[tuple[str, int]] = set()
        self._found: deque[Given] = deque()
        #: The chunk that the crawl has, and whether it has proposed all of it.
        self._given: Given | None = None
        self._is_proposed = False
        #: The note of this process while it looks up all requests, because the rules have changed;
        #: "" if it does not. The chunks that are left; None if they are not listed yet.
        self._moving = ""
        self._left: deque[tuple[str, int, str]] | None = None

    # -- messages of the crawl --

    def want(self) -> None:
        """Note that the crawl takes requests that are due."""
        self._is_wanted = True

    def proposed(self) -> None:
        """Note that the crawl has looked up the requests that it was given."""
        self._is_proposed = True

    def look_for_entries(self) -> None:
        """Note that many pages were added: some blocks may have entries to pack."""
        self._looks_now = True

    # -- the background thread --

    def begin(self, filters: Filters) -> None:
        """Find out whether the rules have changed; called when the crawl opens.

        Raises:
            StorageError: the server does not answer.
        """
        if self._rules.have_changed(filters):
            self._moving = self._rules.begin(filters, f"moving:{self._token(8)}")

    def run(self, filters: Filters) -> float:
        """Do what is to be done; return seconds until the next run."""
        self._drop_proposed(filters)
        if self._looks_now or (self._is_wanted and self._looks_first):
            self._look(filters)
        for window, block in [*self._full][:MAX_PACKED]:
            if window not in filters.by_window or not self._pack(filters, window, block):
                self._full.discard((window, block))
        if self._full:
            return 0.0
        if self._is_wanted:
            self._give(filters)
        return LONG_SECONDS

    def recovered(self) -> None:
        """Go on after an outage: what was found may have been taken by other workers."""
        self._found.clear()

    def look_soon(self) -> None:
        """There are claims to take over, which is not for this task."""

    def end(self, filters: Filters) -> None:
        """Leave no requests that were proposed."""
        self._drop_proposed(filters)

    def _drop_proposed(self, filters: Filters) -> None:
        if not self._is_proposed or self._given is None:
            return
        if not self._given.stays:
            self._drop(filters, self._given)
        self._given, self._is_proposed = None, False

    def _drop(self, filters: Filters, due: Given) -> None:
        bloom = filters.by_window.get(due.window)
        if bloom is not None:
            bloom.run(partial(ledger_protocol.drop, chunk=due.chunk))

    # -- packing --

    def _look(self, filters: Filters) -> None:
        """Find entries of earlier generations, which may be due, and blocks with many of them.

        If the rules have changed, all entries. Else those of windows that are left stay unpacked:
        they show that another process has added them.
        """
        self._rules.void_others(filters, self._moving)
        to_pack = partial(ledger_protocol.to_pack, is_all=bool(self._moving))
        for window, bloom in (filters.by_window if self._moving else filters.forgetting).items():
            if self._moving or window not in filters.left:
                bloom.run(FilterSession.read)  # the generations of now
                self._full.update((window, block) for block in bloom.run(to_pack))
        self._looks_now = self._looks_first = False

    def _pack(self, filters: Filters, window: str, block: int) -> bool:
        """Pack some entries of a block; return whether there are more to pack."""
        bloom = filters.by_window[window]
        entries = bloom.run(partial(ledger_protocol.read, block=block))
        if block not in bloom.session.held or not entries.texts:
            return False
        ring = bloom.session.held[block].ring
        chunks = ledger.chunks_of(ring, _readable(entries.texts))
        pack = partial(ledger_protocol.pack, entries=entries, chunks=chunks)
        bloom.run(partial(pack, block=block, nonce=self._token(8)))
        left, last = entries.count - len(entries.texts), LedgerEntry.parse(entries.texts[-1])
        # The next entry may be as old as the last one that was packed.
        is_more = bool(self._moving) or ledger.is_to_pack(ring, left, last.time if last else 1)
        return left > 0 and is_more

    # -- requests that are due --

    def _give(self, filters: Filters) -> None:
        """Give the crawl the next requests that are due, or that may have other windows now."""
        if self._left is not None and self._given is not None and self._given.stays:
            chunk = self._given.chunk  # the server did not answer
            self._left.appendleft((self._given.window, chunk.block, chunk.member.decode()))
        self._given = None
        while self._found or self._find(filters) or self._find_moved(filters):
            due = self._found.popleft()
            try:
                requests = ledger.unpack(due.chunk.data)
            except ValueError:
                self._drop(filters, due)
                continue
            self._is_wanted, self._is_proposed, self._given = False, False, due
            self._in_main(partial(self._events.due, requests))
            return
        self._is_wanted, self._looks_first = False, True
        self._in_main(self._events.none_due)

    def _find(self, filters: Filters) -> bool:
        """Find a chunk of each block that has one; return whether any has.

        Other workers begin elsewhere.
        """
        place = int(self._token(4), 16)
        for window, bloom in filters.forgetting.items():
            chunks = bloom.run(partial(ledger_protocol.due, tag=self._tag, place=place))
            if chunks:
                self._found.extend(Given(window, chunk) for chunk in chunks)
                self._found.rotate(place % len(chunks))
                return True
        return False

    def _find_moved(self, filters: Filters) -> bool:
        """Find the next chunk of those that former rules made; return whether there is one."""
        if not self._moving:
            return False
        if self._left is None:
            self._left = deque(
                (window, *member)
                for window, bloom in filters.by_window.items()
                for member in self._rules.listing(bloom).members
            )
        while self._left:
            window, block, member = self._left.popleft()
            read = partial(ledger_protocol.chunk, block=block, member=member)
            chunk = filters.by_window[window].run(read) if window in filters.by_window else None
            if chunk is not None:
                self._found.append(Given(window, chunk, stays=True))
                return True
        self._rules.end(filters, self._moving)
        self._moving, self._left = "", None
        return False


def _readable(texts: Iterable[str]) -> Iterator[LedgerEntry]:
    """Yield entries without what belongs to the claim; damaged ones are left out."""
    for text in texts:
        entry = LedgerEntry.parse(text)
        request = entry and without_meta(entry.request, META)
        if entry and request:
            yield replace(entry, request=request)


class WithLedger:
    """Two periodic tasks as one: see ``PeriodicTask``.

    Args:
        first: runs first.
        ledger: the task of the ledgers.
    """

    def __init__(self, first: PeriodicTask, ledger: LedgerTask) -> None:
        self._tasks = (first, ledger)

    def run(self, filters: Filters) -> float:
        """Run both; return the seconds until the next run."""
        return min([task.run(filters) for task in self._tasks])

    def recovered(self) -> None:
        """The server was down, and is up."""
        for task in self._tasks:
            task.recovered()

    def look_soon(self) -> None:
        """There are claims to take over."""
        for task in self._tasks:
            task.look_soon()

    def end(self, filters: Filters) -> None:
        """Run for the last time."""
        for task in self._tasks:
            task.end(filters)
