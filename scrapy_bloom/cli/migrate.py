"""``scrapy bloom migrate``: what other dupefilters have seen, recorded in a filter.

The source is only read. Recording is idempotent, so a migration that was stopped is started again.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

from scrapy_bloom.bloom import validators
from scrapy_bloom.bloom.client.connection import connect, connect_scrapy_redis
from scrapy_bloom.bloom.errors import BloomError, ConfigurationError, StorageError
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.options import DEFAULTS
from scrapy_bloom.bloom.validators import plural
from scrapy_bloom.cli.check import Identifier
from scrapy_bloom.cli.output import complain, progress
from scrapy_bloom.cli.server import ProjectServer, Stored
from scrapy_bloom.cli.session import CHANGE, CommandSession, ExitCode, option, subcommand
from scrapy_bloom.fingerprinter import ScrapyRedisFingerprinter
from scrapy_bloom.migrate import SeenSource, SetSource, Source, UrlSource, open_file
from scrapy_bloom.settings import RUN

#: Entries of a batch.
BATCH = 1_024
#: Items by the window that they are recorded for.
Items = Mapping[str, Sequence[bytes]]
#: Where scrapy-redis keeps fingerprints, unless SCHEDULER_DUPEFILTER_KEY is set.
SET_KEY = "%(spider)s:dupefilter"
OURS = "scrapy_bloom.ScrapyRedisFingerprinter"


@dataclass(slots=True)
class Counts:
    """How many entries were read.

    Args:
        read: all entries, including those below.
        skipped: those that are no fingerprint or URL.
        run_only: URLs of the window "run", which no filter remembers.
        example: the first that was skipped; "" if none was.
    """

    read: int = 0
    skipped: int = 0
    run_only: int = 0
    example: str = ""


class Target:
    """The filters of some windows.

    Args:
        server: has the filters.
        windows: names of the windows.

    Raises:
        NothingThereError: a filter does not exist, and the settings do not have its window.
        StorageError: the server did not answer.
    """

    def __init__(self, server: ProjectServer, windows: Iterable[str]) -> None:
        self._address, made = server.address, server.filters.by_window
        #: Those that do not exist are made by the project's settings.
        self._blooms, self._stored = dict[str, BloomFilter](), dict[str, Stored]()
        for name in sorted(windows):
            stored = server.look(name)
            if stored is not None:
                self._stored[name], self._blooms[name] = stored, stored.bloom
            elif name in made:
                self._blooms[name] = made[name]
            else:
                raise server.absent(name)
        #: Windows whose filters exist.
        self._existing = set(self._stored)
        self.keys = [bloom.key for bloom in self._blooms.values()]
        self.name = f"{', '.join(map(repr, self.keys))} on {server.address}"

    def warn(self, identifier: Identifier, entries: int) -> None:
        """Warn of filters that do not suit the fingerprinter, or so many entries."""
        for stored in self._stored.values():
            identifier.warn_of(stored)
        (bloom, *others) = self._blooms.values()
        capacity = bloom.session.wanted.config(DEFAULTS).capacity
        if not others and not self._stored and entries > capacity:
            complain(
                f"{bloom.key!r} does not exist yet, and will be made for {capacity:,} URLs: about "
                f"{entries:,} entries do not fit into one layer, and all layers are tested for "
                f"each URL. Set BLOOM_CAPACITY = {entries:_} before: the capacity of a filter that "
                "exists changes with the next generation only"
            )

    def open(self) -> None:
        """Create the filters that do not exist."""
        for bloom in self._blooms.values():
            bloom.open()
        self._existing = set(self._blooms)

    def record(self, items: Items) -> int:
        """Record items; return how many were new.

        Raises:
            StorageError: there is no room for all of them, or the server did not answer.
        """
        new = 0
        for window, batch in items.items():
            bloom = self._blooms[window]
            new += sum(bloom.add_many(batch, if_absent=True))
            if bloom.unrecorded:
                raise StorageError(
                    f"{bloom.key!r} on {self._address} is full and cannot grow, so there is no "
                    "room for what is left: set a larger BLOOM_MAX_MEMORY or BLOOM_GROWTH = 2, "
                    "start a crawl, which applies it, and run the same command again"
                )
        return new

    def count_seen(self, items: Items) -> int:
        """Return how many items are seen; a filter that does not exist has none."""
        return sum(
            sum(self._blooms[window].contains(batch))
            for window, batch in items.items()
            if window in self._existing
        )


@subcommand(
    "record what other dupefilters have seen",
    *CHANGE,
    [
        option(
            "--from-set",
            nargs="?",
            const="",
            metavar="KEY",
            help="the SET that scrapy-redis keeps fingerprints in (by default the spider's)",
        ),
        option(
            "--from-seen",
            metavar="PATH",
            help="Scrapy's requests.seen, or the JOBDIR that it is in",
        ),
        option("--from-urls", metavar="FILE", help="URLs, one a line; - reads them from stdin"),
    ],
    option(
        "--from-server",
        metavar="URL",
        help="server of the SET (by default that of scrapy-redis's settings)",
    ),
    option(
        "--any-fingerprinter",
        action="store_true",
        help="import a SET although REQUEST_FINGERPRINTER_CLASS is not scrapy-redis's",
    ),
    option("--dry-run", action="store_true", help="only read, count and look up"),
    option("--rate", metavar="N", help="entries per second at most"),
    option("--no-verify", action="store_true", help="do not look up all entries at the end"),
)
def migrate(session: CommandSession) -> ExitCode:
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
        source = _open_source(session, identifier, stack)
        for warning in _warnings(session, identifier):
            complain(warning)
        windows = {session.window} if opts.from_urls is None else identifier.windows
        server = stack.enter_context(session.connect(identifier.name))
        target = Target(server, windows)
        target.warn(identifier, source.total)
        return _migrate(session, source, target, server.address)


def _migrate(session: CommandSession, source: Source, target: Target, address: str) -> ExitCode:
    """Record all entries, then look up all of them; a dry run does only the latter."""
    opts, counts = session.opts, Counts()
    new = checked = seen = 0
    entries = f"about {plural(source.total, 'entry', 'entries')} of {source.name}"
    if not opts.dry_run:
        session.confirm(f"Record {entries} in {target.name}")
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
    """Yield the source's items at the rate of ``--rate``, with a progress bar; count them."""
    rate, start, entries = session.opts.rate, time.monotonic(), source.entries()
    with progress(title) as show:
        while batch := list(islice(entries, min(BATCH, rate or BATCH))):
            items = defaultdict[str, list[bytes]](list)
            for entry in batch:
                if isinstance(entry, str):
                    counts.skipped += 1
                    counts.example = counts.example or entry
                else:
                    items[entry[0]].append(entry[1])
            counts.read += len(batch)
            counts.run_only += len(items.pop(RUN, ()))
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


