"""Shares the work, because a busy worker gives queued requests to idle ones of the same spider.

It takes them out of its own queue, makes their claims the group's, and lists them in a share for
each idle worker, which makes the claims its own and puts the requests into its queue. A share that
is lost with its worker is found by the scan that each worker begins before it ends.
"""

from scrapy import Request

from scrapy_bloom.bloom.protocol.claims import StoredClaim
from scrapy_bloom.bloom.protocol.session import Key
from scrapy_bloom.crawl.context import Context
from scrapy_bloom.crawl.pages import Pages

#: Requests that are given away at a time.
MAX_GIVEN = 256


class Sharing:
    """Gives and receives requests.

    Args:
        context: the objects that all parts use.
        pages: know which claims a queued request has.

    Attributes:
        is_on: whether this worker shares its work.
    """

    def __init__(self, context: Context, pages: Pages) -> None:
        self._server, self._claims, self._me = context.server, context.claims, context.me
        self._engine, self._local, self._report = context.engine, context.local, context.report
        self._pages = pages
        self.is_on = context.me.group != "-"

    async def give(self, idle: int) -> None:
        """Give requests to so many idle workers, if they have received the last ones."""
        spare = min(self._engine.spare(), MAX_GIVEN)
        if not idle or not spare:
            return
        if await self._server.run(self._claims.count_shares(self._me.group)):
            return
        given, kept = dict[Key, Request](), list[Request]()
        for request in self._engine.take_out(spare):
            key = self._pages.claim_to_give(request)
            if key is None or key in given:
                kept.append(request)
            else:
                given[key] = request
        freed = set[Key]()
        try:  # a claim that is not written yet, or that the server has lost, stays here
            give = self._claims.give([*given], self._me.id, self._me.group, idle)
            freed = await self._server.run(give)
        finally:
            kept += [request for key, request in given.items() if key not in freed]
            for request in reversed(kept):
                self._pages.put_back(request, self._engine.put_back)
            self._engine.look()
        for key in freed:  # it may be new again
            self._local.forget(key)
        if freed:
            self._report.count("given", count=len(freed))

    async def receive(self) -> dict[int, list[StoredClaim]]:
        """Return the claims of a share, by blocks."""
        if self._engine.is_closing:
            return {}
        return await self._server.run(self._claims.receive(self._me.group))
