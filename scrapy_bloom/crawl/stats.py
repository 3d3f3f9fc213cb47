"""Every ``bloom/`` stat: its name, kind and meaning. An unknown name is an error."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from scrapy_bloom.settings import DEFAULT


class Kind(Enum):
    """How a stat changes."""

    #: It only grows.
    COUNTER = "counter"
    #: It is set to the last value.
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Stat:
    """One stat.

    Args:
        kind: how it changes.
        meaning: what it counts or shows, for the documentation.
    """

    kind: Kind
    meaning: str


def _counters(**meanings: str) -> dict[str, Stat]:
    return {name: Stat(Kind.COUNTER, meaning) for name, meaning in meanings.items()}


def _gauges(**meanings: str) -> dict[str, Stat]:
    return {name: Stat(Kind.GAUGE, meaning) for name, meaning in meanings.items()}


#: The stats, without the prefix ``bloom/``, or ``bloom/<window>/`` of another window.
STATS: Mapping[str, Stat] = {
    **_counters(
        new="requests that were new",
        seen="requests that were duplicates",
        unknown="requests for which the server did not answer: they count as new",
        offline="requests decided without the server, while it was down",
        recorded_late="unknown and offline requests that were recorded or claimed since",
        unrecorded="new requests for which the filter had no room: it is full and cannot grow",
        not_identified="requests for which your fingerprinter failed: they are not crawled",
        crawled="claims of pages that were crawled",
        without_item="those of them without an item, read again in the next run",
        failed="claims of pages that failed",
        released="claims of requests that were dropped before they were crawled",
        repeated="pages crawled again, because claims on their links were lost",
        undelivered="pages whose items were not stored in time: the next run crawls them again",
        unreplicated="pages recorded before enough replicas (BLOOM_WAIT_REPLICAS) had their claims",
        ledger_added="pages whose requests the ledger keeps",
        ledger_due="requests of the ledger that were due",
        proposed="those of them that were crawled, because no link had led to them",
        taken_over="requests taken over from workers that are gone",
        dropped="claims of ended crawls without a request: the linking pages are crawled again",
        not_kept="requests that could not be stored with their claims",
        not_restored="stored requests that could not be read back",
        outages="times that the server stopped answering",
        lost_blocks="parts of the filter that were evicted or deleted, and are empty again",
    ),
    **_gauges(
        rotations="rotations that this process has done",
        generations="live generations",
        layers="layers of the fullest block",
        fill_ratio="URLs in the active generation as a share of its capacity",
        estimated_error_rate="chance that a new URL counts as seen",
        round_trips="round trips that the crawl waited for",
        async_round_trips="round trips during which the crawl went on",
    ),
}


class _Names(dict[tuple[str, str], str]):
    """Full names, by window and short name; made at their first use."""

    def __missing__(self, key: tuple[str, str]) -> str:
        window, name = key
        if name not in STATS:
            raise KeyError(f"bloom/{name} is not in STATS of scrapy_bloom/crawl/stats.py")
        full = f"bloom/{name}" if window == DEFAULT else f"bloom/{window}/{name}"
        self[key] = full
        return full


class Stats:
    """The stats of one crawl.

    Args:
        collector: the crawler's.
    """

    def __init__(self, collector: Any) -> None:
        self._collector = collector
        self.names = _Names()
        #: Scrapy's method: Scrapy 2.19 takes longer to look it up than to run it.
        self.inc_value = collector.inc_value

    def count(self, name: str, window: str = DEFAULT, *, count: int = 1) -> None:
        """Add to a counter."""
        self.inc_value(self.names[window, name], count)

    def counted(self, name: str, window: str) -> int:
        """Return a counter."""
        count: int = self._collector.get_value(self.names[window, name], 0)
        return count

    @property
    def windows(self) -> list[str]:
        """All windows that have stats, the main one first."""
        # The thread of the metrics asks too: a copy does not change while it is read.
        named = {window for window, _ in [*self.names]} - {DEFAULT}
        return [DEFAULT, *sorted(named)]

    def number(self, name: str, window: str) -> float | None:
        """Return a stat; None if it has no value yet."""
        value = self._collector.get_value(self.names[window, name])
        return value if type(value) in (int, float) else None

    def set(self, name: str, value: object, window: str = DEFAULT) -> None:
        """Set a gauge."""
        self._collector.set_value(self.names[window, name], value)
