"""What all parts of a crawl use: its settings and filters, the engine, time and chance."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from scrapy_bloom.bloom.errors import NotReadyError, tagged
from scrapy_bloom.crawl.engine_hooks import EngineAdapter
from scrapy_bloom.crawl.jobs import JobQueue
from scrapy_bloom.crawl.local_state import LocalState
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.crawl.server import Server
from scrapy_bloom.settings import BloomSettings

logger = logging.getLogger(__name__)
T = TypeVar("T")

#: Seconds that a server may take until the filters of a crawl are open, in all.
OPENING_SECONDS = 30.0
#: Seconds after which the log says that the crawl waits for them, and between two attempts.
LOGGED_AFTER_SECONDS, ATTEMPT_SECONDS = 1.0, 0.1


@dataclass(frozen=True, slots=True)
class Runtime:
    """Time and chance.

    Args:
        monotonic: returns seconds that never go back.
        sleep: blocks for some seconds.
        token: returns so many random bytes as hexadecimal text.
    """

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    token: Callable[[int], str] = secrets.token_hex


@dataclass(frozen=True, slots=True)
class Context:
    """What all parts of a crawl use.

    Args:
        settings: the crawl's.
        engine: Scrapy's engine, with the spider.
        report: counts and warns.
        runtime: time and chance.
        server: of the filters.
        local: what this process knows.
        jobs: are written later.
    """

    settings: BloomSettings
    engine: EngineAdapter
    report: Report
    runtime: Runtime
    server: Server
    local: LocalState
    jobs: JobQueue = field(default_factory=JobQueue)

    @property
    def clock(self) -> Callable[[], float]:
        """Returns seconds that never go back."""
        return self.runtime.monotonic

    @property
    def token(self) -> Callable[[int], str]:
        """Returns so many random bytes as hexadecimal text."""
        return self.runtime.token


class Opening:
    """Repeats calls while the server does not answer in time, or is loading its data.

    Opening and reading may be repeated: they do the same again. It waits for a server that is slow
    at the start of a crawl, and not for one that refuses.

    Args:
        patience: seconds that all calls may take together before the last attempt.

    Attributes:
        runtime: time and chance of the crawl.
    """

    def __init__(self, patience: float = OPENING_SECONDS) -> None:
        self.runtime, self._patience = Runtime(), patience
        self._begun = self.runtime.monotonic()
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
                waited = self.runtime.monotonic() - self._begun
                if waited >= self._patience:
                    raise
                if waited >= LOGGED_AFTER_SECONDS and not self._is_logged:
                    self._is_logged = True
                    text = tagged("waiting", "Bloom filter: %s. Waiting for it, up to %g s")
                    logger.warning(text, error, self._patience)
            self.runtime.sleep(ATTEMPT_SECONDS)


def has_asyncio() -> bool:
    """Whether an asyncio loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def wait_for(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, or so many seconds; return whether it has happened."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
