"""``scrapy bloom metrics``: what filters hold, for Prometheus. Changes nothing."""

import argparse
import io
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scrapy_bloom.bloom.protocol import worker_protocol
from scrapy_bloom.bloom.protocol.info import FilterInfo
from scrapy_bloom.bloom.protocol.worker_protocol import WorkerEntries
from scrapy_bloom.cli.info import Found, gather
from scrapy_bloom.cli.session import CommandSession, ExitCode, Server, add_filter_options
from scrapy_bloom.cli.stored_claims import scan_claims
from scrapy_bloom.crawl.claims import workers
from scrapy_bloom.crawl.metrics import family, registry
from scrapy_bloom.crawl.stats import Kind

if TYPE_CHECKING:
    from prometheus_client.core import Metric

HELP = "print what filters hold in Prometheus's text format; changes nothing"


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read of a filter.

    Args:
        window: its window.
        key: its key.
        info: what it holds; None if there is no such filter.
        workers: crawlers that are alive; None if there is no such filter.
        failed: claims of pages that failed; None if they were not counted.
    """

    window: str
    key: str
    info: FilterInfo | None
    workers: int | None = None
    failed: int | None = None


def _of_info(value: Callable[[FilterInfo], float | None]) -> Callable[[Reading], float | None]:
    """Return a value of a filter that is there."""
    return lambda found: None if found.info is None else value(found.info)


#: The gauges of filters, by their names without ``scrapy_bloom_filter_``: what each shows, and its
#: value; None if the filter has none.
GAUGES: Mapping[str, tuple[str, Callable[[Reading], float | None]]] = {
    "exists": ("whether there is a filter: 1, or 0", lambda found: int(found.info is not None)),
    "capacity_urls": (
        "URLs a generation takes before it grows",
        _of_info(lambda info: info.capacity),
    ),
    "urls": ("URLs remembered", _of_info(lambda info: info.count)),
    "fill_ratio": (
        "URLs in the active generation as a share of those that fit in",
        _of_info(lambda info: info.generations[0].fill_ratio),
    ),
    "estimated_error_rate": (
        "predicted chance that a new URL counts as seen",
        _of_info(lambda info: info.estimated_error_rate),
    ),
    "error_rate_limit": (
        "error rate that was asked for, at most",
        _of_info(lambda info: info.error_rate),
    ),
    "generations": ("live generations", _of_info(lambda info: len(info.generations))),
    "layers": (
        "layers of all generations",
        _of_info(lambda info: sum(generation.layers for generation in info.generations)),
    ),
    "memory_bytes": ("bytes of the bitmaps", _of_info(lambda info: info.memory)),
    "lost_blocks": (
        "parts that were evicted or deleted",
        _of_info(lambda info: info.lost_blocks),
    ),
    "next_rotation_timestamp_seconds": (
        "Unix time at which the active generation closes; none if that is never, or with a run",
        _of_info(lambda info: info.generations[0].closes or None),
    ),
    "claims": (
        "URLs claimed and not settled yet, failed ones included",
        _of_info(lambda info: info.claims),
    ),
    "failed_claims": (
        "URLs that failed and are left alone for a while; only with --count-failed",
        lambda found: found.failed,
    ),
    "workers": (
        "crawlers that are alive and have the filter open",
        lambda found: found.workers,
    ),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_filter_options(parser)
    parser.add_argument(
        "--count-failed",
        action="store_true",
        help="count the claims of pages that failed, too; this reads all claims",
    )


def run(session: CommandSession) -> ExitCode:
    """Print the metrics of the chosen filters.

    Raises:
        StorageError: the server did not answer, or a filter cannot be read.
    """
    with session.connect() as server:
        readings = [
            _read(server, found, counts_failed=session.opts.count_failed)
            for found in gather(session, server)
        ]
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # the format's, whatever the terminal's is
    metrics = families(readings)
    session.report({"metrics": [_to_json(metric) for metric in metrics]}, text(metrics)[:-1])
    return ExitCode.of(any(reading.info is not None for reading in readings))


def families(readings: Sequence[Reading]) -> list["Metric"]:
    """Return the metrics of filters.

    Raises:
        ConfigurationError: prometheus_client is not installed.
    """
    return [
        family(f"filter_{name}", Kind.GAUGE, meaning, _samples(value, readings))
        for name, (meaning, value) in GAUGES.items()
    ]


def text(metrics: Sequence["Metric"]) -> str:
    """Return metrics in Prometheus's text format."""
    from prometheus_client import generate_latest  # noqa: PLC0415 - comes with an extra

    return generate_latest(registry(lambda: metrics)).decode()


def _samples(
    value: Callable[[Reading], float | None], readings: Sequence[Reading]
) -> Iterator[tuple[Mapping[str, str], float]]:
    for reading in readings:
        number = value(reading)
        if number is not None:
            yield {"key": reading.key, "window": reading.window}, number


def living(entries: WorkerEntries) -> int:
    """Return how many workers are alive; of very many, an estimate by those that were read."""
    found = workers.parse_all(entries.entries).values()
    alive = sum(worker.until > entries.now for worker in found)
    if not entries.is_partial or not found:
        return alive
    return round(entries.total * alive / len(found))


def _read(server: Server, found: Found, *, counts_failed: bool) -> Reading:
    if found.info is None:
        return Reading(found.window, found.key, None)
    bloom = server.filter(found.window)
    alive = living(bloom.run(worker_protocol.read_workers))
    failed = None
    if counts_failed:
        pages = scan_claims(bloom, found.info.blocks)
        failed = sum(claim.failed for _, page in pages for claim in page.claims)
    return Reading(found.window, found.key, found.info, alive, failed)


def _to_json(metric: "Metric") -> dict[str, Any]:
    return {
        "name": metric.name,
        "type": metric.type,
        "help": metric.documentation,
        "samples": [{"labels": sample.labels, "value": sample.value} for sample in metric.samples],
    }
