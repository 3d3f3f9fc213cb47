"""What ``scrapy bloom doctor`` checks of a server, and of the place of an embedded one. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scrapy_bloom.bloom.protocol.scripts import Acknowledged
from scrapy_bloom.cli.doctor_project import Result, Unknown
from scrapy_bloom.cli.render import size
from scrapy_bloom.crawl import advice
from scrapy_bloom.crawl.advice import Finding

#: The oldest version of Redis; Valkey's first was made of a later one.
OLDEST = (7, 0)
#: Sizes of the filters that files take, while the embedded server writes them again.
ON_DISK = 2
NO_INFO = Unknown("not known: the user may not run INFO")

#: What INFO has, for each primary.
Nodes = Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Place:
    """A directory in which ``embedded:`` keeps data.

    Args:
        directory: the directory.
        is_there: whether it exists.
        free: bytes that are free on its disk.
        is_temporary: whether a restart of the machine may empty it.
        is_in_container: whether it goes when its container is removed.
        need: bytes that the filters take beyond what they take now.
    """

    directory: Path
    is_there: bool
    free: int
    is_temporary: bool
    is_in_container: bool
    need: int


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What was read of a server; of a cluster, of each primary.

    Args:
        address: without credentials.
        seconds: the shortest round trip.
        is_cluster: whether it is used as a cluster.
        server: INFO server; empty if the user may not run INFO, as the next ones.
        memory: INFO memory.
        persistence: INFO persistence.
        replication: INFO replication.
        save: the option ``save``; empty if the user may not run CONFIG GET.
        has_window: whether a filter has a window.
        replicas: BLOOM_WAIT_REPLICAS.
        need: bytes that the filters will take, beyond what they take now; None if not known.
    """

    address: str
    seconds: float
    is_cluster: bool
    server: Nodes
    memory: Nodes
    persistence: Nodes
    replication: Nodes
    save: Sequence[str]
    has_window: bool = False
    replicas: int = 0
    need: int | None = None

    @property
    def is_old(self) -> bool:
        """Whether a crawl refuses it for its version."""
        return any(_version(node) < OLDEST for node in self.server)


def _place(place: Place) -> Result:
    if not (place.is_in_container or place.is_temporary):
        return f"{place.directory}, {size(place.free)} free"
    when = "the container is removed" if place.is_in_container else "the machine restarts"
    return Finding(
        f"embedded: keeps its data in {place.directory}, which is lost when {when}",
        "the filter is lost with all that is pending, and everything is crawled again",
        'Set BLOOM_REDIS_URL = "embedded:/a/lasting/directory"'
        + (" on a volume" if place.is_in_container else ""),
    )


def _disk(place: Place) -> Result | None:
    if place.free >= ON_DISK * place.need:
        return None
    return Finding(
        f"{size(place.free)} are free on the disk of {place.directory}, and the filters "
        f"take up to {size(ON_DISK * place.need)} there at full capacity",
        "a server with a full disk refuses to record",
        "Free the disk, or use a directory on another one",
    )


def _answer(server: ServerFacts) -> Result:
    return f"{server.address} answers in {server.seconds * 1_000:.1f} ms"


def _of_version(server: ServerFacts) -> Result:
    if not server.server:
        return NO_INFO
    names = ", ".join(sorted({_name(node) for node in server.server}))
    if not server.is_old:
        return names
    remedy = "Use Redis 7.0 or later, or Valkey 8 or later"
    return Finding(f"the server is {names}", "a crawl refuses it: it is too old", remedy)


def _kind(server: ServerFacts) -> Result:
    # Valkey has another name for it.
    modes = {node.get("redis_mode") or node.get("server_mode", "") for node in server.server}
    roles = {node.get("role", "") for node in server.replication}
    if "sentinel" in modes:
        return Finding(
            f"{server.address} is a sentinel, and no server",
            "nothing can be recorded on it",
            "Write redis+sentinel://host:port/service with the name of the service",
        )
    if "cluster" in modes and not server.is_cluster:
        return Finding(
            f"{server.address} is a node of a cluster, and the address is one of a single server",
            "it refuses the blocks of the filter that other nodes have",
            "Write redis+cluster://host:port",
        )
    if "slave" in roles:
        return Finding(
            f"{server.address} is a read-only replica",
            "nothing can be recorded on it",
            "Use the address of its primary, or redis+sentinel:// which finds it",
        )
    if not modes - {""}:
        return NO_INFO
    return f"a cluster of {len(server.server)} primaries" if server.is_cluster else ", ".join(modes)


