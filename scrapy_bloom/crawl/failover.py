"""Outages: a crawl goes on or closes without the server, and uses it again.

Of a cluster, only the blocks on a node that failed are without it.
"""

from collections.abc import Sequence

from scrapy_bloom.bloom.errors import BloomError, slots_of
from scrapy_bloom.bloom.protocol.scripts import Acknowledged
from scrapy_bloom.crawl.context import Context
from scrapy_bloom.crawl.jobs import REPLAYED, Job, JobKind
from scrapy_bloom.crawl.local_state import LocalState
from scrapy_bloom.crawl.server import Server, Watcher
from scrapy_bloom.settings import CLOSE

#: Reason with which the spider is closed under BLOOM_ON_REDIS_ERROR = "close".
CLOSED_WITHOUT_SERVER = "bloom_redis_unavailable"
#: Writes that wait for the server at most; beyond, the crawl is paused.
MAX_OFFLINE = 500_000

_POLICIES = {
    True: "The spider is closed, unless the server is back at once (BLOOM_ON_REDIS_ERROR)",
    False: "Until it is back, this process keeps the URLs that it has seen",
}
#: What the log adds if a part of a cluster has failed.
_OTHER_NODES = ", as far as their blocks are on that node"


class Failover(Watcher):
    """Does what an outage, or a restart of the server, asks for.

    Args:
        context: what all parts use.
        server: is watched.
        local: what this process knows.
    """

    def __init__(self, context: Context, server: Server, local: LocalState) -> None:
        self._engine, self._report = context.engine, context.report
        self._server, self._local = server, local
        self._closes = context.settings.on_redis_error == CLOSE
        #: Whether the spider is being closed because the server is down.
        self.is_closing = False
        #: Whether the crawl has ended.
        self.is_over = False
        self._is_paused = False
        #: Writes replayed since the outage began.
        self._replayed = 0
        server.watch(self)

    def limit(self, backlog: int) -> None:
        """Pause the crawl if so many writes wait for the server."""
        if backlog >= MAX_OFFLINE and not self._is_paused:
            self._is_paused = True
            self._report.paused(MAX_OFFLINE)
            self._engine.pause()

    def failed(self, error: BloomError, *, is_first: bool) -> None:
        """Go on without the server: what is new from now on is recorded here."""
        if is_first:
            self._replayed = 0
            part = _OTHER_NODES if slots_of(error) and not self._closes else ""
            self._report.server_failed(error, f"{_POLICIES[self._closes]}{part}")

    def missing(self, error: BloomError) -> None:
        """Log why the server cannot be reached; close the spider if that is the policy."""
        self._report.server_missing(error)
        if self._closes and not self.is_closing and not self.is_over:
            self.is_closing = True
            self._engine.close_spider(CLOSED_WITHOUT_SERVER)

    def back(self) -> None:
        """Use the server again."""
        for window, bloom in self._server.filters.by_window.items():
            self._local.connected(window, bloom.session.now)
        self._local.server_is_used()
        self._report.server_back(self._server.filters.connection.label, self._replayed)
        if self._is_paused:
            self._is_paused = False
            self._engine.unpause()

    def written(self, jobs: Sequence[Job], unrecorded: Sequence[bytes]) -> None:
        """Forget here what a filter has recorded; keep what it has no room for."""
        if jobs[0].kind in REPLAYED:
            self._report.count("recorded_late", count=len(jobs))
            self._replayed += len(jobs)
        keys = [(job.window, job.item) for job in jobs]
        self._local.recorded(keys, unrecorded, is_up=self._server.is_up)
        if unrecorded:
            self._report.count("unrecorded", jobs[0].window, count=len(unrecorded))

    def server_restarted(self) -> None:
        """Look up again what the server may have lost."""
        self._local.clear()

    def server_unsteady(self) -> None:
        """Warn that restarts are not noticed any more."""
        self._report.restarts_unnoticed(
            "names another process each time (run_id, in INFO server), as a proxy in front of "
            "several servers does"
        )

    def unreplicated(self, pages: int, acknowledged: Acknowledged) -> None:
        """Count pages whose links a primary may lose together with a worker."""
        self._report.unreplicated(pages, acknowledged)

    def repeated(self, jobs: Sequence[Job]) -> None:
        """Crawl pages again, of whose links the server may have lost the claims."""
        self._report.repeated(len(jobs))
        for job in jobs:
            self._local.discard((job.window, job.item))
            if job.kind is JobKind.DONE:
                self._local.to_repeat.add((job.window, job.item))
