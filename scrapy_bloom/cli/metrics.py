"""``scrapy bloom metrics``: what filters hold, for Prometheus. Changes nothing."""

import argparse
import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scrapy_bloom.bloom.protocol import worker_protocol
from scrapy_bloom.bloom.protocol.info import FilterInfo
from scrapy_bloom.bloom.protocol.worker_protocol import WorkerEntries
from scrapy_bloom.cli.info import Found, gather
from scrapy_bloom.cli.session import CommandSession, ExitCode, Server, add_filter_options
from scrapy_bloom.cli.stored_claims import scan_claims
from scrapy_bloom.crawl.claims import workers
from scrapy_bloom.crawl.exposition import Family, Metric, Sample, render
from scrapy_bloom.crawl.metrics import PREFIX
from scrapy_bloom.crawl.stats import Kind

HELP = "print what filters hold in Prometheus's text format; changes nothing"


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read of a filter.

    Args:
        window: its window.
        key: its key.
        info: what it holds; None if there is no such filter.
        workers: crawlers that are alive.
        failed: claims of pages that failed; None if they were not counted.
    """

    window: str
    key: str
    info: FilterInfo | None
    workers: int = 0
    failed: int | None = None


@dataclass(frozen=True, slots=True)
class FilterGauge:
    """A gauge of a filter.

    Args:
        meaning: what it shows.
        value: returns it; None if the filter has no such value.
    """

    meaning: str
    value: Callable[[Reading, FilterInfo], float | None]


#: The gauges of a filter that exists, by their names without ``scrapy_bloom_filter_``.
GAUGES = {
    "capacity_urls": FilterGauge(
        "URLs a generation takes before it grows", lambda _, info: info.capacity
    ),
    "urls": FilterGauge("URLs remembered", lambda _, info: info.count),
    "fill_ratio": FilterGauge(
        "URLs in the active generation as a share of those that fit in",
        lambda _, info: info.generations[0].fill_ratio,
    ),
    "estimated_error_rate": FilterGauge(
        "predicted chance that a new URL counts as seen", lambda _, info: info.estimated_error_rate
    ),
    "error_rate_limit": FilterGauge(
        "error rate that was asked for, at most", lambda _, info: info.error_rate
    ),
    "generations": FilterGauge("live generations", lambda _, info: len(info.generations)),
    "layers": FilterGauge(
        "layers of all generations", lambda _, info: sum(g.layers for g in info.generations)
    ),
    "memory_bytes": FilterGauge("bytes of the bitmaps", lambda _, info: info.memory),
    "lost_blocks": FilterGauge(
        "parts that were evicted or deleted", lambda _, info: info.lost_blocks
    ),
    "next_rotation_timestamp_seconds": FilterGauge(
        "Unix time at which the active generation closes; none if that is never, or with a run",
        lambda _, info: info.generations[0].closes or None,
    ),
    "claims": FilterGauge(
        "URLs claimed and not settled yet, failed ones included", lambda _, info: info.claims
    ),
    "failed_claims": FilterGauge(
        "URLs that failed and are left alone for a while; only with --count-failed",
        lambda reading, _: reading.failed,
    ),
    "workers": FilterGauge(
        "crawlers that are alive and have the filter open", lambda reading, _: reading.workers
    ),
}


def _metric(name: str, meaning: str) -> Metric:
    return Metric(f"{PREFIX}filter_{name}", Kind.GAUGE, meaning)


EXISTS = _metric("exists", "whether there is a filter: 1, or 0")
METRICS = {name: _metric(name, gauge.meaning) for name, gauge in GAUGES.items()}


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
    metrics = families(readings)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # the format's, whatever the terminal's is
    session.report({"metrics": [_to_json(family) for family in metrics]}, render(metrics)[:-1])
    return ExitCode.of(any(reading.info is not None for reading in readings))


def families(readings: Sequence[Reading]) -> list[Family]:
    """Return the metrics of filters."""
    exists = [Sample(_labels(reading), int(reading.info is not None)) for reading in readings]
    return [Family(EXISTS, exists)] + [
        Family(metric, _samples(GAUGES[name], readings)) for name, metric in METRICS.items()
    ]


def _samples(gauge: FilterGauge, readings: Sequence[Reading]) -> list[Sample]:
    values = [
        (reading, gauge.value(reading, reading.info))
        for reading in readings
        if reading.info is not None
    ]
    return [Sample(_labels(reading), value) for reading, value in values if value is not None]


def _labels(reading: Reading) -> dict[str, str]:
    return {"key": reading.key, "window": reading.window}


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


def _to_json(family: Family) -> dict[str, Any]:
    return {
        "name": family.metric.name,
        "type": family.metric.kind.value,
        "help": family.metric.meaning,
        "samples": [
            {"labels": dict(sample.labels), "value": sample.value} for sample in family.samples
        ],
    }
