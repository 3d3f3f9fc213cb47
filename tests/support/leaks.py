"""What a test leaves running: threads, child processes, servers that have detached themselves."""

import threading
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

from support.nursery import SHARED

PROC = Path("/proc")
#: Threads that a library keeps for the next task.
POOLED = ("ThreadPoolExecutor-", "asyncio_", "PoolThread-")


def threads() -> set[threading.Thread]:
    """Return the threads that should end with what started them."""
    return {
        thread
        for thread in threading.enumerate()
        if (not thread.daemon or thread.name.startswith("scrapy-bloom"))
        and not thread.name.startswith(POOLED)
    }


def children() -> set[int]:
    """Return the ids of child processes, also of those that ended and nobody waited for."""
    found: set[int] = set()
    for task in (PROC / "self" / "task").glob("*/children"):
        try:
            found |= {int(pid) for pid in task.read_text().split()}
        except OSError:  # the thread has ended
            continue
    return found - {nursery.pid for nursery in SHARED} - _of_multiprocessing()


def _of_multiprocessing() -> set[int]:
    """Return the ids of the processes that multiprocessing keeps for all others to come."""
    kept = (
        getattr(resource_tracker, "_resource_tracker")._pid,  # noqa: B009 - typeshed knows none
        getattr(forkserver, "_forkserver")._forkserver_pid,  # noqa: B009
    )
    return {pid for pid in kept if pid is not None}


def describe(pid: int) -> str:
    """Return a process as a text for errors."""
    try:
        command = (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        command = ""
    return f"{pid}: {command or 'has ended, and its parent did not wait for it'}"


def servers_in(directory: Path) -> set[int]:
    """Return the ids of server processes that run in a directory or below, whoever started them."""
    found = set()
    for process in PROC.glob("[0-9]*"):
        try:
            name = (process / "comm").read_text()
            if "-server" in name and (process / "cwd").readlink().is_relative_to(directory):
                found.add(int(process.name))
        except OSError:  # it has ended, or is not ours
            continue
    return found
