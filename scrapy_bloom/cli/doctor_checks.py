"""What ``scrapy bloom doctor`` thinks of a server and of settings. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from scrapy_bloom.bloom.errors import ConfigurationError, StorageError
from scrapy_bloom.bloom.protocol.scripts import Acknowledged
from scrapy_bloom.cli.render import size
from scrapy_bloom.crawl import advice
from scrapy_bloom.crawl.advice import Finding

#: The oldest version of Redis; Valkey's first was made of a later one.
OLDEST = (7, 0)
NEWER = "Use Redis 7.0 or later, or Valkey 8 or later"
NO_INFO = "not known: the user may not run INFO"

#: What INFO has, for each primary.
Nodes = Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Args:
        name: what it is.
        fine: what was found, if nothing is wrong.
        unknown: why it could not be checked.
        finding: what is wrong.
    """

    name: str
    fine: str = ""
    unknown: str = ""
    finding: Finding | None = None

    @property
    def state(self) -> str:
        """One of ``problem``, ``unknown`` and ``fine``."""
        if self.finding is not None:
            return "problem"
        return "unknown" if self.unknown else "fine"

    def document(self) -> dict[str, object]:
        """Return it for JSON."""
        head = {"check": self.name, "state": self.state}
        if self.finding is not None:
            return {**head, **asdict(self.finding)}
        return {**head, "text": self.fine or self.unknown}


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
    """

    address: str
    seconds: float
    is_cluster: bool
    server: Nodes
    memory: Nodes
    persistence: Nodes
    replication: Nodes
    save: Sequence[str]

    @property
    def is_old(self) -> bool:
        """Whether a crawl refuses it for its version."""
        return any(_version(node) < OLDEST for node in self.server)


def check(name: str, finding: Finding | None, fine: str) -> Check:
    """Return a check with a finding, if there is one."""
    return Check(name, finding=finding) if finding else Check(name, fine)


def of_error(name: str, error: Exception) -> Check:
    """Return the check of something that cannot be used."""
    problem, _, remedy = str(error).partition(": ")
    if isinstance(error, StorageError):
        why = "a crawl does not start, or goes on without it"
        return Check(name, finding=Finding(problem, why, remedy or "See the server's log"))
    where = "settings.py, the spider's custom_settings, an add-on or the command line"
    remedy = f"Correct it in {where}"
    return Check(name, finding=Finding(str(error), "a crawl does not start with it", remedy))


def check_settings(errors: Iterable[ConfigurationError]) -> Iterator[Check]:
    """Yield what is wrong with settings."""
    wrong = [of_error("settings", error) for error in errors]
    yield from wrong or [Check("settings", "all BLOOM_ settings are valid")]


def check_facts(facts: ServerFacts, *, has_window: bool, replicas: int) -> Iterator[Check]:
    """Yield the checks of a server by itself.

    Args:
        facts: what was read.
        has_window: whether a filter has a window.
        replicas: BLOOM_WAIT_REPLICAS.
    """
    yield Check("server", f"{facts.address} answers in {facts.seconds * 1_000:.1f} ms")
    yield _check_version(facts)
    yield _check_kind(facts)
    policies = sorted({node.get("maxmemory_policy", "") for node in facts.memory} - {""})
    found = [advice.on_eviction(policy, has_window=has_window) for policy in policies]
    if policies:
        yield check("eviction", next(filter(None, found), None), ", ".join(policies))
    else:
        yield Check("eviction", unknown=NO_INFO)
    yield _check_persistence(facts)
    if replicas:
        fewest = min((_int(node, "connected_slaves") for node in facts.replication), default=0)
        late = advice.on_replicas(Acknowledged(fewest)) if fewest < replicas else None
        yield check("replicas", late, f"{fewest} of each primary")


def check_memory(facts: ServerFacts, need: int) -> Check:
    """Return whether a server has room.

    Args:
        facts: what was read.
        need: bytes that the filters will take, beyond what they take now.
    """
    limits = [_int(node, "maxmemory") or _int(node, "total_system_memory") for node in facts.memory]
    if not limits or not all(limits):
        return Check("memory", unknown="not known: the server does not say how much it has")
    used = sum(_int(node, "used_memory") for node in facts.memory)
    room = max(0, sum(limits) - used)
    text = f"the filters take {size(need)} more at full capacity"
    limited = any(_int(node, "maxmemory") for node in facts.memory)
    source = "maxmemory" if limited else "the memory of its machine"
    if need <= room:
        return Check("memory", f"{text}; there is room for {size(room)} ({source})")
    return Check(
        "memory",
        finding=Finding(
            f"{text}, and {source} leaves the server {size(room)}",
            "a server without memory records nothing, or evicts a part of the filter",
            "Raise maxmemory, use a larger server, or set a smaller BLOOM_CAPACITY; "
            "BLOOM_MAX_MEMORY bounds growth beyond it",
        ),
    )


def _check_version(facts: ServerFacts) -> Check:
    if not facts.server:
        return Check("version", unknown=NO_INFO)
    names = ", ".join(sorted({_name(node) for node in facts.server}))
    if not facts.is_old:
        return Check("version", names)
    return Check(
        "version",
        finding=Finding(f"the server is {names}", "a crawl refuses it: it is too old", NEWER),
    )


def _check_kind(facts: ServerFacts) -> Check:
    # Valkey has another name for it.
    modes = {node.get("redis_mode") or node.get("server_mode", "") for node in facts.server}
    roles = {node.get("role", "") for node in facts.replication}
    finding = None
    if "sentinel" in modes:
        finding = Finding(
            f"{facts.address} is a sentinel, and no server",
            "nothing can be recorded on it",
            "Write redis+sentinel://host:port/service with the name of the service",
        )
    elif "cluster" in modes and not facts.is_cluster:
        finding = Finding(
            f"{facts.address} is a node of a cluster, and the address is one of a single server",
            "it refuses the blocks of the filter that other nodes have",
            "Write redis+cluster://host:port",
        )
    elif "slave" in roles:
        finding = Finding(
            f"{facts.address} is a read-only replica",
            "nothing can be recorded on it",
            "Use the address of its primary, or redis+sentinel:// which finds it",
        )
    if not finding and not modes - {""}:
        return Check("kind", unknown=NO_INFO)
    text = f"a cluster of {len(facts.server)} primaries" if facts.is_cluster else ", ".join(modes)
    return check("kind", finding, text)


def _check_persistence(facts: ServerFacts) -> Check:
    if not facts.persistence:
        return Check("persistence", unknown=NO_INFO)
    failed = [
        name
        for node in facts.persistence
        for name in ("aof_last_write_status", "rdb_last_bgsave_status")
        if node.get(name, "ok") != "ok"
    ]
    if failed:
        return Check(
            "persistence",
            finding=Finding(
                f"the server could not write to its disk ({failed[0]})",
                "what it holds may be lost when it restarts, and it may refuse to record more",
                "See its log, then free the disk",
            ),
        )
    if all(node.get("aof_enabled") == "1" for node in facts.persistence):
        return Check("persistence", "AOF")
    if not facts.save:
        return Check(
            "persistence",
            unknown="AOF is off, and whether there are snapshots is not known: the user may not "
            "run CONFIG GET",
        )
    if all(facts.save):
        return Check("persistence", f"snapshots (save {facts.save[0]})")
    return Check(
        "persistence",
        finding=Finding(
            "the server keeps nothing on its disk: neither AOF nor snapshots are on",
            "when it restarts, the filter is lost with all that is pending, and everything is "
            "crawled again",
            "Set appendonly yes (CONFIG SET appendonly yes, then CONFIG REWRITE)",
        ),
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
