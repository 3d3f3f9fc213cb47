"""Whose turn it is to look at all claims: workers that look for the same claims share the looks."""

from functools import partial
from hashlib import blake2b

from scrapy_bloom.bloom.protocol import worker_protocol
from scrapy_bloom.bloom.protocol.worker_protocol import Turn
from scrapy_bloom.crawl.claims import workers
from scrapy_bloom.crawl.claims.workers import Worker
from scrapy_bloom.crawl.filters import Filters


class LookTurns:
    """Takes turns with the other workers of a spider, on the server.

    Args:
        me: this worker.
        spider: name of its spider.
    """

    def __init__(self, me: Worker, spider: str) -> None:
        self._me, self._spider = me, spider
        #: When this worker's last look began, in Unix milliseconds on the server.
        self._begun = 0
        #: A look that began after this moment will do; 0 for none that has begun yet.
        self._since = 0

    def demand_new(self) -> None:
        """From now on, no look will do that has begun already."""
        self._since = 0

    def take(self, filters: Filters, pause: float, *, clean: bool) -> Turn:
        """Return whether it is this worker's turn, or another one has looked.

        Args:
            filters: the filters.
            pause: seconds between the beginnings of two looks.
            clean: whether only a look will do that has found nothing.
        """
        begin = partial(worker_protocol.begin_look, group=self._group(filters), since=self._since)
        turn = filters.default.run(partial(begin, pause=pause, clean=clean))
        if turn.is_mine:
            self._begun, self._since = turn.now, turn.now - 1
        self._since = self._since or turn.now
        return turn

    def end(self, filters: Filters, *, clean: bool) -> None:
        """Note that this worker's look has ended, and whether it has found nothing."""
        end = partial(worker_protocol.end_look, group=self._group(filters), begun=self._begun)
        filters.default.run(partial(end, clean=clean))

    def _group(self, filters: Filters) -> str:
        """Return what workers have in common that look for the same claims."""
        keys = sorted(bloom.key for bloom in filters.by_window.values())
        common = "\0".join((self._me.shared_queue, *keys)).encode()
        return workers.tag(self._spider) + blake2b(common, digest_size=8).hexdigest()
