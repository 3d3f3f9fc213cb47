"""Knows whether the server is up, when to try it again, and what it may have lost. No I/O.

A server that was restarted, or replaced by a replica, may have lost its last writes. Each outage
starts an *epoch*; pages that started in one before the last restart are crawled again.
"""

import time
from collections.abc import Callable
from math import inf

#: Seconds between attempts to reach the server: the first one, and at most.
FIRST_RETRY, LAST_RETRY = 0.1, 5.0


class Outage:
    """The outages of a crawl's server.

    Attributes:
        began, ended: are called when an outage begins, and when it's over.
        epoch: outages, and losses without one, since the crawl began.
        restarted, lost: the epochs that began with the last restart, and the last loss of data.
        retry_at: when the server may be tried again.
        failures: failed attempts to reach it in this outage.
        process: the server's process, or all primaries of a cluster; "" if that is hidden.
    """

    def __init__(self) -> None:
        self.began: list[Callable[[Exception], object]] = []
        self.ended: list[Callable[[], object]] = []
        self.epoch = self.restarted = self.lost = 0
        self.retry_at, self.failures, self.process = -inf, 0, ""
        #: The errors of this outage; none if the server is up.
        self._errors = set[str]()
        #: Whether anything may have been written in this outage.
        self._has_written = False
        #: Until when an outage follows so soon on the last one that the pauses grow, and how many.
        self._calm_at, self._relapses = -inf, 0

    @property
    def is_up(self) -> bool:
        """Whether there is no outage."""
        return not self._errors

    def fail(self, error: Exception) -> None:
        """Note that a call failed: an outage begins, unless there is one."""
        if self._errors:
            return
        self._errors, self._has_written, self.failures = {str(error)}, False, 0
        self.epoch += 1
        self._relapses = self._relapses + 1 if time.monotonic() < self._calm_at else 0
        self._pause(self._relapses)
        for call in self.began:
            call(error)

    def miss(self, error: Exception) -> bool:
        """Note that an attempt to end the outage failed; return whether the error is another one.

        Some errors show only then, for example a wrong password.
        """
        self.failures += 1
        self._pause(self.failures)
        is_new = str(error) not in self._errors
        self._errors.add(str(error))
        return is_new

    def _pause(self, failures: int) -> None:
        pause = min(LAST_RETRY, FIRST_RETRY * 2 ** min(failures, 10))
        self.retry_at = time.monotonic() + pause

    def found(self, process: str) -> bool:
        """Note which process the server is; return whether it may be another, which lost writes."""
        is_another = not self.is_up and (process != self.process or not process)
        if is_another:
            # Ops that were queued in this outage may have been written to the process before.
            self.epoch += self._has_written
            self.restarted = self.lost = self.epoch
        self.process = process
        return is_another

    def writes(self) -> None:
        """Note that ops are about to be written, although the outage isn't over."""
        self._has_written = True

    def lose(self) -> None:
        """Note that the server has lost a part of the filter, and perhaps pending requests."""
        self.epoch += 1
        self.lost = self.epoch

    def end(self) -> None:
        """Note that the server is up again."""
        self._errors = set()
        self._calm_at = time.monotonic() + LAST_RETRY
        for call in self.ended:
            call()
