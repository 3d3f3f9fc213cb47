"""Whether this thread may make connections.

Resolving a host name has no time-out. So a crawl's thread leaves connecting to a background thread.
"""

import threading


class _ThisThread(threading.local):
    may_connect = True


this_thread = _ThisThread()


class connecting:  # noqa: N801 - it reads as a statement: with connecting(allowed=False):
    """Allow or forbid connections in a ``with`` block; an outer block that forbids them counts."""

    __slots__ = ("_allowed", "_outer")

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed

    def __enter__(self) -> None:
        self._outer = this_thread.may_connect
        this_thread.may_connect = self._outer and self._allowed

    def __exit__(self, *error: object) -> None:
        this_thread.may_connect = self._outer
