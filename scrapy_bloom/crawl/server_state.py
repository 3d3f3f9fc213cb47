"""Whether the server is up: one state machine for both threads.

UP until a call fails, in either thread; then DOWN, until the background thread has reached the
server and written what was missed. Each change begins an *epoch*. A server that was restarted, or
replaced by a replica, may have lost its last writes: pages that began in an earlier epoch are
crawled again.

Of a cluster, a part may be DOWN. Then lookups go on in the other parts, so that each failure, and
each restart that is noticed, begins an epoch: claims on links were made after the first one.
"""

import threading
from collections.abc import Callable

#: Seconds between attempts to reach the server: the first one, and at most.
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 0.1, 5.0
#: The same at most, of a cluster.
CLUSTER_RETRY_SECONDS = 0.5
#: Seconds of uptime after which the intervals between attempts begin small again.
RECOVERED_AFTER_SECONDS = 10.0

#: Times that a server may be another process in a row until it is not identified any more.
MAX_REFUSALS = 4


class ServerState:
    """UP or DOWN, and the epoch. Both threads may call it.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._is_down = False
        #: Whether lookups went on after the failure.
        self._is_partial = False
        #: Outages, and restarts without one, since the crawl began.
        self.epoch = 0
        #: The epoch that began with the last restart: pages of earlier ones are crawled again.
        self.restarted = 0
        #: The server's process, or all primaries of a cluster, separated by commas; "" if unknown.
        self.id = ""
        #: Whether it names another process each time: then it is not identified any more.
        self.is_unsteady = False
        #: Times that it was another process, since it confirmed a page.
        self.refusals = 0
        #: Failed attempts in a row, and when the server was last reached.
        self._failures, self._reached = 0, float("-inf")

    @property
    def is_down(self) -> bool:
        """Whether the server failed a call and was not reached since."""
        return self._is_down

    @property
    def is_many(self) -> bool:
        """Whether it is a cluster of several primaries."""
        return "," in self.id

    def fail(self, *, is_partial: bool = False) -> int:
        """Begin an outage, unless there is one: both threads may notice it; return the epoch.

        Args:
            is_partial: whether lookups go on in other parts of a cluster.
        """
        with self._lock:
            self.epoch += not self._is_down or self._is_partial
            self._is_partial |= is_partial
            self._is_down = True
            return self.epoch

    def recover(self) -> None:
        """End the outage."""
        with self._lock:
            self._is_down = self._is_partial = False
        self._reached = self._clock()

    def identify(self, server_id: str) -> bool:
        """Note which process the server is; return whether it is another one than before."""
        if self.is_unsteady:
            return False
        is_other = bool(self.id) and server_id != self.id
        self.id = server_id
        if is_other:
            with self._lock:
                self.epoch += not self._is_down or self._is_partial
                self.restarted = self.epoch
        return is_other

    def refused(self) -> bool:
        """Note that it was another process than before; return whether it is so each time."""
        self.refusals += 1
        if self.refusals == MAX_REFUSALS:
            # A proxy in front of several servers, for instance: INFO is of one, scripts run on all.
            self.id, self.is_unsteady = "", True
        return self.is_unsteady

    def next_retry(self) -> float:
        """Note a failed attempt; return the seconds until the next one."""
        if self._clock() - self._reached > RECOVERED_AFTER_SECONDS:
            self._failures, self._reached = 0, float("inf")
        self._failures += 1
        # Most nodes of a cluster answer: an attempt is short, and a replica takes over soon.
        most = CLUSTER_RETRY_SECONDS if self.is_many else LAST_RETRY_SECONDS
        return min(most, FIRST_RETRY_SECONDS * 2.0 ** min(self._failures, 10))
