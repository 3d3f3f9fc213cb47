"""By which rules a spider's requests in all ledgers were looked up: others may move them.

An entry is in the ledger of the window that its page had. As long as that filter remembers the
page, the entry stays, also if the settings do not have the window any more: the rule may come back.
When the rules change, an idle crawl looks all entries up in the windows that they have now. What is
new there is crawled, and so it is in that window's ledger as well.
"""

from collections.abc import Iterable
from functools import partial

from scrapy_bloom.bloom.protocol import ledger_protocol
from scrapy_bloom.bloom.protocol.ledger_protocol import Listing
from scrapy_bloom.crawl.server import Server
from scrapy_bloom.settings import DEFAULT


class LedgerRules:
    """The rules of a spider, and those that are noted in the main filter.

    All methods raise StorageError if the server does not answer.

    Args:
        tag: the spider's.
        digest: of its rules.
    """

    def __init__(self, tag: str, digest: str) -> None:
        self._tag, self._digest = tag, digest

    async def unread(
        self, server: Server, others: Server, windows: Iterable[str]
    ) -> frozenset[str]:
        """Return windows with requests that were not looked up by these rules.

        Under the same rules, these are of another process, which still has former rules: it has
        added them since, and they are not packed.

        Args:
            server: has the main filter.
            others: has the filters of these windows.
            windows: the windows.
        """
        is_known, found = await self._note(server) == self._digest, set[str]()
        for window in windows:
            listing = await self.listing(others, window)
            if listing.has_entries or (listing.members and not is_known):
                found.add(window)
        return frozenset(found)

    async def listing(self, server: Server, window: str) -> Listing:
        """Return what there is in the ledger of a filter."""
        return await server.run(window, partial(ledger_protocol.chunks, tag=self._tag))

    async def have_changed(self, server: Server) -> bool:
        """Whether there are requests to look up because they may have other windows now."""
        note, filters = await self._note(server), server.filters
        windows = filters.left if note == self._digest else filters.by_window
        if await self.unread(server, server, windows):
            return True
        if note != self._digest:
            await self._write(server, note, self._digest)
        return False

    async def begin(self, server: Server, token: str) -> str:
        """Note that requests are being looked up; return the note."""
        await self._write(server, await self._note(server), token)
        return token

    async def end(self, server: Server, token: str) -> None:
        """Note that all requests have been looked up, if no process with other rules was there."""
        await self._write(server, token, self._digest)

    async def void_others(self, server: Server, token: str) -> None:
        """Delete the note of other rules, before entries are packed that they do not know."""
        note = await self._note(server)
        if note not in ("", self._digest, token):
            await self._write(server, note, "")

    async def _note(self, server: Server) -> str:
        return await server.run(DEFAULT, partial(ledger_protocol.rules, tag=self._tag))

    async def _write(self, server: Server, before: str, now: str) -> None:
        note = partial(ledger_protocol.note_rules, tag=self._tag, before=before, now=now)
        await server.run(DEFAULT, note)
