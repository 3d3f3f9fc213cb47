"""``scrapy bloom migrate``: what other dupefilters have seen, recorded in a filter.

The source is only read. Recording is idempotent, so a migration that was stopped is started again.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict
from typing import Any

from scrapy_bloom.bloom import validators
from scrapy_bloom.bloom.errors import BloomError, ConfigurationError, StorageError
from scrapy_bloom.cli.check import Identifier
from scrapy_bloom.cli.migrate_source import on_kind, open_source
from scrapy_bloom.cli.migrate_target import Target
from scrapy_bloom.cli.session import (
    CommandSession,
    ExitCode,
    add_change_options,
    complain,
    print_json,
)
from scrapy_bloom.migrate.batches import MemberBatch, MemberCounts, Pace, Source

HELP = "record what other dupefilters have seen"
#: Entries of each batch that a dry run looks up.
SAMPLE = 128


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
    parser.add_argument(
        "--dry-run", action="store_true", help="only read, count, and look up a sample"
    )
    parser.add_argument("--rate", metavar="N", help="entries per second at most")
    parser.add_argument(
        "--no-verify", action="store_true", help="do not look up all entries at the end"
    )


def run(session: CommandSession) -> ExitCode:
    """Do what the options ask.

    Raises:
        ConfigurationError: the options or settings are wrong, or what is read is not what it is
            said to be.
        StorageError: a server did not answer; what was recorded stays.
    """
    opts = session.opts
    rate = None
    if opts.rate is not None:
        rate = validators.whole_number("--rate", opts.rate, 1, 10**9, "entries per second at most")
    if opts.from_server is not None and opts.from_set is None:
        raise ConfigurationError("--from-server is where the SET of --from-set is: add that")
    identifier = Identifier(session)
    with ExitStack() as stack:
        source = open_source(session, identifier, stack)
        for warning in on_kind(session, identifier.name):
            complain(warning)
        windows = {session.window} if opts.from_urls is None else identifier.windows
        target = stack.enter_context(closing(Target(session, identifier, windows)))
        for warning in target.warnings():
            complain(warning)
        migration = _Migration(session, source, target, Pace(rate))
        return migration.look() if opts.dry_run else migration.run()


# -- the migration --


class _Migration:
    def __init__(self, session: CommandSession, source: Source, target: Target, pace: Pace) -> None:
        self._session, self._source, self._target, self._pace = session, source, target, pace
        self._total = source.total()
        #: Items that were recorded, looked up, and seen then.
        self._new = self._asked = self._seen = 0

    def look(self) -> ExitCode:
        """Read the source, and look up some of it."""
        counts = self._read("entries read", self._total, self._look_up_sample)
        self._advise(counts.read)
        return self._report(counts, {"dry_run": True, "asked": self._asked, "seen": self._seen})

    def run(self) -> ExitCode:
        """Record all of it, and see whether it is there."""
        self._advise(self._total)
        entries = f"about {self._total:,} entries of {self._source.name}"
        if not self._session.confirm(f"Record {entries} in {self._target.name}"):
            return ExitCode.NO
        self._target.open()
        try:
            counts = self._read("entries recorded", self._total, self._record)
            if not self._session.opts.no_verify:
                self._read("entries verified", counts.read, self._look_up)
        except (BloomError, KeyboardInterrupt):
            complain(f"stopped after {self._new:,} were recorded: the same command can be repeated")
            raise
        known = counts.read - self._new - counts.skipped - counts.run_only
        checks = {"checked": self._asked, "missing": self._asked - self._seen}
        return self._report(counts, {"new": self._new, "known": known, **checks})

    def _read(self, title: str, total: int, use: Callable[[MemberBatch], None]) -> MemberCounts:
        """Read the source to its end; return what was in it.

        Raises:
            StorageError: it has changed since the start, so that some of it may not have been read.
        """
        counts = MemberCounts()
        with self._session.progress(title, total) as advance:
            for batch in self._source.batches(self._pace.batch):
                use(batch)
                counts.add(batch)
                advance(batch.read)
                self._pace.spend(batch.read)
        problem = self._source.problem(counts.read)
        if problem:
            raise StorageError(f"{problem}, and run the same command again")
        return counts

    def _record(self, batch: MemberBatch) -> None:
        self._new += self._target.claim(batch.items)

    def _look_up(self, batch: MemberBatch) -> None:
        self._asked += sum(map(len, batch.items.values()))
        self._seen += self._target.count_seen(batch.items)

    def _look_up_sample(self, batch: MemberBatch) -> None:
        sample = {window: items[:SAMPLE] for window, items in batch.items.items()}
        self._asked += sum(map(len, sample.values()))
        self._seen += self._target.count_seen(sample, only_if_there=True)

    # -- what is said --

    def _advise(self, entries: int) -> None:
        sentence = self._target.advise(entries)
        if sentence:
            complain(sentence)

    def _report(self, counts: MemberCounts, more: dict[str, Any]) -> ExitCode:
        document = {
            "address": self._target.address,
            "filters": self._target.keys,
            "source": self._source.name,
            **asdict(counts),
            **more,
        }
        if self._session.printer is None:
            print_json(document)
        else:
            self._session.printer.show("\n".join(self._lines(counts, document)))
        if document.get("missing"):
            return ExitCode.FAILED
        return ExitCode.NO if counts.skipped else ExitCode.FINE

    def _lines(self, counts: MemberCounts, document: dict[str, Any]) -> Iterator[str]:
        kind = "fingerprints" if self._session.opts.from_urls is None else "URLs"
        yield f"{self._source.name}: {counts.read:,} entries"
        if "dry_run" in document:
            yield f"  {document['seen']:,} of {document['asked']:,} that were looked up are seen"
        else:
            yield f"  {document['new']:,} recorded in {self._target.name}"
            yield f"  {document['known']:,} were there already, or twice in the source"
        if counts.run_only:
            yield f"  {counts.run_only:,} have the window 'run', which no filter remembers"
        if counts.skipped:
            yield f"  {counts.skipped:,} are no {kind}, and were skipped, such as {counts.example}"
        if "dry_run" in document:
            yield "Nothing was changed"
        else:
            yield from self._outcome(document)

    def _outcome(self, document: dict[str, Any]) -> Iterator[str]:
        if document["missing"]:
            yield (
                f"NOT ALL THERE: {document['missing']:,} of {document['checked']:,} are not seen. "
                "They were added later, or the filter has lost them: run the same command again"
            )
            return
        if document["checked"]:
            yield f"Verified: all {document['checked']:,} are seen"
        yield from self._target.until()
        yield "Does it fit? scrapy bloom check URL says whether a page that was crawled is seen"
        if self._session.opts.from_set is not None:
            yield "The SET is as it was. When nothing uses it any more, delete it (UNLINK)"
