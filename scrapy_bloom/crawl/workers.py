"""Workers that have claims, whether they are alive, and what their queues lose.

The only I/O is a look at /proc.
"""

import json
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import blake2b
from math import ceil
from pathlib import Path
from typing import Any

from scrapy.settings import BaseSettings
from scrapy.utils.misc import load_object

from scrapy_bloom.bloom.model.header import in_range

#: Number of a process, and seconds between heartbeats, at most.
_MAX_PID, _MAX_HEARTBEAT = 1 << 31, 1e6


@dataclass(frozen=True, slots=True)
class Process:
    """A process, so that others on the same machine can see whether it still runs.

    Args:
        host: name of the machine, for messages.
        pid: number of the process.
        place: identifies the machine's boot and the namespace of the number; "" if unknown.
        started: when the process started, in ticks since the boot.
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
        """Whether it runs on this machine, in the same namespace."""
        return bool(self.place) and self.place == _place()

    @property
    def is_gone(self) -> bool:
        """Whether it has certainly ended."""
        if not self.is_near:
            return False
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:
            pass  # it is another user's, and /proc may hide it
        return _started(self.pid) not in (None, self.started)


@dataclass(frozen=True, slots=True)
class Worker:
    """A crawler that has claims.

    Args:
        id: owner of its claims.
        until: Unix time in seconds on the server after which it counts as dead; 0 if it stopped.
        heartbeat: seconds between its heartbeats.
        process: where it runs.
        queue: owner of the claims of requests in the queue that it shares with others, or the
            directory of the queue that has its requests after a stop (``dir ...``); "" for a queue
            in memory.
    """

    id: str
    until: int
    heartbeat: float
    process: Process
    queue: str = ""

    @property
    def shared_queue(self) -> str:
        """Owner of the claims of requests in a shared queue; "" if it shares none."""
        return self.queue if self.queue.startswith("q") else ""

    @property
    def owner(self) -> str:
        """Owner of the claims that it makes: its queue, if that is shared."""
        return self.shared_queue or self.id

    @property
    def tag(self) -> str:
        """The part that the owners of all claims of its spider have in common."""
        return owner_tag(self.id)

    @property
    def jobdir(self) -> str:
        """The directory of the queue that has its requests after a stop; "" if none has."""
        return self.queue if self.queue.startswith("dir ") else ""

    def describe(self) -> str:
        """Return its description on the server."""
        fields = asdict(self.process) | {"heartbeat": self.heartbeat, "queue": self.queue}
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def parse(cls, member: str, until: str) -> "Worker | None":
        """Read a stored entry; None if it is damaged, or not as workers write it."""
        name, _, description = member.partition(" ")
        try:
            fields = json.loads(description)
            heartbeat, queue = float(fields.pop("heartbeat")), str(fields.pop("queue"))
            worker = cls(name, int(until), heartbeat, Process(**fields), queue)
        except Exception:  # the text may be anything
            return None
        process = worker.process
        is_good = in_range(process.pid, 0, _MAX_PID) and 0 < heartbeat <= _MAX_HEARTBEAT
        is_good &= type(process.host) is type(process.place) is str and type(process.started) is int
        # Only then may it be written as JSON: a damaged value may be nested deeply.
        is_good = is_good and worker.member == member and str(worker.until) == until
        return worker if is_good else None

    @property
    def member(self) -> str:
        """What is stored of it, without ``until``."""
        return f"{self.id} {self.describe()}"

    @property
    def life(self) -> int:
        """Seconds until it counts as dead: two heartbeats may be missed."""
        return ceil(2 * self.heartbeat) + 1


def parse_all(entries: Mapping[str, str]) -> dict[str, Worker]:
    """Read all entries (member -> ``until``) except the damaged ones; return them by id."""
    found = (Worker.parse(member, until) for member, until in entries.items())
    return {worker.id: worker for worker in found if worker is not None}


@cache
def tag(spider: str) -> str:
    """Return the part that the owners of all claims of a spider have in common."""
    return blake2b(spider.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


def worker_id(spider: str) -> str:
    """Return a new worker's id."""
    return f"w{tag(spider)}{secrets.token_hex(8)}"


def queue_id(spider: str, queue: str) -> str:
    """Return the owner of the claims of requests in a shared queue."""
    return f"q{tag(spider)}{blake2b(queue.encode(), digest_size=8).hexdigest()}"


def failed_id(spider: str) -> str:
    """Return the owner of the claims of failed URLs."""
    return f"-{tag(spider)}"


def owner_tag(owner: str) -> str:
    """Return what the owners of all claims of a spider have in common: its ``tag``."""
    return owner[1:9]


def is_of(owner: str, spider: str) -> bool:
    """Whether the claims of an owner are a spider's."""
    return owner_tag(owner) == tag(spider)


def may_be_dead(worker: Worker, since: int) -> bool:
    """Whether a worker on another machine has sent no heartbeat since a moment.

    Args:
        worker: the worker.
        since: Unix time in seconds on the server.
    """
    if worker.until == 0 or worker.process.is_near:
        return False
    return worker.until - worker.life <= since


@cache
def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """Return when a process started, -1 if it is a zombie, None if that is unknown."""
    try:
        # The name, in parentheses, may contain anything; the state is the first field after it.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return -1 if fields[0] in "ZX" else int(fields[19])


@dataclass(frozen=True, slots=True)
class Queue:
    """Where requests wait.

    Args:
        name: identifies a queue that may hold requests of other workers; "" for any other queue.
        survives_kill: whether it is complete after ``kill -9``.
        survives_stop: whether it is complete after a clean stop.
        is_shared: whether several workers use it.
        kind: its description, for messages.
    """

    name: str
    survives_kill: bool
    survives_stop: bool
    is_shared: bool
    kind: str

    @classmethod
    def of(cls, settings: BaseSettings) -> "Queue":
        """Return the queue that settings describe."""
        scheduler = _scheduler(settings)
        if scheduler.startswith("scrapy_redis."):
            name = f"redis {settings.get('SCHEDULER_QUEUE_KEY', '%(spider)s:requests')}"
            if settings.getbool("SCHEDULER_PERSIST"):
                return cls(name, True, True, True, "scrapy-redis's queue")
            # The first worker that stops deletes it.
            kind = "scrapy-redis's queue without SCHEDULER_PERSIST"
            return cls(name, True, False, True, kind)
        jobdir = settings.get("JOBDIR")
        if jobdir and scheduler.startswith("scrapy."):
            # Scrapy writes its index at a clean stop only.
            path = str(Path(str(jobdir)).resolve()).encode("utf-8", "surrogateescape")
            name = f"dir {blake2b(path, digest_size=16).hexdigest()}"
            return cls(name, False, True, False, "the queue in JOBDIR")
        return cls("", False, False, False, "the queue in this process's memory")


def _scheduler(settings: BaseSettings) -> str:
    """Return the module of the scheduler, or of the scheduler it derives from."""
    loaded: Any = load_object(settings["SCHEDULER"])
    modules = [base.__module__ for base in getattr(loaded, "__mro__", (loaded,))]
    for module in modules:
        if module.startswith(("scrapy_redis.", "scrapy.")):
            return str(module)
    return ""
