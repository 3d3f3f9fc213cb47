"""What goes wrong in a crawl, and when: a pure function of stand, kind of fault and a number."""

import random
from dataclasses import dataclass

#: Where the filter is: on one server, on a cluster with replicas, on a server under Sentinel.
SINGLE, CLUSTER, SENTINEL = "single", "cluster", "sentinel"
REPLICATED = (CLUSTER, SENTINEL)
EVERYWHERE = (SINGLE, *REPLICATED)
#: Seconds from the crawl's first pages on in which faults begin; the crawl takes a little longer.
BEGIN_WITHIN = 3.0
#: Seconds between two faults: the end of one and the beginning of the next do not coincide.
PAUSE = 0.05


@dataclass(frozen=True)
class Event:
    """One fault.

    Args:
        at: seconds after the crawl has got going.
        fault: name of the fault, as in `FAULTS`.
        lasts: seconds until it is mended.
        level: from 0 to 1, and what it means is the fault's own: how long a delay is, how much
            memory is left, which crawler is killed.
    """

    at: float
    fault: str
    lasts: float
    level: float


@dataclass(frozen=True)
class Fault:
    """How often a fault strikes, and for how long.

    Args:
        events: the fewest and the most of them in a crawl.
        lasts: the shortest and the longest, in seconds; (0, 0) for what happens in an instant.
        proxied: whether the proxy makes it, so that the crawlers have to go through it.
        forgets: whether the server may lose what it had acknowledged.
        stands: where it can happen.
    """

    events: tuple[int, int]
    lasts: tuple[float, float]
    proxied: bool = False
    forgets: bool = False
    stands: tuple[str, ...] = EVERYWHERE


FAULTS = {
    # the network
    "drop_before": Fault((1, 3), (0.1, 1.2), proxied=True),
    "drop_after": Fault((1, 3), (0.1, 1.2), proxied=True),
    "delay": Fault((1, 3), (0.2, 1.5), proxied=True),
    "dribble": Fault((1, 3), (0.2, 1.5), proxied=True),
    "half_reply": Fault((1, 3), (0.1, 1.2), proxied=True),
    "reset": Fault((1, 3), (0.1, 1.2), proxied=True),
    "hang": Fault((1, 3), (0.2, 1.5), proxied=True),
    "refuse": Fault((1, 3), (0.1, 1.2), proxied=True),
    # the server
    "server_kill": Fault((1, 2), (0.0, 1.2), forgets=True),
    "server_kill_aof": Fault((1, 2), (0.0, 1.2)),
    "stall": Fault((1, 3), (0.1, 2.0)),
    "flushall": Fault((1, 3), (0.0, 0.0), forgets=True),
    "script_flush": Fault((1, 6), (0.0, 0.0)),
    "evict": Fault((1, 3), (0.1, 1.2), forgets=True),
    "out_of_memory": Fault((1, 3), (0.1, 1.5)),
    "disk_full": Fault((1, 3), (0.1, 1.5)),
    "client_kill": Fault((2, 8), (0.0, 0.0)),
    "read_only": Fault((1, 3), (0.1, 1.5), stands=(SINGLE,)),
    # the crawlers
    "crawler_kill": Fault((1, 4), (0.0, 1.0)),
    # servers that replace each other: how long one lasts is counted from the replacement on; what
    # a new primary has not got is counted by `Outcome.promotions`
    "failover": Fault((1, 2), (0.0, 0.5), stands=REPLICATED),
    "failover_lag": Fault((1, 2), (0.0, 0.5), stands=REPLICATED),
    "failover_kill": Fault((1, 2), (0.0, 0.5), stands=REPLICATED),
    "failover_stall": Fault((1, 2), (0.0, 0.5), stands=REPLICATED),
    "failover_command": Fault((1, 3), (0.0, 0.5), stands=REPLICATED),
    "failover_force": Fault((1, 3), (0.0, 0.5), stands=(CLUSTER,)),
    "cut_off": Fault((1, 2), (1.5, 3.5), proxied=True, stands=REPLICATED),
    "slots_move": Fault((1, 3), (0.1, 1.0), stands=(CLUSTER,)),
    "sentinel_kill": Fault((1, 3), (0.1, 1.5), stands=(SENTINEL,)),
}
#: Any of them, one after the other.
MIXED = "mixed"


def kinds_on(stand: str) -> tuple[str, ...]:
    """Return the kinds of schedules of a stand."""
    return (*_faults_on(stand), MIXED)


def _faults_on(stand: str) -> list[str]:
    return [name for name, fault in FAULTS.items() if stand in fault.stands]


@dataclass(frozen=True)
class Schedule:
    """The faults of one crawl, in order and one at a time; the same for the same kind and seed."""

    kind: str
    seed: int
    events: tuple[Event, ...]
    stand: str = SINGLE

    @classmethod
    def random(cls, kind: str, seed: int, stand: str = SINGLE) -> "Schedule":
        """Return the schedule of that number.

        Args:
            kind: a name of `kinds_on` the stand.
            seed: any number; a schedule that failed is repeated by it.
            stand: where the filter is.
        """
        randoms = random.Random(f"{kind}:{seed}")
        count = randoms.randint(*((2, 5) if kind == MIXED else FAULTS[kind].events))
        begins = sorted(randoms.uniform(0, BEGIN_WITHIN) for _ in range(count))
        events: list[Event] = []
        for begin in begins:
            name = randoms.choice(_faults_on(stand)) if kind == MIXED else kind
            free_from = events[-1].at + events[-1].lasts + PAUSE if events else 0.0
            at = round(max(begin, free_from), 3)
            lasts = round(randoms.uniform(*FAULTS[name].lasts), 3)
            events.append(Event(at, name, lasts, round(randoms.random(), 3)))
        return cls(kind, seed, tuple(events), stand)

    @property
    def proxied(self) -> bool:
        """Whether the crawlers have to go through the proxy."""
        return any(FAULTS[event.fault].proxied for event in self.events)
