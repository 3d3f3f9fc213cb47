"""A crawl's stats (``stats.py``) as Prometheus metrics, and their page (``BLOOM_METRICS_PORT``).

``prometheus_client`` has the text format and the server. It is imported when it is needed, as it
comes with the extra ``metrics`` only.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from scrapy_bloom.bloom.errors import ConfigurationError, tagged
from scrapy_bloom.crawl.stats import STATS, Kind, Stats
from scrapy_bloom.settings import DEFAULT

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

logger = logging.getLogger(__name__)

PREFIX = "scrapy_bloom_"


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


def families(stats: Stats, spider: str) -> list["Metric"]:
    """Return the stats of a spider's crawl."""
    windows = stats.windows
    return [
        family(name, stat.kind, stat.meaning, _samples(stats, name, spider, windows))
        for name, stat in STATS.items()
    ]


def _samples(
    stats: Stats, name: str, spider: str, windows: Iterable[str]
) -> Iterable[tuple[Mapping[str, str], float]]:
    for window in windows:
        is_main = window == DEFAULT
        value = stats.number(name, window)
        if value is None and is_main and STATS[name].kind is Kind.COUNTER:
            value = 0  # so that the first increment is seen as one
        if value is not None:
            yield {"spider": spider} | ({} if is_main else {"window": window}), value


class MetricsServer:
    """Serves the stats of a crawl over HTTP, in threads of prometheus_client's.

    Args:
        address: host and port, 0 for any free one; None to serve nothing.
        read: returns the metrics as they are now.
    """

    def __init__(
        self, address: tuple[str, int] | None, read: Callable[[], Iterable["Metric"]]
    ) -> None:
        self._address, self._read = address, read
        self._server: Any = None

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
