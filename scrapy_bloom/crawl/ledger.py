"""Crawls requests of the ledger that are due, once the spider has nothing else to do.

By then, most pages that are linked have been found by their links: what is left are the others.
The entries of pages are packed into chunks, by the generation that they were recorded in. A chunk
is due when its generation is forgotten.

An entry is in the ledger of the window that its page had. As long as that filter remembers the
page, the entry stays, also if the settings do not have the window any more: the rule may come back.
When the rules change, an idle crawl looks all entries up in the windows that they have now. What is
new there is crawled, and so it is in that window's ledger as well.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from scrapy import Request

from scrapy_bloom.bloom.errors import BloomError, shown, tagged
from scrapy_bloom.bloom.model import ledger
from scrapy_bloom.bloom.model.ledger import CHUNK_ENTRIES, LedgerEntry
from scrapy_bloom.bloom.protocol import ledger_protocol
from scrapy_bloom.bloom.protocol.ledger_protocol import DueChunk, Listing
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.crawl import request_codec
from scrapy_bloom.crawl.claims import Claims
from scrapy_bloom.crawl.context import Context, wait_for
from scrapy_bloom.crawl.decider import Decider
from scrapy_bloom.crawl.recovery import LOOK_SECONDS, ROOM_SECONDS
from scrapy_bloom.crawl.server import Server
from scrapy_bloom.crawl.tracker import META
from scrapy_bloom.settings import DEFAULT

logger = logging.getLogger(__name__)

#: Pages that this process adds between two looks for blocks with entries to pack.
LOOK_AFTER = 4 * CHUNK_ENTRIES
#: Seconds between two looks at how many it has added.
COUNT_SECONDS = 10.0


class LedgerRules:
    """The rules of a spider, and those that are noted in the main filter.

    All methods raise StorageError if the server does not answer.

    Args:
        server: has the main filter.
        tag: the spider's.
        digest: of its rules.
    """

    def __init__(self, server: Server, tag: str, digest: str) -> None:
        self._server, self._tag, self._digest = server, tag, digest

    async def unread(self, server: Server, windows: Iterable[str]) -> frozenset[str]:
        """Return windows with requests that were not looked up by these rules.

        Under the same rules, these are of another process, which still has former rules: it has
        added them since, and they are not packed.

        Args:
            server: has the filters of these windows.
            windows: the windows.
        """
        is_known, found = await self._note() == self._digest, set[str]()
        for window in windows:
            listing = await self.listing(server, window)
            if listing.has_entries or (listing.members and not is_known):
                found.add(window)
        return frozenset(found)

    async def listing(self, server: Server, window: str) -> Listing:
        """Return what there is in the ledger of a filter."""
        return await server.run(window, partial(ledger_protocol.chunks, tag=self._tag))

    async def have_changed(self) -> bool:
        """Whether there are requests to look up because they may have other windows now."""
        note, filters = await self._note(), self._server.filters
        windows = filters.left if note == self._digest else filters.by_window
        if await self.unread(self._server, windows):
            return True
        if note != self._digest:
            await self._write(note, self._digest)
        return False

    async def begin(self, token: str) -> str:
        """Note that requests are being looked up; return the note."""
        await self._write(await self._note(), token)
        return token

    async def end(self, token: str) -> None:
        """Note that all requests have been looked up, if no process with other rules was there."""
        await self._write(token, self._digest)

    async def void_others(self, token: str) -> None:
        """Delete the note of other rules, before entries are packed that they do not know."""
        note = await self._note()
        if note not in ("", self._digest, token):
            await self._write(note, "")

    async def _note(self) -> str:
        return await self._server.run(DEFAULT, partial(ledger_protocol.rules, tag=self._tag))

    async def _write(self, before: str, now: str) -> None:
        note = partial(ledger_protocol.note_rules, tag=self._tag, before=before, now=now)
        await self._server.run(DEFAULT, note)


class DueRequests(NamedTuple):
    """Requests that are due, or may have other windows now.

    Args:
        window: of their filter.
        stored: in that filter.
        stays: whether it is not due: the rules have changed.
    """

    window: str
    stored: DueChunk
    stays: bool = False


class Ledger:
    """Keeps the ledgers of a crawl's filters, and crawls what is due.

    Args:
        context: what all parts use.
        claims: of the crawl.
        decider: looks requests up.
    """

    def __init__(self, context: Context, claims: Claims, decider: Decider) -> None:
        self._engine, self._report, self._server = context.engine, context.report, context.server
        self._clock, self._token = context.clock, context.token
        self._keeps_headers = context.settings.keep_headers
        self._spider, self._settler, self._tag = claims.spider, claims.settler, claims.me.tag
        self._decider = decider
        self._rules = LedgerRules(self._server, self._tag, context.settings.windows.digest)
        #: Is set while the idle spider waits for requests that are due.
        self._asked = asyncio.Event()
        #: Until when it is known that none is due.
        self._none_until = 0.0
        #: Pages that had been added when entries were packed last.
        self._packed = 0
        #: The note of this process while it looks up all requests, because the rules have changed;
        #: "" if it does not. The chunks that are left; None if they are not listed yet.
        self._moving = ""
        self._left: deque[tuple[str, int, str]] | None = None
        #: Chunks that were found and are not proposed yet.
        self._found: deque[DueRequests] = deque()

    def may_close(self) -> bool:
        """Whether the idle spider may close: when no request is due."""
        if not self._server.is_up or self._clock() < self._none_until:
            return True
        self._asked.set()
        return False

    async def begin(self) -> None:
        """Find out, when the crawl opens, whether the rules have changed.

        Raises:
            RightsError: the user lacks rights that a ledger needs.
        """
        for window in self._server.filters.forgetting:
            await self._server.run(window, ledger_protocol.check_rights)
        if await self._rules.have_changed():
            self._moving = await self._rules.begin(f"moving:{self._token(8)}")

    async def run(self) -> None:
        """Pack entries, and crawl what is due when the spider is idle, until it is cancelled."""
        while True:
            is_asked = await wait_for(self._asked, COUNT_SECONDS)
            try:
                if not self._server.is_up:
                    pass  # then an idle spider closes
                elif is_asked:
                    await self._crawl_due()
                elif self._settler.kept - self._packed >= LOOK_AFTER:
                    await self._pack_all()
            except BloomError as error:
                self._server.fail(error)
            except Exception:
                logger.exception(tagged("not-proposed", "Bloom filter: the ledger cannot be used"))
                self._none_due()
            if is_asked:
                self._asked.clear()

    def _none_due(self) -> None:
        """Let the idle spider close."""
        self._none_until = self._clock() + LOOK_SECONDS
        self._engine.look()

    # -- packing --

    async def _pack_all(self) -> None:
        """Pack entries of earlier generations, which may be due, and blocks with many of them.

        If the rules have changed, all entries. Else those of windows that are left stay unpacked:
        they show that another process has added them.
        """
        self._packed, filters = self._settler.kept, self._server.filters
        await self._rules.void_others(self._moving)
        to_pack = partial(ledger_protocol.to_pack, is_all=bool(self._moving))
        for window in filters.by_window if self._moving else filters.forgetting:
            if not self._moving and window in filters.left:
                continue
            await self._server.run(window, FilterSession.read)  # the generations of now
            for block in await self._server.run(window, to_pack):
                while await self._pack(window, block):
                    pass

    async def _pack(self, window: str, block: int) -> bool:
        """Pack some entries of a block; return whether there are more to pack."""
        entries = await self._server.run(window, partial(ledger_protocol.read, block=block))
        held = self._server.session(window).held.get(block)
        if held is None or not entries.texts:
            return False
        chunks = ledger.chunks_of(held.ring, _readable(entries.texts))
        pack = partial(ledger_protocol.pack, entries=entries, chunks=chunks)
        await self._server.run(window, partial(pack, block=block, nonce=self._token(8)))
        left, last = entries.count - len(entries.texts), LedgerEntry.parse(entries.texts[-1])
        # The next entry may be as old as the last one that was packed.
        is_more = bool(self._moving) or ledger.is_to_pack(held.ring, left, last.time if last else 1)
        return left > 0 and is_more

    # -- requests that are due --

    async def _crawl_due(self) -> None:
        """Look up all that is due, or may have other windows now; crawl what is new."""
        await self._pack_all()
        self._found.clear()
        while chunk := await self._next_chunk():
            if not await self._propose(chunk):
                break  # they stay in the ledger, and are looked up again later
            self._found.popleft()
            while not self._engine.has_room():
                await asyncio.sleep(ROOM_SECONDS)
        self._none_due()

    async def _next_chunk(self) -> DueRequests | None:
        """Return the next of the chunks that are due, then of those that former rules made."""
        self._found = self._found or deque(await self._find()) or deque(await self._find_moved())
        return self._found[0] if self._found else None

    async def _find_moved(self) -> list[DueRequests]:
        """Return the next chunk that former rules made; none if there is none."""
        if not self._moving:
            return []
        if self._left is None:
            self._left = deque(await self._members())
        while self._left:
            window, block, member = self._left[0]
            read = partial(ledger_protocol.chunk, block=block, member=member)
            stored = await self._server.run(window, read)
            if stored is not None:
                return [DueRequests(window, stored, stays=True)]
            self._left.popleft()
        await self._rules.end(self._moving)
        self._moving, self._left = "", None
        return []

    async def _find(self) -> list[DueRequests]:
        """Return a chunk of each block that has one; other workers begin elsewhere."""
        place = int(self._token(4), 16)
        for window in self._server.filters.forgetting:
            due = partial(ledger_protocol.due, tag=self._tag, place=place)
            if chunks := await self._server.run(window, due):
                first = place % len(chunks)
                return [DueRequests(window, one) for one in (*chunks[-first:], *chunks[:-first])]
        return []

    async def _members(self) -> list[tuple[str, int, str]]:
        """Return window, block and name of all chunks of the spider."""
        listings = {
            window: await self._rules.listing(self._server, window)
            for window in self._server.filters.by_window
        }
        return [(window, *one) for window, listing in listings.items() for one in listing.members]

    async def _propose(self, chunk: DueRequests) -> bool:
        """Crawl the requests of a chunk that are new; return whether all of these are known."""
        try:
            texts = ledger.unpack(chunk.stored.data)
        except ValueError:
            await self._drop(chunk)
            return True
        requests = [request for text in texts if (request := self._read(text)) is not None]
        new, is_complete = await self._decider.new_among(requests)
        for request in new:
            self._crawl(request)
        if not is_complete:
            return False
        self._report.count("ledger_due", count=len(texts))
        self._report.count("proposed", count=len(new))
        if not chunk.stays:
            await self._drop(chunk)
        elif self._left:
            self._left.popleft()
        return True

    async def _drop(self, chunk: DueRequests) -> None:
        await self._server.run(chunk.window, partial(ledger_protocol.drop, chunk=chunk.stored))

    def _crawl(self, request: Request) -> None:
        try:
            self._engine.crawl(request)
        except Exception:
            line = "Bloom filter: due request %s cannot be scheduled"
            logger.exception(tagged("not-scheduled", line), shown(request))

    def _read(self, text: str) -> Request | None:
        try:
            request = request_codec.load(text, self._spider, keeps_headers=self._keeps_headers)
        except ValueError as error:
            self._report.count("not_restored")
            self._report.warn_once(
                "not-restored",
                f"a request of the ledger cannot be put back: {error}. Has the spider changed? Its "
                "URL is crawled when it is found again (bloom/not_restored counts them)",
            )
            return None
        # A version that was crawled is not what is due: the page is.
        request.meta.pop("bloom_version", None)
        request.dont_filter = False  # of start pages, and pages that were given to recrawl
        return request


def _readable(texts: Iterable[str]) -> Iterator[LedgerEntry]:
    """Yield entries without what belongs to the claim; damaged ones are left out."""
    for text in texts:
        entry = LedgerEntry.parse(text)
        request = entry and request_codec.without_meta(entry.request, META)
        if entry and request:
            yield replace(entry, request=request)
