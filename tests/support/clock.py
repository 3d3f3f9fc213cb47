"""A real server whose clock the tests move: days pass in a millisecond, forwards and backwards.

A small library, ``clock.c``, is compiled on the spot and preloaded into the server. It
adds an offset to its wall clock: a number in a file that both sides map into memory, so that a move
is one store. (libfaketime cannot be used: preloaded into a server that is linked with jemalloc,
such as Debian's, it allocates memory while the allocator asks it for the time, and the server
hangs.)
"""

import ctypes
import mmap
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from support.servers import Server

#: Seconds a server gets to show the time it was set to.
MOVE_TIMEOUT = 10.0
#: Seconds by which its answer may lie outside of the time it took to answer.
TOLERANCE = 0.02
#: The same for a clock that stands still: it may be moved by 20 ms.
EXACTNESS = 0.001
#: What the clock of the ``moved`` fixture shows when a test begins.
MOVED_TO = datetime(2027, 1, 15, 12, tzinfo=UTC)


def why_not() -> str | None:
    """Return why no clock can be moved on this machine, or None where it can."""
    if sys.platform != "linux":
        return "a server's clock can be moved only on Linux"
    if compiler() is None:
        return "no C compiler, with which a server's clock could be moved"
    return None


def compiler() -> str | None:
    return shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc")


def compile_library(directory: Path) -> Path:
    """Return the library for ``LD_PRELOAD``, compiled into the directory unless it is there."""
    library = directory / "clock.so"
    if not library.exists():
        source = Path(__file__).with_suffix(".c")
        options = ("-std=gnu99", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl")
        subprocess.run([str(compiler()), *map(str, options)], check=True)
    return library


class MovedServer(Server):
    """A server whose wall clock is ours. It starts at the real time, and runs on after each move.

    What goes by the wall clock moves with it: ``TIME``, keys that expire, timeouts of blocking
    commands, of replication and of the cluster's bus. The tests' own ``time.time()`` does not.
    """

    def __init__(self, binary: str, *options: str, env: dict[str, str] | None = None) -> None:
        # The allocator's thread sleeps until a moment on the wall clock: moved back, for ever.
        super().__init__(binary, "--jemalloc-bg-thread", "no", *options, env=env)

    def start(self) -> None:
        """Start the process, or start it again: the clock goes on where it was moved to."""
        file = self.directory / "moved"
        if not file.exists():
            file.write_bytes(bytes(8))
        with file.open("r+b") as opened:
            # Through ctypes a change is a single store: the server never reads half of one.
            self._nanoseconds = ctypes.c_int64.from_buffer(mmap.mmap(opened.fileno(), 8))
        preload = [str(compile_library(self.directory)), os.environ.get("LD_PRELOAD", "")]
        self.env["LD_PRELOAD"] = ":".join(filter(None, preload))
        self.env["MOVED_CLOCK"] = str(file)
        super().start()

    def set_time(self, when: datetime | float) -> None:
        """Set the clock to a moment: a datetime with a time zone, or seconds since 1970 (UTC)."""
        if isinstance(when, datetime):
            when = when.timestamp()
        self._set(when)

    def _set(self, seconds: float) -> None:
        self._shift(round((seconds - time.time()) * 1e9))

    def move(self, seconds: float) -> None:
        """Move the clock forwards, or backwards by a negative number."""
        self._shift(self._nanoseconds.value + round(seconds * 1e9))

    def now(self) -> float:
        """Return the server's time."""
        with self.client() as client:
            seconds, microseconds = client.time()
        return float(seconds + microseconds / 1e6)

    def _shift(self, nanoseconds: int) -> None:
        """Put the clock so far from the real one; return when the server goes by it."""
        self._nanoseconds.value = nanoseconds
        deadline = time.monotonic() + MOVE_TIMEOUT
        # Valkey 9 answers with a time that it noted a moment ago.
        while not self._goes_by(nanoseconds / 1e9):
            assert time.monotonic() < deadline, f"the clock does not move from {self.now()}"
            time.sleep(0.0005)

    def _goes_by(self, offset: float) -> bool:
        asked = time.time() + offset
        shown = self.now()
        answered = time.time() + offset
        return asked - TOLERANCE <= shown <= answered + TOLERANCE


class FrozenServer(MovedServer):
    """A server whose wall clock stands still between two moves."""

    def __init__(self, binary: str, *options: str) -> None:
        super().__init__(binary, *options, env={"FROZEN_CLOCK": "1"})

    def _set(self, seconds: float) -> None:
        self._shift(round(seconds * 1e9))

    def freeze_at(self, seconds: float, shown: Callable[[], float]) -> None:
        """Set the clock to a moment; what it shows is read from a connection that is open."""
        self._nanoseconds.value = round(seconds * 1e9)
        while abs(shown() - seconds) >= EXACTNESS:
            pass  # see _shift

    def _goes_by(self, offset: float) -> bool:
        return abs(self.now() - offset) < TOLERANCE
