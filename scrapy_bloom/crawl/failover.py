"""Outages: a crawl goes on or closes without the server, and uses it again; in its own thread.

Of a cluster, only the blocks on a node that failed are without it.
"""

from collections.abc import Callable, Sequence

from scrapy_bloom.bloom.errors import BloomError, slots_of
from scrapy_bloom.bloom.protocol.scripts import Acknowledged
from scrapy_bloom.crawl.claims.policy import Policy
from scrapy_bloom.crawl.engine_hooks import EngineAdapter
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.crawl.identity import Key
from scrapy_bloom.crawl.jobs import REPLAYED, Job, JobKind
from scrapy_bloom.crawl.local_state import LocalState
from scrapy_bloom.crawl.report import Report
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


class Failover:
    """Receives what happens in the background thread: see ``write_behind.Events``.

    Args:
        engine: is paused, or closes the spider.
        report: counts and warns.
        local: what this process knows.
        on_redis_error: the setting BLOOM_ON_REDIS_ERROR.
        use: is called with the filters that lookups use from now on.
        forget: removes a key from the cache.
    """

    def __init__(
        self,
        engine: EngineAdapter,
        report: Report,
        local: LocalState,
        on_redis_error: str,
        *,
        use: Callable[[Filters], None],
        forget: Callable[[Key], None],
    ) -> None:
        self._engine, self._report, self._local = engine, report, local
        self._closes = on_redis_error == CLOSE
        self._use, self._forget = use, forget
        self.policy: Policy
        #: Whether there is no outage.
        self.is_up = True
        #: In an outage, the hash slots that cannot be used; None for all.
        self._slots: set[int] | None = None
        #: Whether the spider is being closed because the server is down.
        self.is_closing = False
        #: Whether the crawl has ended.
        self.is_over = False
        self._is_paused = False
        #: Writes replayed since the outage began.
        self._replayed = 0

    def limit(self, backlog: int) -> None:
        """Pause the crawl if so many writes wait for the server."""
        if backlog >= MAX_OFFLINE and not self._is_paused:
            self._is_paused = True
            self._report.paused(MAX_OFFLINE)
            self._engine.pause()

    def serves(self, slot: int) -> bool:
        """Whether lookups in a block with this hash slot use the filters."""
        return self.is_up or (self._slots is not None and slot not in self._slots)

    def lose_all(self) -> None:
        """Use no filter until the outage ends."""
        self._slots = None

    # -- events --

    def server_failed(self, error: BloomError, epoch: int) -> None:
        """Go on without the server: what is new from now on is recorded here."""
        self.policy.begin_epoch(epoch)
        slots = slots_of(error)
        if self.is_up:
            self.is_up, self._replayed = False, 0
            self._slots = set()
            part = _OTHER_NODES if slots and not self._closes else ""
            self._report.server_failed(error, f"{_POLICIES[self._closes]}{part}")
        if not slots:
            self.lose_all()
        elif self._slots is not None:
            self._slots |= slots

    def server_missing(self, error: BloomError) -> None:
        """Log why the server cannot be reached; close the spider if that is the policy."""
        self._report.server_missing(error)
        if self._closes and not self.is_closing and not self.is_over:
            self.is_closing = True
            self._engine.close_spider(CLOSED_WITHOUT_SERVER)

    def server_back(self, filters: Filters) -> None:
        """Use the server again, with filters that are connected."""
        if self.is_over:
            filters.close()
            return
        self._use(filters)
        self.is_up = True
        self._local.server_is_used()
        self._report.server_back(filters.connection.label, self._replayed)
        if self._is_paused:
            self._is_paused = False
            self._engine.unpause()

    def written(self, jobs: Sequence[Job], unrecorded: Sequence[bytes]) -> None:
        """Forget here what a filter has recorded; keep what it has no room for."""
        if jobs[0].kind in REPLAYED:
            self._report.count("recorded_late", count=len(jobs))
            self._replayed += len(jobs)
        self._local.recorded([(job.window, job.item) for job in jobs], is_up=self.is_up)
        self._local.keep(unrecorded)
        if unrecorded:
            self._report.count("unrecorded", jobs[0].window, count=len(unrecorded))

    def server_restarted(self, epoch: int) -> None:
        """Look up again what the server may have lost."""
        self._local.clear()
        self.policy.begin_epoch(epoch)

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
            self._forget((job.window, job.item))
            if job.kind is JobKind.DONE:
                self.policy.forget((job.window, job.item))