# -- the source --


def _open_source(session: CommandSession, identifier: Identifier, stack: ExitStack) -> Source:
    """Return the source that the options name; the stack closes it.

    Raises:
        ConfigurationError: it does not exist, or is of another kind.
        StorageError: the SET's server did not answer.
    """
    opts = session.opts
    if opts.from_seen is not None:
        return SeenSource(Path(opts.from_seen), session.window)
    if opts.from_urls is not None:
        name = "the standard input" if opts.from_urls == "-" else f"the file {opts.from_urls!r}"
        return UrlSource(_open_urls(opts.from_urls, stack), name, identifier.identify)
    timeout = session.settings.timeout
    if opts.from_server is None:
        connection = connect_scrapy_redis(session.crawler.settings, timeout=timeout)
    else:
        connection = connect(opts.from_server, timeout=timeout, setting="--from-server")
    stack.callback(connection.close)
    key = opts.from_set or set_key(session)
    return SetSource(connection.client, key, connection.label, session.window)


def _open_urls(name: str, stack: ExitStack) -> IO[bytes]:
    """Return a file that can be read more than once: of a pipe, a copy."""
    file: IO[bytes] = sys.stdin.buffer
    if name != "-":
        file = stack.enter_context(open_file(Path(name), "--from-urls"))
    if file.seekable():
        return file
    copy = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
    shutil.copyfileobj(file, copy)
    copy.seek(0)
    return copy


def set_key(session: CommandSession) -> str:
    """Return the key of the spider's SET, as scrapy-redis makes it."""
    spider = getattr(session.crawler.spidercls, "name", None)
    template = session.crawler.settings.get("SCHEDULER_DUPEFILTER_KEY") or SET_KEY
    if spider is None and "%(spider)s" in template:
        raise ConfigurationError(
            "each spider has a SET of its own: say which with --spider, or --from-set KEY"
        )
    return str(template % {"spider": spider})


def _warnings(session: CommandSession, identifier: Identifier) -> Iterator[str]:
    """Yield warnings of entries that crawls with this fingerprinter may not find.

    Raises:
        ConfigurationError: crawls certainly do not find them.
    """
    opts, name = session.opts, identifier.name
    is_ours = isinstance(identifier.fingerprinter, ScrapyRedisFingerprinter)
    if opts.from_set is not None and not is_ours:
        text = (
            f"REQUEST_FINGERPRINTER_CLASS is {name}, whose fingerprints differ from scrapy-redis's:"
            f" what is imported would never be found. Set it to {OURS!r}"
        )
        if not opts.any_fingerprinter:
            raise ConfigurationError(
                f"{text}; or add --any-fingerprinter, if that class does make what is in the SET"
            )
        yield text
    if opts.from_seen is not None and is_ours:
        yield (
            f"REQUEST_FINGERPRINTER_CLASS is {name}: what a crawl with Scrapy's own fingerprinter "
            "has left in requests.seen is never found with it"
        )
    if opts.from_urls is None and session.settings.recrawl_rules and not session.is_chosen:
        yield (
            "BLOOM_RECRAWL_RULES match URLs, which fingerprints do not have: all are recorded for "
            f"the window {session.window!r}, and requests of other windows do not find them"
        )
