"""Lock files: the kernel holds them for a process, and releases them on ``kill -9`` too."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scrapy_bloom.bloom.errors import StorageError

#: Seconds between two looks at a lock.
POLL_SECONDS = 0.01


@contextmanager
def held(path: Path, deadline: float) -> Iterator[None]:
    """Hold a lock file exclusively."""
    lock = open_lock(path)
    try:
        while not try_lock(lock):
            if time.monotonic() > deadline:
                raise StorageError(f"another process has been holding {path} for too long")
            time.sleep(POLL_SECONDS)
        try:
            yield
        finally:
            # Unlock, do not only close: a child forked by another thread has a copy of the lock.
            fcntl.flock(lock, fcntl.LOCK_UN)
    finally:
        os.close(lock)


def is_free(path: Path) -> bool:
    """Return whether no process holds a lock file."""
    lock = open_lock(path)
    try:
        free = try_lock(lock)
        if free:
            fcntl.flock(lock, fcntl.LOCK_UN)
        return free
    finally:
        os.close(lock)


def try_lock(lock: int) -> bool:
    """Lock an open file exclusively, unless another process holds it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_lock(path: Path) -> int:
    """Open a lock file, created for its owner only if it is missing."""
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
