"""A crawl's stats as Prometheus metrics, and the page that serves them (``BLOOM_METRICS_PORT``)."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from scrapy.utils.reactor import is_reactor_installed
from twisted.internet.error import CannotListenError
from twisted.web.resource import Resource
from twisted.web.server import Site

from scrapy_bloom.bloom.errors import tagged
from scrapy_bloom.crawl.exposition import CONTENT_TYPE, Family, Metric, Sample, render
from scrapy_bloom.crawl.stats import STATS, Kind, Stat, Stats
from scrapy_bloom.settings import DEFAULT

logger = logging.getLogger(__name__)

PREFIX = "scrapy_bloom_"
#: Seconds that a client may take to send its request.
CLIENT_SECONDS = 10


def _metric(name: str, stat: Stat) -> Metric:
    suffix = "_total" if stat.kind is Kind.COUNTER else ""
    return Metric(f"{PREFIX}{name}{suffix}", stat.kind, stat.meaning)


#: The metrics of a crawl, by the names of the stats.
METRICS: Mapping[str, Metric] = {name: _metric(name, stat) for name, stat in STATS.items()}


def families(stats: Stats, spider: str) -> list[Family]:
    """Return the stats of a spider's crawl."""
    windows = stats.windows
    return [
        Family(metric, list(_samples(stats, name, spider, windows)))
        for name, metric in METRICS.items()
    ]


def _samples(stats: Stats, name: str, spider: str, windows: Iterable[str]) -> Iterable[Sample]:
    for window in windows:
        is_main = window == DEFAULT
        value = stats.number(name, window)
        if value is None and is_main and STATS[name].kind is Kind.COUNTER:
            value = 0  # so that the first increment is seen as one
        if value is not None:
            labels = {"spider": spider} | ({} if is_main else {"window": window})
            yield Sample(labels, value)


class _NoReactorError(Exception):
    """The crawl runs without Twisted's reactor."""


class StatsPage(Resource):
    """The page /metrics.

    Args:
        read: returns the metrics as they are now.
    """

    def __init__(self, read: Callable[[], Iterable[Family]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._read = read

    def render_GET(self, request: Any) -> bytes:  # noqa: N802 - Twisted's name
        """Return the metrics as text."""
        request.setHeader(b"content-type", CONTENT_TYPE.encode())
        # A connection that is kept would outlive the crawl.
        request.setHeader(b"connection", b"close")
        channel = request.channel
        request.notifyFinish().addBoth(lambda _: channel.loseConnection())
        return render(self._read()).encode()


class MetricsServer:
    """Serves the stats of a crawl over HTTP, in the crawl's own reactor.

    Args:
        address: host and port, 0 for any free one; None to serve nothing.
        read: returns the metrics as they are now.
    """

    def __init__(
        self, address: tuple[str, int] | None, read: Callable[[], Iterable[Family]]
    ) -> None:
        self._address, self._read = address, read
        self._port: Any = None

    def open(self) -> None:
        """Listen, and log where. If that fails, there is a warning, and the crawl goes on."""
        if self._address is None or self._port is not None:
            return
        host, number = self._address
        try:
            self._port = _listen(host, number, StatsPage(self._read))
        except (CannotListenError, _NoReactorError) as error:
            reason: object = error
            if isinstance(error, CannotListenError):
                reason = (
                    f"{error.socketError}: choose another port, or 0 for any free one, which the "
                    "log names"
                )
            logger.warning(
                tagged(
                    "no-metrics",
                    "Bloom filter: no metrics are served, and the crawl goes on: "
                    "BLOOM_METRICS_PORT = %s cannot be used (%s)",
                ),
                at(host, number),
                reason,
            )
        else:
            real = self._port.getHost().port
            logger.info("Bloom filter: metrics at http://%s/metrics", at(host, real))

    def close(self) -> None:
        """Listen no longer."""
        port, self._port = self._port, None
        if port is not None:
            port.stopListening()


def at(host: str, port: int) -> str:
    """Return an address as it stands in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listen(host: str, number: int, page: StatsPage) -> Any:
    if not is_reactor_installed():
        raise _NoReactorError("it needs Twisted's reactor: set TWISTED_REACTOR_ENABLED = True")
    from twisted.internet import reactor  # noqa: PLC0415 - importing it installs one

    root: Any = Resource()  # type: ignore[no-untyped-call]
    root.putChild(b"metrics", page)
    site = Site(root, timeout=CLIENT_SECONDS)  # type: ignore[no-untyped-call]
    site.noisy = False
    any_reactor: Any = reactor
    return any_reactor.listenTCP(number, site, interface=host)
