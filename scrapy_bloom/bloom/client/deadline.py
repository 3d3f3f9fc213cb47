"""A deadline for a whole operation, and sockets that keep it.

What counts is the time that a server keeps a thread waiting. What passes because the thread itself
cannot run, on a busy machine or while another thread holds the GIL, is not the server's silence.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: Seconds that a step gets which can no longer be refused.
MIN_TIMEOUT_SECONDS = 0.001
#: A socket waits in steps, of which so many make up a time-out: what a server has not sent after a
#: step, it is silent for. What takes longer than a step and is there then came in time, and this
#: thread was late.
STEPS = 20
#: Seconds that a step takes at most.
MAX_STEP_SECONDS = 0.1
#: What an error says when the time is used up.
TOO_LATE = "timed out: the operation has used up its time"


class _Here(threading.local):
    """The limits of this thread.

    Attributes:
        limits: how far ``waited`` may go, and whether connections may be made.
        waited: seconds that the thread has waited for servers, in all.
    """

    limits: tuple[float | None, bool] = (None, True)
    waited = 0.0


here = _Here()


class within:  # noqa: N801 - it reads as a statement: with within(2.0):
    """Limit the seconds that a ``with`` block waits for servers in all, in this thread.

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
        self._outer = end, connect = here.limits
        if self._seconds is not None:
            own = here.waited + self._seconds
            end = own if end is None or own < end else end
        here.limits = end, connect and self._connect

    def __exit__(self, *error: object) -> None:
        here.limits = self._outer


def remaining() -> float | None:
    """Return the seconds that are left, more than 0; None where there is no deadline.

    Raises:
        TimeoutError: none are left.
    """
    end = here.limits[0]
    if end is None:
        return None
    left = end - here.waited
    if left <= 0:
        raise TimeoutError(TOO_LATE)
    return left


def at_most(seconds: float, *, but: float = 0.0) -> float:
    """Return a time-out for a step that must not raise here: what is left, at least a moment.

    Args:
        seconds: the time-out where there is no deadline, or a later one.
        but: seconds that have been waited and are not counted yet.
    """
    end = here.limits[0]
    left = seconds if end is None else min(seconds, end - here.waited)
    return max(left - but, MIN_TIMEOUT_SECONDS)


def spend(seconds: float) -> None:
    """Count time that this thread waited for a server."""
    here.waited += seconds


@contextmanager
def waiting() -> Iterator[None]:
    """Count all the time that a block takes as waiting."""
    begin = time.monotonic()
    try:
        yield
    finally:
        spend(time.monotonic() - begin)


def may_connect() -> bool:
    """Return whether new connections may be made here."""
    return here.limits[1]


class BoundedSocket:
    """A connected socket, plain or TLS, that waits no longer than the deadline allows.

    A server that sends a byte now and then restarts a socket's own time-out with each of them, so
    what counts is what all calls have waited. A time-out of 0, which redis-py sets while it looks
    whether there is anything to read, stays; its others do not count.

    Args:
        sock: the socket.
        timeout: seconds a call may take where there is no deadline.
    """

    def __init__(self, sock: Any, timeout: float) -> None:
        self._sock = sock
        self._timeout = timeout
        self._longest_step = min(timeout / STEPS, MAX_STEP_SECONDS)
        self.settimeout(timeout)
        # redis-py looks at both before each command, which __getattr__ would make slow.
        self.fileno = sock.fileno
        self.pending = getattr(sock, "pending", int)  # only TLS sockets have bytes pending

    def settimeout(self, seconds: float | None) -> None:
        """Set the time-out; what counts is whether it is 0."""
        #: The time-out that the socket has.
        self._step = 0.0 if seconds == 0 else self._longest_step
        self._sock.settimeout(self._step)

    def recv(self, *args: int) -> bytes:
        """Receive as ``socket.recv`` does."""
        received: bytes = self._wait(self._sock.recv, *args)
        return received

    def recv_into(self, buffer: bytearray) -> int:
        """Receive as ``socket.recv_into`` does."""
        count: int = self._wait(self._sock.recv_into, buffer)
        return count

    def sendall(self, data: bytes) -> None:
        """Send as ``socket.sendall`` does, which with TLS gives each piece the whole time-out."""
        sent = self._wait(self._sock.send, data)
        while sent < len(data):
            sent += self._wait(self._sock.send, memoryview(data)[sent:])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def _wait(self, call: Callable[..., Any], *args: Any) -> Any:
        """Make a call, in steps; return its result.

        Raises:
            TimeoutError: the time is used up.
        """
        if not self._step:
            return call(*args)
        end = here.limits[0]
        if end is None:
            end = here.waited + self._timeout
        while (left := end - here.waited) > 0:
            if self._step != self._longest_step or left < self._step:
                # It costs a system call, and only the last step is a short one.
                self._step = min(left, self._longest_step)
                self._sock.settimeout(self._step)
            begin = time.monotonic()
            try:
                result = call(*args)
            except TimeoutError:
                # The kernel looks again when a time-out is over: there was nothing.
                here.waited += self._step
            else:
                took = time.monotonic() - begin
                if took < self._step:
                    here.waited += took
                return result
        raise TimeoutError(TOO_LATE)
