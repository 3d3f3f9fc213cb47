"""``scrapy bloom report``: what filters hold, as an HTML page. Changes nothing on the server."""

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.protocol import worker_protocol
from scrapy_bloom.cli.files import STREAM
from scrapy_bloom.cli.html_page import ClaimTally, Panel, WorkerRow, page
from scrapy_bloom.cli.info import add_measure_option, gather, measure
from scrapy_bloom.cli.session import CommandSession, ExitCode, Server, add_filter_options
from scrapy_bloom.cli.stored_claims import scan_claims
from scrapy_bloom.crawl.claims import workers
from scrapy_bloom.crawl.claims.workers import Worker

HELP = "write what filters hold to an HTML page; changes nothing on the server"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_filter_options(parser)
    add_measure_option(parser)
    parser.add_argument(
        "--html",
        metavar="FILE",
        required=True,
        help="file to write, or to write again; - is the standard output",
    )


def run(session: CommandSession) -> ExitCode:
    """Write the page of the chosen filters.

    Raises:
        ConfigurationError: the file cannot be written.
        StorageError: the server did not answer, or a filter cannot be read.
    """
    file, panels = session.opts.html, list[Panel]()
    if file == STREAM and session.opts.json:
        raise ConfigurationError("--html - and --json both use the standard output: name a file")
    with session.connect() as server:
        for found in gather(session, server):
            name, key, info = found.window, found.key, found.info
            if info is None:
                panels.append(Panel(name, key))
                continue
            claims = _tally(session, server.filter(name), info.blocks)
            panels.append(Panel(name, key, info, measure(session, server, name), claims))
        _write(session, server, file, page(server.address, panels))
    return ExitCode.of(any(panel.info is not None for panel in panels))


def _write(session: CommandSession, server: Server, file: str, html: str) -> None:
    # Keys may hold bytes that are no text.
    encoded = html.encode(errors="backslashreplace")
    if file == STREAM:
        sys.stdout.write(encoded.decode())
        return
    try:
        Path(file).write_bytes(encoded)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(
            f"--html {file!r} cannot be written: {reason}; name a file in a directory that you may "
            "write to"
        ) from error
    text = f"{file}: the filters on {server.address}, {len(encoded):,} bytes"
    session.report({"address": server.address, "file": file, "bytes": len(encoded)}, text)


def _tally(session: CommandSession, bloom: BloomFilter, blocks: int) -> ClaimTally:
    """Count the claims of a filter, by owner."""
    entries = bloom.run(worker_protocol.read_workers)
    owned, due_times = Counter[str](), list[int]()
    for _, part in scan_claims(bloom, blocks):
        for claim in part.claims:
            if claim.failed:
                due_times.append(claim.due(entries.now, session.settings.retry_after))
            else:
                owned[claim.owner] += 1
    return tally(owned, due_times, entries.now, workers.parse_all(entries.entries), session.spiders)


def tally(
    owned: Counter[str],
    due_times: Sequence[int],
    now: int,
    found: Mapping[str, Worker],
    spiders: Sequence[str],
) -> ClaimTally:
    """Return claims counted as the page shows them. Pure."""
    names = {workers.tag(name): name for name in spiders}
    rows = [
        WorkerRow(
            f"{worker.process.host}:{worker.process.pid}",
            names.get(worker.id[1:9], worker.id[1:9]),
            _state(worker, now),
            owned[worker.id],
        )
        for worker in found.values()
    ]
    return ClaimTally(
        failed=len(due_times),
        due=sum(time <= now for time in due_times),
        next_due=min((time for time in due_times if time > now), default=0),
        elsewhere=sum(count for owner, count in owned.items() if owner not in found),
        workers=sorted(rows, key=lambda row: (row.spider, row.name)),
    )


def _state(worker: Worker, now: int) -> str:
    if not worker.until:
        return "stopped"
    return "alive" if worker.until > now else "dead"
