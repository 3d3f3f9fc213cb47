"""Looks up start requests together, before they are scheduled.

Scrapy's engine takes what ``start()`` yields, after all spider middlewares, one by one, and
schedules each request before it asks for the next. Alone, each would hold up the crawl for a round
trip. So once a request has to be looked up, more are read, as far as ``start()`` has them ready,
and looked up with it. A ``start()`` that waits is waited for, while the requests that it has
yielded are crawled.

Requests that no rule gives a window need no lookup, so ``start()`` goes on exactly when it does in
plain Scrapy.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from zlib import crc32

from scrapy import Request

from scrapy_bloom.crawl.identity import Identity
from scrapy_bloom.crawl.lookups import Lookup
from scrapy_bloom.crawl.outputs import BATCH, Outputs

#: An output of ``start()``, and the lookup of a request that needs one.
Read = tuple[Any, Lookup | None]


class Starts:
    """Reads the outputs of a spider's ``start()``.

    Args:
        outputs: drops duplicates.
        identity: knows which start requests nothing gives a window.

    Attributes:
        plain: how many of these were read.
        mark: the smallest hash of their URLs: most lists with the same URLs have the same.
    """

    def __init__(self, outputs: Outputs, identity: Identity) -> None:
        self._outputs, self._identity = outputs, identity
        self._lookups = outputs.duplicates.lookups
        self.plain, self.mark = 0, 2**32
        self._read: list[Read] = []
        #: Reads until there are enough of them. It ends with the exception that ``start()`` raises.
        self._reader: asyncio.Task[None] | None = None
        #: Is set when the reader has read something, or has ended.
        self._has_read = asyncio.Event()

    async def read(self, starts: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Yield start requests and items in their order, without duplicates."""
        try:
            while found := await self._next(starts):
                for output, lookup in found:
                    known = lookup if lookup is not None and lookup.is_duplicate else None
                    if self._outputs.is_closed:
                        return  # the claims are given back, but a queue may outlive the crawl
                    if known is None:
                        yield output
                    elif self._outputs.asks_project:
                        with self._lookups.answering(known):
                            yield output  # the engine schedules it before it asks for another
                    else:
                        self._outputs.drop(output, known, None)
        finally:
            self._close()

    def _close(self) -> None:
        """Read no more."""
        reader, self._reader = self._reader, None
        if reader is not None and not reader.cancel() and not reader.cancelled():
            reader.exception()  # nobody asks for it any more

    async def _next(self, starts: AsyncIterator[Any]) -> list[Read]:
        """Return outputs with their verdicts, or one that needs none; nothing at the end.

        Raises:
            Exception: ``start()`` has raised it, after the outputs that were returned before.
        """
        if self._reader is None:
            async for output in starts:
                self._add(output)
                break
            if not self._read or self._read[0][1] is None:
                return self._take()
        reader = self._reader or self._start_reader(starts)
        await asyncio.sleep(0)  # it has read all that needed no waiting
        if not self._read and not reader.done():
            self._has_read.clear()
            await self._has_read.wait()
        found = self._take()
        if reader.done() and not (found and reader.exception()):
            self._reader = None
            reader.result()
        if self._outputs.is_closed:
            return []  # nobody would give the claims back
        lookups = {one.key: one for _, one in reversed(found) if one is not None}
        asked = [one for one in lookups.values() if not one.is_duplicate]
        looking = self._lookups.look_up(asked) if asked else None
        if self._reader is None and len(found) >= BATCH:  # more are read while these are looked up
            self._start_reader(starts)
        if looking is not None:
            await looking
        # Equal requests share the lookup of the first.
        return [(output, one and lookups[one.key]) for output, one in found]

    def _start_reader(self, starts: AsyncIterator[Any]) -> "asyncio.Task[None]":
        self._reader = asyncio.ensure_future(self._read_ahead(starts))
        self._reader.add_done_callback(lambda _: self._has_read.set())
        return self._reader

    async def _read_ahead(self, starts: AsyncIterator[Any]) -> None:
        async for output in starts:
            self._add(output)
            self._has_read.set()
            if len(self._read) >= BATCH:
                return

    def _take(self) -> list[Read]:
        taken, self._read = self._read, []
        return taken

    def _add(self, output: Any) -> None:
        lookup = None
        if isinstance(output, Request):
            if self._identity.is_plain_start(output):
                self.plain, self.mark = self.plain + 1, min(self.mark, crc32(output.url.encode()))
            with suppress(Exception):  # the scheduler gets the same
                lookup = self._lookups.prepare(output)
            if lookup and not lookup.is_duplicate:
                if self._outputs.will_be_scheduled(output):
                    self._lookups.claim_of(lookup)  # now, because others are being looked up
                else:
                    lookup = None
        self._read.append((output, lookup))
