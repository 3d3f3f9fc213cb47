"""A crawl's stats (``stats.py``) as Prometheus metrics, and their page (``BLOOM_METRICS_PORT``).

``prometheus_client`` has the text format. It is imported when it is needed, as it comes with the
extra ``metrics`` only.
"""

import logging
import socket
import socketserver
from collections.abc import Callable, Iterable, Mapping
from socketserver import ThreadingMixIn
from threading import Thread
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from scrapy_bloom.bloom.errors import ConfigurationError, tagged
from scrapy_bloom.crawl.stats import STATS, Kind, Stats
from scrapy_bloom.settings import DEFAULT

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

logger = logging.getLogger(__name__)

PREFIX = "scrapy_bloom_"
#: Seconds that a client may be silent, and between two looks whether the page is to close.
CLIENT_SECONDS, LOOK_SECONDS = 10, 0.1


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


class _Handler(WSGIRequestHandler):
    """Answers a client, and gives up a silent one."""

    timeout = CLIENT_SECONDS

    def log_message(self, *_: object) -> None:
        """Log nothing: it would be a line for each look of a Prometheus."""


class _Listener(ThreadingMixIn, WSGIServer):
    """Answers each client in a thread."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Listen; the standard library's looks its own name up, which may take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()


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
        self._server: _Listener | None = None

    def open(self) -> None:
        """Listen, and log where. If that fails, there is a warning, and the crawl goes on."""
        if self._address is None or self._server is not None:
            return
        host, number = self._address
        try:
            from prometheus_client import make_wsgi_app  # noqa: PLC0415 - see above

            self._server = _Listener((host, number))
        except ImportError:
            self._warn('it needs prometheus_client: pip install "scrapy-bloom[metrics]"')
        except OSError as error:
            self._warn(f"{error}: choose another port, or 0 for any free one, which the log names")
        else:
            self._server.set_app(make_wsgi_app(registry(self._read)))
            Thread(target=self._server.serve_forever, args=(LOOK_SECONDS,), daemon=True).start()
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
