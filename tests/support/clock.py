"""A real server whose clock the tests move: days pass in a millisecond, forwards and backwards.

A small library, ``clock.c``, is compiled on the spot and preloaded into the server. Its wall clock
shows a number in a file that both sides map into memory, so that a move is one store. (libfaketime
cannot be used: preloaded into a server that is linked with jemalloc, such as Debian's, it allocates
memory while the allocator asks it for the time, and the server hangs.)
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

#: Seconds by which the time that it shows may differ from the one that it was set to.
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
    """A server whose wall clock is ours: it stands still between two moves.

    What goes by the wall clock moves with it: ``TIME``, keys that expire, timeouts of blocking
    commands, of replication and of the cluster's bus. The tests' own ``time.time()`` does not.
    """

    def __init__(self, binary: str, *options: str) -> None:
        # The allocator's thread sleeps until a moment on the wall clock: moved back, for ever.
        super().__init__(binary, "--jemalloc-bg-thread", "no", *options)

    def start(self) -> None:
        """Start the process, or start it again: the clock shows what it was moved to."""
        file = self.directory / "moved"
        if not file.exists():
            file.write_bytes(time.time_ns().to_bytes(8, sys.byteorder))
        with file.open("r+b") as opened:
            # Through ctypes a change is a single store: the server never reads half of one.
            self._nanoseconds = ctypes.c_int64.from_buffer(mmap.mmap(opened.fileno(), 8))
        preload = [str(compile_library(self.directory)), os.environ.get("LD_PRELOAD", "")]
        self.env["LD_PRELOAD"] = ":".join(filter(None, preload))
        self.env["MOVED_CLOCK"] = str(file)
        super().start()

    def set_time(self, when: datetime | float) -> None:
        """Set the clock to a moment: a datetime with a time zone, or seconds since 1970 (UTC)."""
        self.freeze_at(when.timestamp() if isinstance(when, datetime) else when, self.now)

    def move(self, seconds: float) -> None:
        """Move the clock forwards, or backwards by a negative number."""
        self.set_time(self._nanoseconds.value / 1e9 + seconds)

    def now(self) -> float:
        """Return the server's time."""
        with self.client() as client:
            seconds, microseconds = client.time()
        return float(seconds + microseconds / 1e6)

    def freeze_at(self, seconds: float, shown: Callable[[], float]) -> None:
        """Set the clock to a moment; what it shows is read from a connection that is open."""
        self._nanoseconds.value = round(seconds * 1e9)
        # Valkey 9 answers with a time that it noted a moment ago.
        while abs(shown() - seconds) >= EXACTNESS:
            pass
