"""The surroundings of a ``WriteBehind``: a server in memory, a log of events, a periodic task."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from scrapy_bloom.bloom.errors import BloomError, ServerFullError
from scrapy_bloom.bloom.protocol.cached_ring import Verdict
from scrapy_bloom.bloom.protocol.scripts import Acknowledged
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.crawl.jobs import Job, JobKind
from scrapy_bloom.crawl.write_behind import WriteBehind
from support.polling import PATIENCE

#: Seconds that a writer gets to stop.
TIMEOUT = 0.5


class FakeServer:
    """Notes the operations on it, or fails with an error."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[bytes]]] = []
        self.error: Exception | None = None
        #: Whether it is out of memory until something is released.
        self.is_full = False
        #: Connections that are open, and attempts to make one.
        self.open = self.attempts = 0
        self.on_call: Callable[[], object] = int

    def filters(self) -> Filters:
        self.open += 1
        blooms: Any = {name: FakeBloom(self, name) for name in ("default", "daily")}
        connection: Any = self
        return Filters(blooms, connection)

    def answer(self) -> None:
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.open -= 1

    def items(self, kind: str, window: str = "default") -> list[bytes]:
        """Return the items of all operations of a kind."""
        return [item for name, items in self.calls for item in items if name == f"{window} {kind}"]

    def operations(self) -> list[tuple[str, bytes]]:
        """Return all operations, item by item."""
        return [(name, item) for name, items in self.calls for item in items]


class FakeBloom:
    """A filter on it."""

    def __init__(self, server: FakeServer, window: str) -> None:
        self._server, self._window = server, window
        self.round_trips = 0

    def open(self) -> None:
        self._server.attempts += 1
        self._server.answer()

    def server_id(self) -> str:
        self._server.answer()
        return "the same"

    def run(self, operation: Callable[[str], tuple[str, Sequence[bytes], str]]) -> list[Verdict]:
        self.round_trips += 1
        self._server.answer()
        kind, items, _server = operation(self._window)
        if self._server.is_full and kind == "claim":
            raise ServerFullError("it is out of memory")
        self._server.is_full &= kind not in ("release", "confirm")
        self._server.calls.append((f"{self._window} {kind}", list(items)))
        self._server.on_call()
        return [Verdict.NEW] * len(items)


class EventLog:
    """Receives the events of a writer; ``pump`` is the event loop."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self.received: list[str] = []
        self.late: list[bytes] = []
        self.filters: list[Filters] = []

    def server_failed(self, error: BloomError, epoch: int) -> None:
        self.received.append(f"failed: {error}")

    def server_missing(self, error: BloomError) -> None:
        self.received.append(f"missing: {error}")

    def server_back(self, filters: Filters) -> None:
        self.received.append("back")
        self.filters.append(filters)

    def written(self, jobs: Sequence[Job], unrecorded: Sequence[bytes]) -> None:
        self.late += [job.item for job in jobs]

    def server_restarted(self, epoch: int) -> None:
        self.received.append(f"restarted: {epoch}")

    def repeated(self, jobs: Sequence[Job]) -> None:
        raise AssertionError

    def server_unsteady(self) -> None:
        self.received.append("unsteady")

    def unreplicated(self, pages: int, acknowledged: Acknowledged) -> None:
        self.received.append(f"unreplicated: {pages} {acknowledged.replicas}")

    def count(self, word: str) -> int:
        """Return how many events begin with a word."""
        return sum(event.startswith(word) for event in self.received)

    def pump(self, condition: Callable[[], object]) -> None:
        """Run what the writer has scheduled, until a condition holds."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"not within {PATIENCE} s: {self.received}"
            with suppress(Empty):
                self.queue.get(timeout=0.01)()

    def close(self) -> None:
        """Run what is left, and close the filters that were received."""
        while not self.queue.empty():
            self.queue.get()()
        while self.filters:
            self.filters.pop().close()


class FakeTask:
    """A periodic task that notes its calls, and may fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[str] = []
        self.error = error

    def run(self, filters: Filters) -> float:
        self.calls.append("run")
        if self.error is not None:
            raise self.error
        return 3600.0

    def recovered(self) -> None:
        self.calls.append("recovered")

    def end(self, filters: Filters) -> None:
        self.calls.append("end")


#: Makes a writer, with the arguments of ``WriteBehind`` after the first three.
MakeWriter = Callable[..., WriteBehind]


def items(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def put(
    writer: WriteBehind, kind: JobKind, names: Sequence[bytes], window: str = "default"
) -> None:
    for name in names:
        writer.put(Job(kind, window, name))
