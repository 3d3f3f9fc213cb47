"""Kinds of simulated runs: what goes wrong, and under which settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import scrapy

from simulation.world import Faults

#: Scrapy's settings in all runs.
SETTINGS: dict[str, Any] = {
    "BLOOM_KEY": "k",
    "BLOOM_REMEMBER": "crawled",
    "BLOOM_RECRAWL_AFTER": "1 year",
    "BLOOM_CAPACITY": 1_000,
    "BLOOM_ERROR_RATE": 1e-6,
    "BLOOM_BLOCKS": 2,
    "BLOOM_HEARTBEAT": 5,
    "BLOOM_RETRY_AFTER": 60,
}
#: Minutes of the kind in which URLs are forgotten.
WINDOW, PERIOD = 120, 30


def why_no_scrapy() -> str | None:
    """Return why this version of Scrapy cannot be simulated, or None if it can."""
    if scrapy.version_info < (2, 19):
        return f"only Scrapy 2.19 and later run without a reactor, this is {scrapy.__version__}"
    return None


def scrapy_kinds() -> dict[str, "Kind"]:
    """Return the kinds of runs of Scrapy's own engine; none if it cannot be simulated."""
    if why_no_scrapy():
        return {}
    from simulation.web_run import KINDS as kinds  # noqa: N811, PLC0415 - it needs this module

    return kinds


@dataclass(frozen=True)
class Kind:
    """A kind of runs.

    Attributes:
        faults: what goes wrong.
        stored: share of the requests that can be stored with their claims.
        fails: whether some pages fail at first.
        settings: further ones, of all processes.
        choices: settings that each process draws one value of.
        shared_queue: whether the processes share a queue that survives them.
        passes: whether, at the end, all URLs are forgotten and crawled once more.
        repeats: whether any page may be crawled again; else those that a process left.
        writes_all: whether a process that ends by itself leaves no claim, although pages may be
            crawled again, unless it says that it could not write all.
        items: share of the pages that have an item; below 1, the others are read in each run, and
            at the end each of them links a page that is new.
        unlinks: whether, when all URLs are forgotten at the end, no page has a link any more.
        nodes: primaries of the cluster; 1 for no cluster.
        windows: names of the further filters that rules may lead to; pages are crawled again when
            the rules change.
        raises: whether, for some pages, a pipeline raises at first.
        spiders: how many share the filter. All read the same site, each from a start page of its
            own; at the end, only the first one runs, and has to get what it can reach.
        steps: of the part with faults.
        run: the class of its runs; None for those of the small engine.
    """

    faults: Faults
    stored: float = 0.8
    fails: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    shared_queue: bool = False
    passes: bool = False
    repeats: bool = True
    writes_all: bool = False
    items: float = 1.0
    unlinks: bool = False
    nodes: int = 1
    windows: Sequence[str] = ()
    raises: bool = False
    spiders: int = 1
    steps: int = 400
    run: Any = None


