"""Shares the work, because a busy worker gives queued requests to idle ones of the same spider.

It makes their claims the group's, and lists them in a share for each idle worker, which makes the
claims its own and puts the requests into its queue. The giver drops its own when its queue hands
them out. A share that is lost with its worker is found by the last scan of each other worker.
"""

from scrapy_bloom.bloom.protocol.claims import StoredClaim
from scrapy_bloom.bloom.protocol.session import Key
from scrapy_bloom.bloom.protocol.workers import Workers
from scrapy_bloom.crawl.context import Context
from scrapy_bloom.crawl.offers import Offers

#: Requests that are given away at a time.
MAX_GIVEN = 256


class Sharing:
    """Gives and receives requests.

    Args:
        context: the objects that all parts use.
        offers: know which claims a queued request has.

    Attributes:
        is_on: whether this worker shares its work.
    """

    def __init__(self, context: Context, offers: Offers) -> None:
        self._server, self._me = context.server, context.me
        self._workers = Workers(context.claims)
        self._engine, self._local, self._monitor = context.engine, context.local, context.monitor
        self._offers = offers
        self.is_on = bool(context.me.group)

    async def give(self, idle: int) -> None:
        """Give requests to so many idle workers, if they have received the last ones."""
        queued = len(self._offers.queue)
        is_enough = queued > self._engine.downloads_at_a_time
        spare = queued * idle // (idle + 1) if is_enough else 0  # each gets as many as stay here
        if not spare or self._engine.is_closing:
            return
        if await self._server.run(self._workers.count_shares(self._me.group)):
            return
        given, freed = self._offers.queue.give(min(spare, MAX_GIVEN)), set[Key]()
        if not given:
            return
        try:  # a claim that is not written yet, or that the server has lost, stays here
            give = self._workers.give([*given], self._me.id, self._me.group, idle)
            freed = await self._server.run(give)
        finally:
            for key, request in given.items():
                if key not in freed:
                    self._offers.take_back(request, self._engine.scheduler.enqueue_request)
            self._engine.look()
        for key in freed:  # it may be new again
            self._local.forget(key)
        if freed:
            self._monitor.count("given", count=len(freed))

    async def receive(self) -> dict[int, list[StoredClaim]]:
        """Return the claims of a share, by blocks."""
        if self._engine.is_closing:
            return {}
        return await self._server.run(self._workers.receive(self._me.group))
