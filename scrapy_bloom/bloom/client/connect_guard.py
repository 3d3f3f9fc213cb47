"""Whether this thread may make connections.

Resolving a host name has no time-out. So a crawl's thread leaves connecting to a background thread.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _ThisThread(threading.local):
    may_connect = True


this_thread = _ThisThread()


@contextmanager
def connecting(*, allowed: bool) -> Iterator[None]:
    """Allow or forbid connections in a ``with`` block; an outer block that forbids them counts."""
    outer = this_thread.may_connect
    this_thread.may_connect = outer and allowed
    try:
        yield
    finally:
        this_thread.may_connect = outer
