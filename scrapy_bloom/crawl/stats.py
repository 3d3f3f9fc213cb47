"""A crawl's stats, their Prometheus metrics, and the page of these (``BLOOM_METRICS_PORT``).

``STATS`` has each ``bloom/`` stat: its name, kind and meaning. An unknown name is an error.

``prometheus_client`` has the text format. It is imported when it is needed, as it comes with the
extra ``metrics`` only.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy_bloom.bloom.errors import ConfigurationError, tagged
from scrapy_bloom.settings import DEFAULT

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

logger = logging.getLogger(__name__)

PREFIX = "scrapy_bloom_"


class Tally(NamedTuple):
    """What one process has counted in one window: stats."""

    new: int
    seen: int
    failed: int
    taken_over: int = 0
    without_item: int = 0
    unknown: int = 0
    offline: int = 0

    @property
    def without_server(self) -> int:
        """Requests that were crawled without the server's answer."""
        return self.unknown + self.offline


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


# -- metrics --


def family(
    name: str, kind: Kind, meaning: str, samples: Iterable[tuple[Mapping[str, str], float]]
) -> "Metric":
    """Return a metric with the values that it has for labels.

    Raises:
        ConfigurationError: prometheus_client is not installed.
    """
    try:
        from prometheus_client.core import Metric  # noqa: PLC0415 - see above
    except ImportError as error:
        raise ConfigurationError(
            'metrics need prometheus_client: pip install "scrapy-bloom[metrics]"'
        ) from error
    found = Metric(f"{PREFIX}{name}", meaning, kind.value)
    suffix = "_total" if kind is Kind.COUNTER else ""
    for labels, value in samples:
        # A lone surrogate, as in names that are not UTF-8, becomes a question mark.
        clean = {label: text.encode("utf-8", "replace").decode() for label, text in labels.items()}
        found.add_sample(f"{PREFIX}{name}{suffix}", clean, value)
    return found


def registry(read: Callable[[], Iterable["Metric"]]) -> "CollectorRegistry":
    """Return a registry of the metrics that a function returns, of those that have values."""
    from prometheus_client import CollectorRegistry  # noqa: PLC0415 - see above
    from prometheus_client.registry import Collector  # noqa: PLC0415

    class Values(Collector):
        def collect(self) -> Iterable["Metric"]:
            return [metric for metric in read() if metric.samples]

    found = CollectorRegistry()
    found.register(Values())
    return found


def families(stats: Stats, spider: str, now: Mapping[str, float]) -> list["Metric"]:
    """Return the stats of a spider's crawl.

    Args:
        stats: the crawl's.
        spider: its name.
        now: values of the main window that are newer than its stats.
    """
    windows = stats.windows
    return [
        family(name, stat.kind, stat.meaning, _samples(stats, name, spider, windows, now))
        for name, stat in STATS.items()
    ]


def _samples(
    stats: Stats, name: str, spider: str, windows: Iterable[str], now: Mapping[str, float]
) -> Iterable[tuple[Mapping[str, str], float]]:
    for window in windows:
        is_main = window == DEFAULT
        value = now.get(name) if is_main else None
        value = stats.number(name, window) if value is None else value
        if value is None and is_main and STATS[name].kind is Kind.COUNTER:
            value = 0  # so that the first increment is seen as one
        if value is not None:
            yield {"spider": spider} | ({} if is_main else {"window": window}), value


class MetricsServer:
    """Serves the stats of a crawl over HTTP, in threads of its own.

    Args:
        address: host and port, 0 for any free one; None to serve nothing.
        read: returns the metrics as they are now.
    """

    def __init__(
        self, address: tuple[str, int] | None, read: Callable[[], Iterable["Metric"]]
    ) -> None:
        self._address, self._read = address, read
        self._server: WSGIServer | None = None

    def open(self) -> None:
        """Listen, and log where. If that fails, there is a warning, and the crawl goes on."""
        if self._address is None or self._server is not None:
            return
        host, number = self._address
        try:
            from prometheus_client import start_http_server  # noqa: PLC0415 - see above

            self._server, _ = start_http_server(number, host, registry(self._read))
        except ImportError:
            self._warn('it needs prometheus_client: pip install "scrapy-bloom[metrics]"')
        except OSError as error:
            self._warn(f"{error}: choose another port, or 0 for any free one, which the log names")
        else:
            real = self._server.server_port
            logger.info("Bloom filter: metrics at http://%s/metrics", at(host, real))

    def close(self) -> None:
        """Listen no longer."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def _warn(self, reason: str) -> None:
        assert self._address is not None  # noqa: S101 - else nothing is opened
        logger.warning(
            tagged(
                "no-metrics",
                "Bloom filter: no metrics are served, and the crawl goes on: "
                "BLOOM_METRICS_PORT = %s cannot be used (%s)",
            ),
            at(*self._address),
            reason,
        )


def at(host: str, port: int) -> str:
    """Return an address as it stands in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