_NETWORK = {"lost_request": 0.01, "lost_reply": 0.01, "late": 0.01, "partial": 0.005, "stall": 0.02}
_ENDS = {"kill": 0.004, "stop": 0.002}
_FAULTS = {**_NETWORK, **_ENDS, "jump": 0.003, "block": 0.01, "cancel": 0.02}
_SERVER = {"forget": 0.004, "restart": 0.004, "full": 0.004}
_OFTEN_KILLED = Faults(**{**_FAULTS, "kill": 0.03})
_ITEMS: dict[str, Any] = {"items": 0.5, "settings": {"BLOOM_REMEMBER": "items"}}
_AFTER = {"BLOOM_RECRAWL_AFTER": f"{WINDOW} minutes", "BLOOM_LEDGER": True}
_LEDGER: dict[str, Any] = {"stored": 1.0, "passes": True, "unlinks": True, "settings": _AFTER}
_SHARED = {"SCHEDULER": "scrapy_redis.scheduler.Scheduler", "SCHEDULER_PERSIST": True}
KINDS = {
    "calm": Kind(Faults(), fails=False, repeats=False),
    "growing": Kind(
        Faults(),
        stored=1.0,
        fails=False,
        repeats=False,
        settings={**_SHARED, "BLOOM_CAPACITY": 4, "BLOOM_BLOCKS": 1},
        shared_queue=True,
    ),
    "kills": Kind(Faults(**_ENDS), fails=False, repeats=False),
    "lossy": Kind(Faults(lost_request=0.02, lost_reply=0.02, partial=0.01), writes_all=True),
    "faults": Kind(Faults(**_FAULTS)),
    "forgetful": Kind(Faults(**_FAULTS, forget=0.002), choices={"BLOOM_WAIT_REPLICAS": [0, 1]}),
    "evicted": Kind(Faults(**_FAULTS, evict=0.004)),
    "server": Kind(Faults(**_FAULTS, **_SERVER), choices={"BLOOM_PENDING_MEMORY": [4_000, 0]}),
    "outages": Kind(Faults(lost_request=0.05, lost_reply=0.03, full=0.01, kill=0.03), fails=False),
    "server-full": Kind(Faults(**_ENDS, full=0.02), fails=False, writes_all=True),
    "rotating": Kind(
        Faults(**{**_FAULTS, "jump": 0.02}),
        settings={"BLOOM_RECRAWL_AFTER": f"{WINDOW} minutes"},
        choices={
            "BLOOM_ROTATE_EVERY": [f"{PERIOD} minutes", f"{2 * PERIOD} minutes"],
            "BLOOM_CAPACITY": [4, 8, 1_000],
            "BLOOM_ERROR_RATE": [1e-6, 1e-5],
        },
        passes=True,
    ),
    "shared": Kind(
        Faults(**_FAULTS),
        settings=_SHARED,
        shared_queue=True,
    ),
    "full": Kind(Faults(**_FAULTS), choices={"BLOOM_PENDING_MEMORY": [2_000, 4_000, 0]}),
    "cluster": Kind(
        Faults(**_FAULTS, forget=0.002, down=0.006), settings={"BLOOM_BLOCKS": 6}, nodes=3
    ),
    "cluster-scheduled": Kind(
        Faults(**_NETWORK, down=0.006),
        fails=False,
        settings={"BLOOM_REMEMBER": "scheduled", "BLOOM_BLOCKS": 6},
        nodes=3,
    ),
    "spiders-kills": Kind(Faults(kill=0.03), stored=1.0, fails=False, repeats=False, spiders=2),
    "spiders": Kind(_OFTEN_KILLED, spiders=2),
    "spiders-full": Kind(
        _OFTEN_KILLED, choices={"BLOOM_PENDING_MEMORY": [2_000, 4_000, 0]}, spiders=2
    ),
    "spiders-shared": Kind(_OFTEN_KILLED, settings=_SHARED, shared_queue=True, spiders=2),
    "items-kills": Kind(Faults(**_ENDS), fails=False, repeats=False, **_ITEMS),
    "items": Kind(Faults(**_FAULTS, forget=0.002), **_ITEMS),
    "items-shared": Kind(
        Faults(**_FAULTS),
        settings={**_SHARED, "BLOOM_REMEMBER": "items"},
        shared_queue=True,
        items=0.5,
    ),
    "pipelines": Kind(Faults(**_FAULTS), raises=True),
    "pipelines-shared": Kind(
        Faults(**_FAULTS),
        settings={**_SHARED, "BLOOM_REMEMBER": "items"},
        shared_queue=True,
        raises=True,
    ),
    "ledger": Kind(
        Faults(**{**_FAULTS, "jump": 0.02}),
        choices={"BLOOM_ROTATE_EVERY": [f"{PERIOD} minutes", f"{2 * PERIOD} minutes"]},
        **_LEDGER,
    ),
    "ledger-shared": Kind(
        Faults(**_FAULTS), shared_queue=True, **{**_LEDGER, "settings": {**_SHARED, **_AFTER}}
    ),
    "ledger-rules": Kind(
        Faults(**_FAULTS),
        choices={
            "BLOOM_RECRAWL_RULES": [
                *([], [("[02468]$", "1 hour")], [("[02468]$", "90 minutes")]),
                *([("[13579]$", "1 hour")], [("[0-4]$", "90 minutes"), ("5$", "1 hour")]),
            ]
        },
        windows=("1-hour", "90-minutes"),
        **_LEDGER,
    ),
    # A replica that lags behind has lost claims: a page that nothing links is not crawled again.
    "ledger-server": Kind(Faults(**{**_FAULTS, **_SERVER, "forget": 0.0}), **_LEDGER),
    "scheduled": Kind(Faults(**_NETWORK), fails=False, settings={"BLOOM_REMEMBER": "scheduled"}),
}
