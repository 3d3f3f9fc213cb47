"""Workers: who has claims, and whether they are alive. No I/O but a look at processes."""

import json
import os
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import blake2b
from math import ceil
from pathlib import Path

from scrapy_bloom.bloom.model.header import in_range

#: Characters of a worker's description at most.
MAX_DESCRIPTION = 2_000
_MAX_PID = 1 << 31


@dataclass(frozen=True, slots=True)
class Process:
    """A process, so that others on the same machine can see whether it is there.

    Args:
        host: name of the machine, for people.
        pid: number of the process.
        place: names the machine since it was started, and the process's own space of numbers; ""
            where that cannot be told.
        started: when the process was started, in ticks since the machine was.
    """

    host: str
    pid: int
    place: str
    started: int

    @classmethod
    def own(cls) -> "Process":
        """Return this process."""
        pid = os.getpid()
        return cls(socket.gethostname()[:200], pid, _place(), _started(pid) or 0)

    @property
    def is_near(self) -> bool:
        """Whether it can be seen from here."""
        return bool(self.place) and self.place == _place()

    @property
    def is_gone(self) -> bool:
        """Whether it is certainly not there any more."""
        if not self.is_near:
            return False
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:
            pass  # another user's, of which nothing may be to be seen
        return _started(self.pid) not in (None, self.started)


@dataclass(frozen=True, slots=True)
class Worker:
    """A crawler that has claims.

    Args:
        id: owner of its claims.
        until: Unix time in seconds on the server after which it counts as dead; 0 if it stopped.
        heartbeat: seconds between its signs of life.
        process: where it runs.
        queue: owner of what is in the queue that it shares with others, or the directory of the
            queue that has its requests after a stop (``dir ...``); "" for a queue in memory.
    """

    id: str
    until: int
    heartbeat: float
    process: Process
    queue: str = ""

    @property
    def shared_queue(self) -> str:
        """Owner of what is in the queue that it shares with others; "" if it shares none."""
        return self.queue if self.queue.startswith("q") else ""

    @property
    def jobdir(self) -> str:
        """The directory of the queue that has its requests after a stop; "" if none has."""
        return self.queue if self.queue.startswith("dir ") else ""

    def describe(self) -> str:
        """Return what is stored beside ``until``."""
        fields = asdict(self.process) | {"heartbeat": self.heartbeat, "queue": self.queue}
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def parse(cls, name: str, entry: str) -> "Worker | None":
        """Read a stored entry; None if it is damaged."""
        until, _, description = entry.partition(" ")
        if not re.fullmatch(r"[0-9]{1,12}", until) or len(description) > MAX_DESCRIPTION:
            return None
        try:
            fields = json.loads(description)
            heartbeat = fields.pop("heartbeat")
            queue = fields.pop("queue")
            process = Process(**fields)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        texts = (queue, process.host, process.place)
        good = (
            all(isinstance(text, str) for text in texts)
            and in_range(process.pid, 0, _MAX_PID)
            and in_range(process.started, 0, 1 << 62)
            and isinstance(heartbeat, int | float)
            and 0 < heartbeat <= 1e6
        )
        return cls(name, int(until), float(heartbeat), process, queue) if good else None

    @property
    def life(self) -> int:
        """Seconds that a sign of life is good for: two of them may be missed."""
        return ceil(2 * self.heartbeat) + 1

    def silent(self, now: int) -> int:
        """Return the seconds since its last sign of life; 0 if it stopped."""
        return max(0, now - self.until + self.life) if self.until else 0


def parse_all(entries: Mapping[str, str]) -> dict[str, Worker]:
    """Read all entries; those that cannot be read are left out."""
    found = (Worker.parse(name, entry) for name, entry in entries.items())
    return {worker.id: worker for worker in found if worker is not None}


def tag(spider: str) -> str:
    """Return what the owners of a spider's claims have in common: others cannot crawl them."""
    return blake2b(spider.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


def worker_id(spider: str) -> str:
    """Return a new worker's id."""
    return f"w{tag(spider)}{secrets.token_hex(8)}"


def queue_id(spider: str, queue: str) -> str:
    """Return the owner of what is in a queue that outlives its workers."""
    return f"q{tag(spider)}{blake2b(queue.encode(), digest_size=8).hexdigest()}"


def failed_id(spider: str) -> str:
    """Return the owner of what has failed."""
    return f"-{tag(spider)}"


def is_of(owner: str, spider: str) -> bool:
    """Whether claims of an owner are a spider's."""
    return owner[1:9] == tag(spider)


def may_be_dead(worker: Worker, before: Mapping[str, int]) -> bool:
    """Whether a worker cannot be seen, and gave no sign of life since ``before``.

    Args:
        worker: the worker.
        before: what ``until`` was then, by id.
    """
    if worker.until == 0 or worker.process.is_near:
        return False
    return before.get(worker.id) == worker.until


@cache
def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """Return when a process was started, -1 if it is a zombie, None if that cannot be seen."""
    try:
        # The name, in parentheses, may hold anything; state is the first field after it.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return -1 if fields[0] in "ZX" else int(fields[19])
