"""Whether the server is up: one state machine for both threads, and what a crawl does about it.

UP until a call fails, in either thread; then DOWN, until the background thread has reached the
server and written what was missed. Each change begins an *epoch*. A server that was restarted, or
replaced by a replica, may have lost its last writes: pages that began in an earlier epoch are
crawled again.
"""

import threading
from collections.abc import Callable, Sequence

from scrapy_bloom.bloom.errors import BloomError
from scrapy_bloom.crawl.engine_hooks import EngineAdapter
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.crawl.stats import Report
from scrapy_bloom.settings import CLOSE

#: Reason with which the spider is closed under BLOOM_ON_REDIS_ERROR = "close".
CLOSED_WITHOUT_SERVER = "bloom_redis_unavailable"
#: Requests recorded in this process while there is no server; beyond, the crawl is paused.
MAX_OFFLINE = 500_000
#: Seconds between attempts to reach the server: the first one, and at most.
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 0.1, 5.0
#: Seconds of uptime after which the intervals between attempts begin small again.
RECOVERED_AFTER_SECONDS = 10.0

_POLICIES = {
    True: "The spider is closed, unless the server is back at once (BLOOM_ON_REDIS_ERROR)",
    False: "Until it is back, this process remembers by itself what it has seen",
}


class ServerState:
    """UP or DOWN, and the epoch. Both threads may call it.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._is_down = False
        #: Outages, and restarts without one, since the crawl began.
        self.epoch = 0
        #: The epoch that began with the last restart: pages of earlier ones are crawled again.
        self.restarted = 0
        self._server_id = ""
        #: Failed attempts in a row, and when the server was last reached.
        self._failures, self._reached = 0, float("-inf")

    @property
    def is_down(self) -> bool:
        """Whether the server failed a call and was not reached since."""
        return self._is_down

    def fail(self) -> int:
        """Begin an outage, unless there is one: both threads may notice it; return the epoch."""
        with self._lock:
            self.epoch += not self._is_down
            self._is_down = True
            return self.epoch

    def recover(self) -> None:
        """End the outage."""
        with self._lock:
            self._is_down = False
        self._reached = self._clock()

    def identify(self, server_id: str) -> bool:
        """Note which process the server is; return whether it is another one than before."""
        is_other = bool(self._server_id) and server_id != self._server_id
        self._server_id = server_id
        if is_other:
            with self._lock:
                self.epoch += not self._is_down
                self.restarted = self.epoch
        return is_other

    def next_retry(self) -> float:
        """Note a failed attempt; return the seconds until the next one."""
        if self._clock() - self._reached > RECOVERED_AFTER_SECONDS:
            self._failures, self._reached = 0, float("inf")
        self._failures += 1
        return min(LAST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(self._failures, 10))


class Failover:
    """What the crawl does about the server's state, in the crawl's thread.

    Args:
        engine: is paused, or closes the spider.
        report: counts and warns.
        on_redis_error: the policy, BLOOM_ON_REDIS_ERROR.
    """

    def __init__(self, engine: EngineAdapter, report: Report, on_redis_error: str) -> None:
        self._engine, self._report = engine, report
        self._closes = on_redis_error == CLOSE
        #: Whether lookups use the filters.
        self.is_up = True
        self._is_paused = False
        #: Whether the spider is being closed for want of a server.
        self.is_closing = False

    def failed(self, error: BloomError) -> None:
        """Go on without the server."""
        if self.is_up:
            self.is_up = False
            self._report.server_failed(error, _POLICIES[self._closes])

    def missing(self, error: BloomError) -> None:
        """Log why the server cannot be reached; close the spider if that is the policy."""
        self._report.server_missing(error)
        if self._closes and not self.is_closing:
            self.is_closing = True
            self._engine.close_spider(CLOSED_WITHOUT_SERVER)

    def back(self, replayed: int) -> None:
        """Use the server again."""
        self.is_up = True
        self._report.server_back(replayed)
        if self._is_paused:
            self._is_paused = False
            self._engine.unpause()

    def limit(self, backlog: int) -> None:
        """Pause the crawl if this many writes wait for the server."""
        if backlog >= MAX_OFFLINE and not self._is_paused:
            self._is_paused = True
            self._report.paused(MAX_OFFLINE)
            self._engine.pause()
