"""Repeats what may be repeated while a server is slow, or loading its data."""

import logging
from collections.abc import Callable
from typing import TypeVar

from scrapy_bloom.bloom.errors import NotReadyError, tagged
from scrapy_bloom.crawl.runtime import Runtime

logger = logging.getLogger(__name__)
T = TypeVar("T")

#: Seconds that a server may take until the filters of a crawl are open, in all.
OPENING_SECONDS = 30.0
#: Seconds after which the log says that the crawl waits for them, and between two attempts.
LOGGED_AFTER_SECONDS, ATTEMPT_SECONDS = 1.0, 0.1


class Opening:
    """Repeats calls while the server does not answer in time, or is loading its data.

    Opening and reading may be repeated: they do the same again. It waits for a server that is slow
    at the start of a crawl, and not for one that refuses.

    Args:
        patience: seconds that all calls may take together before the last attempt.
        runtime: time.
    """

    def __init__(
        self, patience: float = OPENING_SECONDS, *, runtime: Runtime | None = None
    ) -> None:
        self._runtime = runtime or Runtime()
        self._begun = self._runtime.monotonic()
        self._patience = patience
        self._is_logged = False

    def run(self, call: Callable[[], T]) -> T:
        """Return what a call returns.

        Raises:
            StorageError: the call has raised it, and it is too late for another attempt.
        """
        while True:
            try:
                return call()
            except NotReadyError as error:
                waited = self._runtime.monotonic() - self._begun
                if waited >= self._patience:
                    raise
                if waited >= LOGGED_AFTER_SECONDS and not self._is_logged:
                    self._is_logged = True
                    text = tagged("waiting", "Bloom filter: %s. Waiting for it, up to %g s")
                    logger.warning(text, error, self._patience)
            self._runtime.sleep(ATTEMPT_SECONDS)