def _eviction(server: ServerFacts) -> Result:
    policies = sorted({node.get("maxmemory_policy", "") for node in server.memory} - {""})
    found = [advice.on_eviction(policy, has_window=server.has_window) for policy in policies]
    return next(filter(None, found), None) or ", ".join(policies) or NO_INFO


def _persistence(server: ServerFacts) -> Result:
    if not server.persistence:
        return NO_INFO
    failed = [
        name
        for node in server.persistence
        for name in ("aof_last_write_status", "rdb_last_bgsave_status")
        if node.get(name, "ok") != "ok"
    ]
    if failed:
        return Finding(
            f"the server could not write to its disk ({failed[0]})",
            "what it holds may be lost when it restarts, and it may refuse to record more",
            "See its log, then free the disk",
        )
    if all(node.get("aof_enabled") == "1" for node in server.persistence):
        return "AOF"
    if not server.save:
        return Unknown(
            "AOF is off, and whether there are snapshots is not known: the user may not run "
            "CONFIG GET"
        )
    if all(server.save):
        return f"snapshots (save {server.save[0]})"
    return Finding(
        "the server keeps nothing on its disk: neither AOF nor snapshots are on",
        "when it restarts, the filter is lost with all that is pending, and everything is "
        "crawled again",
        "Set appendonly yes (CONFIG SET appendonly yes, then CONFIG REWRITE)",
    )


def _replicas(server: ServerFacts) -> Result | None:
    if not server.replicas:
        return None
    fewest = min((_int(node, "connected_slaves") for node in server.replication), default=0)
    if fewest < server.replicas:
        return advice.on_replicas(Acknowledged(fewest))
    return f"{fewest} of each primary"


def _memory(server: ServerFacts) -> Result | None:
    if server.need is None:
        return None
    limits = [
        _int(node, "maxmemory") or _int(node, "total_system_memory") for node in server.memory
    ]
    if not limits or not all(limits):
        return Unknown("not known: the server does not say how much it has")
    used = sum(_int(node, "used_memory") for node in server.memory)
    room = max(0, sum(limits) - used)
    text = f"the filters take {size(server.need)} more at full capacity"
    limited = any(_int(node, "maxmemory") for node in server.memory)
    source = "maxmemory" if limited else "the memory of its machine"
    if server.need <= room:
        return f"{text}; there is room for {size(room)} ({source})"
    return Finding(
        f"{text}, and {source} leaves the server {size(room)}",
        "a server without memory records nothing, or evicts a part of the filter",
        "Raise maxmemory, use a larger server, or set a smaller BLOOM_CAPACITY; "
        "BLOOM_MAX_MEMORY bounds growth beyond it",
    )


def _name(node: Mapping[str, str]) -> str:
    if "valkey_version" in node:
        return f"Valkey {node['valkey_version']}"
    return f"Redis {node.get('redis_version', 'of an unknown version')}"


def _version(node: Mapping[str, str]) -> tuple[int, ...]:
    parts = node.get("redis_version", "").split(".")[:2]
    # A server that does not say it is not refused by crawls either.
    return tuple(int(part) for part in parts) if all(map(str.isdecimal, parts)) else OLDEST


def _int(node: Mapping[str, str], name: str) -> int:
    text = node.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 20 else 0


#: The checks of the place of an embedded server, and of a server.
OF_PLACE: Mapping[str, Callable[[Place], Result | None]] = {"place": _place, "disk": _disk}
OF_SERVER: Mapping[str, Callable[[ServerFacts], Result | None]] = {
    "server": _answer,
    "version": _of_version,
    "kind": _kind,
    "eviction": _eviction,
    "persistence": _persistence,
    "replicas": _replicas,
    "memory": _memory,
}
