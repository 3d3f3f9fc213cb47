"""The workers of a filter, which send heartbeats. No I/O."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from scrapy_bloom.bloom.errors import StorageError, shown
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.scripts import Argument, Call, load
from scrapy_bloom.bloom.protocol.session import FilterSession

#: Workers read at once, at most: a filter with more is written to by something else.
MAX_WORKERS = 2_000
#: Workers that may soon be dead, and are named in a reply, at most.
MAX_NAMED = 128
#: Stands for the last change of the set of workers: return no living workers.
ONLY_DEAD = "*"


@dataclass(frozen=True, slots=True)
class WorkerEntries:
    """What a heartbeat returns of the workers.

    Args:
        now: Unix time in seconds on the server.
        entries: member ("id description") -> ``until``.
        is_all: whether these are all workers, or MAX_WORKERS of them, chosen at random; if not,
            they are the dead and the stopped.
        soon: id -> ``until`` of workers that are alive and may soon be dead, the first MAX_NAMED.
        total: how many workers there are.
        version: nonce of the last change of the set of workers.
    """

    now: int
    entries: Mapping[str, str]
    is_all: bool
    soon: Mapping[str, int]
    total: int
    version: str

    @property
    def is_partial(self) -> bool:
        """Whether there are more workers than are read."""
        return self.total > MAX_WORKERS


def heartbeat(
    session: FilterSession,
    member: str = "",
    life: int = 0,
    *,
    nonce: str = "",
    known: str = "",
    by: str = "0",
) -> Operation[WorkerEntries]:
    """Note that a worker is alive; return the workers' entries.

    Args:
        session: the filter.
        member: its id and description; "" changes nothing.
        life: seconds until it counts as dead, 0 if it has stopped.
        nonce: of this call.
        known: version of the set of workers that the caller knows; ONLY_DEAD for any.
        by: name the workers that are dead by then: Unix time, or "+" and seconds from now.

    Raises:
        StorageError: the reply is not the script's.
    """
    yield from session.ensure_open()
    expiry = session.held[0].ring.expiry if 0 in session.held else 0
    return (yield from _read(session, (member, life, expiry, MAX_WORKERS, nonce, known, by)))


def read_workers(session: FilterSession) -> Operation[WorkerEntries]:
    """Return all workers of a filter, without opening it."""
    return (yield from _read(session, ("", 0, 0, MAX_WORKERS, "", "", "0")))


def _read(session: FilterSession, arguments: tuple[Argument, ...]) -> Operation[WorkerEntries]:
    keys = (session.keys.heartbeats(), session.keys.workers_version())
    (reply,) = yield [Call(load("heartbeat"), keys, (*arguments, MAX_NAMED))]
    total, _, version = reply.version.partition(" ")
    if not re.fullmatch("[0-9]{1,12}", total):
        raise StorageError(f"heartbeat.lua counts {shown(total, 40)} workers")
    entries, soon = dict[str, str](), dict[str, int]()
    for name, until in reply.fields.items():
        if not name.startswith(" "):
            entries[name] = until
        elif re.fullmatch("[0-9]{1,12}", until):
            soon[name[1:]] = int(until)
    return WorkerEntries(reply.now, entries, reply.state == "all", soon, int(total), version)


def remove_workers(
    session: FilterSession, entries: Mapping[str, str], nonce: str
) -> Operation[None]:
    """Delete workers (member -> ``until``) unless they have changed; "" is any ``until``."""
    yield from session.ensure_open()
    keys = (session.keys.heartbeats(), session.keys.workers_version())
    arguments = (nonce, *(text for pair in entries.items() for text in pair))
    yield [Call(load("remove_workers"), keys, arguments)]
