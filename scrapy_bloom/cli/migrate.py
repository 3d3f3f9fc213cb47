"""``scrapy bloom migrate``: what other dupefilters have seen, recorded in a filter.

The source is only read. Recording is idempotent, so a migration that was stopped is started again.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from scrapy_bloom.bloom import validators
from scrapy_bloom.bloom.errors import BloomError, ConfigurationError
from scrapy_bloom.bloom.model.units import plural
from scrapy_bloom.cli.check import Identifier
from scrapy_bloom.cli.migrate_source import check_fingerprinter, open_source
from scrapy_bloom.cli.migrate_target import Target
from scrapy_bloom.cli.render import progress
from scrapy_bloom.cli.session import CommandSession, ExitCode, add_change_options, complain
from scrapy_bloom.migrate.batches import BATCH, Counts, Items, Source

HELP = "record what other dupefilters have seen"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_change_options(parser)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument(
        "--from-set",
        nargs="?",
        const="",
        metavar="KEY",
        help="the SET that scrapy-redis keeps fingerprints in (by default the spider's)",
    )
    group.add_argument(
        "--from-seen", metavar="PATH", help="Scrapy's requests.seen, or the JOBDIR that it is in"
    )
    group.add_argument(
        "--from-urls", metavar="FILE", help="URLs, one a line; - reads them from stdin"
    )
    parser.add_argument(
        "--from-server",
        metavar="URL",
        help="server of the SET (by default that of scrapy-redis's settings)",
    )
    parser.add_argument(
        "--any-fingerprinter",
        action="store_true",
        help="import a SET although REQUEST_FINGERPRINTER_CLASS is not scrapy-redis's",
    )
    parser.add_argument("--dry-run", action="store_true", help="only read, count and look up")
    parser.add_argument("--rate", metavar="N", help="entries per second at most")
    parser.add_argument(
        "--no-verify", action="store_true", help="do not look up all entries at the end"
    )


def run(session: CommandSession) -> ExitCode:
    """Record the source's entries, or only count them.

    Raises:
        ConfigurationError: the options or settings are wrong, or the source is of another kind.
        StorageError: a server did not answer; what was recorded stays.
    """
    opts = session.opts
    if opts.rate is not None:
        meaning = "entries per second at most"
        opts.rate = validators.whole_number("--rate", opts.rate, 1, 10**9, meaning)
    if opts.from_server is not None and opts.from_set is None:
        raise ConfigurationError("--from-server is where the SET of --from-set is: add that")
    identifier = Identifier(session)
    with ExitStack() as stack:
        source = open_source(session, identifier, stack)
        for warning in check_fingerprinter(session, identifier):
            complain(warning)
        windows = {session.window} if opts.from_urls is None else identifier.windows
        server = stack.enter_context(session.connect(identifier.name))
        target = Target(server, windows)
        for warning in target.warnings(identifier.name, source.total):
            complain(warning)
        return _migrate(session, source, target, server.address)


def _migrate(session: CommandSession, source: Source, target: Target, address: str) -> ExitCode:
    """Record all entries, then look up all of them; a dry run does only the latter."""
    opts, counts = session.opts, Counts()
    new = checked = seen = 0
    entries = f"about {plural(source.total, 'entry', 'entries')} of {source.name}"
    if not opts.dry_run and not session.confirm(f"Record {entries} in {target.name}"):
        return ExitCode.NO
    try:
        if not opts.dry_run:
            target.open()
            for items in _batches(session, source, counts, "entries recorded"):
                new += target.record(items)
        if opts.dry_run or not opts.no_verify:
            looked_up = counts if opts.dry_run else Counts()
            for items in _batches(session, source, looked_up, "entries looked up"):
                checked += sum(map(len, items.values()))
                seen += target.count_seen(items)
    except (BloomError, KeyboardInterrupt):
        complain(f"stopped after {new:,} were recorded: the same command can be repeated")
        raise
    document = {
        "address": address,
        "filters": target.keys,
        "source": source.name,
        "dry_run": opts.dry_run,
        **asdict(counts),
        "new": new,
        "checked": checked,
        "seen": seen,
    }
    session.report(document, "\n".join(_text(document, opts)))
    if seen < checked and not opts.dry_run:
        return ExitCode.FAILED
    return ExitCode.of(not counts.skipped)


def _batches(
    session: CommandSession, source: Source, counts: Counts, title: str
) -> Iterator[Items]:
    """Yield the source's items at the rate of ``--rate``, with a progress bar."""
    rate, start = session.opts.rate, time.monotonic()
    with progress(title) as show:
        for items in source.batches(min(BATCH, rate or BATCH), counts):
            yield items
            show(counts.read, source.total)
            if rate is not None:
                time.sleep(max(0.0, start + counts.read / rate - time.monotonic()))


def _text(document: dict[str, Any], opts: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of a report."""
    read, new, checked, seen = (document[name] for name in ("read", "new", "checked", "seen"))
    skipped, run_only = document["skipped"], document["run_only"]
    yield f"{document['source']}: {plural(read, 'entry', 'entries')}"
    if run_only:
        yield f"  {run_only:,} have the window 'run', which no filter remembers"
    if skipped:
        kind = "fingerprints" if opts.from_urls is None else "URLs"
        yield f"  {skipped:,} are no {kind}, and were skipped, such as {document['example']}"
    if opts.dry_run:
        yield f"  {seen:,} of {checked:,} are seen"
        yield "Nothing was changed"
        return
    filters = ", ".join(map(repr, document["filters"]))
    yield f"  {new:,} recorded in {filters} on {document['address']}"
    yield f"  {read - new - skipped - run_only:,} were there already, or twice in the source"
    if seen < checked:
        yield (
            f"NOT ALL THERE: {checked - seen:,} of {checked:,} are not seen. They were added "
            "later, or the filter has lost them: run the same command again"
        )
        return
    if checked:
        yield f"Verified: all {checked:,} are seen"
    yield "They count as first seen now"
    yield "Does it fit? scrapy bloom check URL says whether a page that was crawled is seen"
    if opts.from_set is not None:
        yield "The SET is as it was. When nothing uses it any more, delete it (UNLINK)"
