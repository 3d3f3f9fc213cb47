"""Kinds of simulated runs: what goes wrong, and under which settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simulation.world import Faults

#: Scrapy's settings in all runs.
SETTINGS: dict[str, Any] = {
    "BLOOM_KEY": "k",
    "BLOOM_RECRAWL_AFTER": "1 year",
    "BLOOM_CAPACITY": 1_000,
    "BLOOM_ERROR_RATE": 1e-6,
    "BLOOM_BLOCKS": 2,
    "BLOOM_HEARTBEAT": 5,
    "BLOOM_RETRY_AFTER": "60 seconds",
}
#: Seconds of the longest window and period, where URLs are forgotten.
WINDOW, PERIOD = 7_200, 3_600
#: Queues. The last one is not kept when a crawl ends.
MEMORY, JOBDIR, REDIS, TRANSIENT = "memory", "JOBDIR", "scrapy-redis", "scrapy-redis, not kept"


@dataclass(frozen=True)
class Kind:
    """A kind of runs.

    Attributes:
        faults: what goes wrong.
        pages: how many the site has at least, and at most.
        workers: crawl at the same time, at most.
        starts: how often another one starts, at any step.
        stored: share of the requests that can be stored with their claims.
        fails: whether some pages fail at first.
        raises: whether, for some pages, a pipeline raises at first.
        gone: share of the pages that are missing.
        items: share of the pages that have an item; below 1, the others are read in each run, and
            at the end each of them links a page that is new.
        lists: whether `start()` yields pages, too, of which no other page links some.
        redirects: whether pages lead to one that fails, to one that changes, and to one that is
            dropped.
        objects: share of the pages whose item is made by requests that share an object.
        domains: whether each run has one of two arguments, and crawls one half of the pages.
        closes: whether some callbacks close the spider at first.
        captchas: whether a spider middleware raises for some responses at first.
        each_run: matches the URLs of pages that are remembered for a run only.
        middlewares: settings of all crawls, with any filter.
        settings: more of them, of all processes.
        choices: settings that each process draws one value of.
        queues: each run has one of them.
        repeats: whether any page may be crawled again; else those that a process left.
        passes: whether, at the end, all URLs are forgotten and crawled once more.
    """

    faults: Faults
    pages: tuple[int, int] = (3, 14)
    workers: int = 2
    starts: float = 0.01
    stored: float = 0.8
    fails: bool = True
    raises: bool = False
    gone: float = 0.08
    items: float = 1.0
    lists: bool = False
    redirects: bool = False
    objects: float = 0.0
    domains: bool = False
    closes: bool = False
    captchas: bool = False
    each_run: str = ""
    middlewares: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    queues: Sequence[str] = (MEMORY, MEMORY, JOBDIR, REDIS, TRANSIENT)
    repeats: bool = True
    passes: bool = False


def _feed(items: int) -> dict[str, Any]:
    """Return a feed in files of so many items, or in one that is stored at the end."""
    name = "simulated:%(batch_time)s-%(batch_id)d"
    return {name: {"format": "jsonlines", "batch_item_count": items}}


_NETWORK = {"lost_request": 0.01, "lost_reply": 0.01, "late": 0.01, "partial": 0.005, "stall": 0.01}
_ENDS = {"kill": 0.004, "stop": 0.003}
_FAULTS = {**_NETWORK, **_ENDS, "jump": 0.003}
_SERVER = {"forget": 0.004, "restart": 0.002, "fill": 0.001, "evict": 0.001}
_FEW = {"kill": 0.002, "stop": 0.001, "kill_sharer": 0.15}
#: A worker has more requests queued than it downloads at a time, while others are idle.
_SHARED: dict[str, Any] = {
    "pages": (20, 40),
    "workers": 4,
    "starts": 0.05,
    "queues": (MEMORY,),
    "choices": {"CONCURRENT_REQUESTS": [1, 2]},
}
#: The start page is read in each run, all others in a list are remembered.
_LISTED: dict[str, Any] = {"BLOOM_RECRAWL_RULES": [("site.example/.", "default")]}
_OWN = {"simulation.spiders.Middleware": 50}
_OFFSITE = {
    "scrapy.downloadermiddlewares.offsite.OffsiteMiddleware": None,
    "simulation.spiders.Offsite": 50,
}
KINDS: dict[str, Kind] = {
    "kills": Kind(_ENDS, fails=False, repeats=False),
    # Not with a shared queue: by a retry that goes through it, a page may be held by two workers.
    "failing": Kind({}, stored=1.0, repeats=False, queues=(MEMORY, JOBDIR)),
    "errbacks": Kind({"kill": 0.02}, fails=False, stored=0.3, gone=0.4, queues=(MEMORY, JOBDIR)),
    "sharing": Kind(_FEW, fails=False, repeats=False, **_SHARED),
    "outages": Kind(
        {**_FEW, "lost_request": 0.002, "lost_reply": 0.005, "fill": 0.001, "lost_share": 0.2},
        stored=1.0,
        **_SHARED,
    ),
    "lists": Kind(_ENDS, fails=False, lists=True, settings=_LISTED, repeats=False),
    "server": Kind({**_FAULTS, **_SERVER}, raises=True, lists=True, settings=_LISTED),
    "items": Kind(
        _FAULTS,
        items=0.5,
        each_run="[3-5]$",
        raises=True,
        settings={"BLOOM_ITEMS_ONLY": True, "BLOOM_RECRAWL_RULES": [("[3-5]$", "run")]},
    ),
    "feeds": Kind(
        _FAULTS,
        raises=True,
        settings={"BLOOM_REMEMBER": "delivered"},
        choices={"FEEDS": [_feed(1), _feed(3), _feed(0)]},
    ),
    "rotating": Kind(
        {**_FAULTS, "jump": 0.01},
        settings={"BLOOM_RECRAWL_AFTER": "2 hours"},
        choices={
            "BLOOM_ROTATE_EVERY": ["30 minutes", "1 hour"],
            "BLOOM_CAPACITY": [4, 8, 1_000],
            "BLOOM_RECRAWL_RULES": [[], [("[02468]$", "1 hour")], [("[0-4]$", "90 minutes")]],
        },
        passes=True,
    ),
    "redirects": Kind(
        _FAULTS,
        pages=(3, 8),
        redirects=True,
        middlewares={"DOWNLOADER_MIDDLEWARES": _OWN},
    ),
    "arguments": Kind(
        _ENDS,
        domains=True,
        closes=True,
        middlewares={"DOWNLOADER_MIDDLEWARES": _OFFSITE},
        queues=(MEMORY,),
    ),
    "objects": Kind(
        {"kill": 0.002, "kill_sharer": 0.1},
        objects=0.4,
        **{**_SHARED, "pages": (8, 16)},
    ),
    "captchas": Kind(
        _ENDS,
        closes=True,
        captchas=True,
        middlewares={"SPIDER_MIDDLEWARES": _OWN},
    ),
    # Claims that a server loses together with the process that has them are lost: no kills.
    "evictions": Kind(
        {"evict_claims": 0.01, "flush": 0.003, "empty": 0.003, "evict": 0.002},
        each_run="[3-5]$",
        settings={"BLOOM_RECRAWL_RULES": [("[3-5]$", "run")]},
        queues=(MEMORY, REDIS),
    ),
    "scheduled": Kind(
        _NETWORK,
        fails=False,
        settings={"BLOOM_REMEMBER": "scheduled"},
        queues=(MEMORY, REDIS),
    ),
}
