"""One deadline for all that an operation waits for, and sockets that keep it."""

import threading
import time
from typing import Any

#: Seconds that nobody minds: a socket's time-out may be later than the deadline by so much, and a
#: step that can no longer be refused gets them.
MOMENT = 0.001
#: What an error says then.
TOO_LATE = "timed out: the operation has used up its time"


class _Here(threading.local):
    """What holds in this thread: when it ends, and whether connections may be made."""

    limits: tuple[float | None, bool] = (None, True)


_here = _Here()


class within:  # noqa: N801 - it reads as a statement: with within(2.0):
    """Give what is done in a ``with`` block so many seconds in all, in this thread.

    Blocks may be nested: the earliest end counts, and an inner block may not allow what an outer
    one forbids. One object is for one block.

    Args:
        seconds: the time from the beginning of the block on, None to set no end.
        connect: whether new connections may be made.
    """

    __slots__ = ("_connect", "_outer", "_seconds")

    def __init__(self, seconds: float | None, *, connect: bool = True) -> None:
        self._seconds = seconds
        self._connect = connect

    def __enter__(self) -> None:
        self._outer = end, connect = _here.limits
        if self._seconds is not None:
            own = time.monotonic() + self._seconds
            end = own if end is None or own < end else end
        _here.limits = end, connect and self._connect

    def __exit__(self, *error: object) -> None:
        _here.limits = self._outer


def remaining() -> float | None:
    """Return the seconds that are left, more than 0; None where there is no deadline.

    Raises:
        TimeoutError: none are left.
    """
    end = _here.limits[0]
    if end is None:
        return None
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError(TOO_LATE)
    return left


def at_most(seconds: float) -> float:
    """Return a time-out for a step that must not raise here: what is left, at least a moment."""
    try:
        left = remaining()
    except TimeoutError:
        return MOMENT
    return seconds if left is None else min(seconds, max(left, MOMENT))


def may_connect() -> bool:
    """Return whether new connections may be made here."""
    return _here.limits[1]


class BoundedSocket:
    """A connected socket, plain or TLS, that waits no longer than the deadline lets it.

    A server that sends a byte now and then restarts a socket's own time-out with each of them, so
    it is adapted before each call. A time-out of 0, which redis-py sets while it looks whether
    there is anything to read, stays; its others do not count.

    Args:
        sock: the socket.
        timeout: seconds a call may take, also without a deadline.
    """

    def __init__(self, sock: Any, timeout: float) -> None:
        self._sock = sock
        self._timeout = timeout
        self.settimeout(timeout)
        # redis-py looks at both before each command, which __getattr__ would make slow.
        self.fileno = sock.fileno
        self.pending = getattr(sock, "pending", int)  # only TLS sockets have bytes pending

    def settimeout(self, seconds: float) -> None:
        """Set the time-out; what counts is whether it is 0."""
        self._set = seconds
        self._sock.settimeout(seconds)

    def recv(self, *args: int) -> bytes:
        """Receive as ``socket.recv`` does."""
        received: bytes = self._adapted().recv(*args)
        return received

    def recv_into(self, buffer: bytearray) -> int:
        """Receive as ``socket.recv_into`` does."""
        count: int = self._adapted().recv_into(buffer)
        return count

    def sendall(self, data: bytes) -> None:
        """Send as ``socket.sendall`` does, which with TLS gives each piece the whole time-out."""
        sent = self._adapted().send(data)
        while sent < len(data):
            sent += self._adapted().send(memoryview(data)[sent:])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def _adapted(self) -> Any:
        """Return the socket, with a time-out of what is left, and half a moment."""
        if self._set:
            end = _here.limits[0]
            left = self._timeout if end is None else end - time.monotonic()
            # It costs a system call, and nothing where one command follows the other.
            if not left <= self._set <= left + MOMENT:
                self._adapt(left)
        return self._sock

    def _adapt(self, left: float) -> None:
        if left <= 0:
            raise TimeoutError(TOO_LATE)
        self.settimeout(min(left, self._timeout) + MOMENT / 2)
