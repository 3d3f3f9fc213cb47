"""``scrapy bloom migrate``: what other dupefilters have seen, recorded in a filter.

The source is only read. What is recorded already is not recorded twice, so a migration may be begun
again at any time; it goes on where it was stopped, if that is known.
"""

import argparse
import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

from scrapy_bloom.cli.lookup import Identifier
from scrapy_bloom.cli.origin import on_kind, open_source, states
from scrapy_bloom.cli.session import Session, complain, print_json
from scrapy_bloom.cli.target import Target
from scrapy_bloom.core import values
from scrapy_bloom.errors import BloomError, ConfigurationError, StorageError
from scrapy_bloom.migration.batches import END, Source
from scrapy_bloom.migration.progress import Pace, State, StateFile, resume

#: Exit codes: all is recorded; some entries are no fingerprints; some are not seen afterwards.
FINE, SOME, FAILED = 0, 1, 2
#: Entries of each batch that a dry run asks about.
SAMPLE = 128
#: What a report has of the state; a dry run knows nothing of the rest.
NUMBERS = ("read", "rejected", "incomplete", "run_only", "example")
RECORDED = ("new", "known")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what only this subcommand has."""
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
    parser.add_argument("--dry-run", action="store_true", help="only read, count, and ask a sample")
    parser.add_argument("--rate", metavar="N", help="entries per second at most")
    parser.add_argument(
        "--restart", action="store_true", help="begin anew, not where the last call was stopped"
    )
    parser.add_argument(
        "--no-verify",
        action="store_true",
        help="do not ask for all entries at the end, unless this goes on where a call was stopped",
    )


def run(session: Session) -> int:
    """Do what the options ask; return the exit code.

    Raises:
        ConfigurationError: the options or settings are wrong, or what is read is not what it is
            said to be.
        StorageError: a server did not answer; what was recorded stays.
    """
    opts = session.opts
    rate = None
    if opts.rate is not None:
        rate = values.whole_number("--rate", opts.rate, 1, 10**9, "entries per second at most")
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
    def __init__(self, session: Session, source: Source, target: Target, pace: Pace) -> None:
        self._session, self._source, self._target, self._pace = session, source, target, pace
        self._total = source.total()
        self._is_unsaved = False
        name = hashlib.sha256(f"{source.name}\n{target.name}".encode()).hexdigest()[:16]
        self._file = StateFile(states() / f"{name}.json")

    # -- passes --

    def look(self) -> int:
        """Read the source, and ask about some of it."""
        state, asked, seen = State(self._source.identity(), "", size=self._source.size()), 0, 0
        with self._session.progress("entries read", self._total) as advance:
            for batch in self._source.batches("", self._pace.batch):
                state = state.after(batch, 0)
                sample = {window: items[:SAMPLE] for window, items in batch.items.items()}
                asked += sum(map(len, sample.values()))
                seen += self._target.count_seen(sample, only_if_there=True)
                advance(batch.read)
                self._pace.spend(batch.read)
        self._refuse_changes(state, state.read)
        self._advise(state.read)
        return self._report(state, {"dry_run": True, "asked": asked, "seen": seen})

    def run(self) -> int:
        """Record all of it, and see whether it is there."""
        self._advise(self._total)
        size = "" if self._total is None else f"about {self._total:,} entries of "
        if not self._session.confirm(f"Record {size}{self._source.name} in {self._target.name}"):
            return SOME
        start = self._start()
        state = self._record(start)
        checks: dict[str, Any] = {"checked": 0, "missing": 0}
        # Nothing else tells whether what was recorded by an earlier call is there, and from here.
        is_resumed = bool(start.position)
        if self._source.readable_again and (is_resumed or not self._session.opts.no_verify):
            checks = self._verify(state)
        self._file.delete()
        return self._report(state, checks)

    def _start(self) -> State:
        """Return where to start."""
        self._target.open()
        fresh = State(
            source=self._source.identity(),
            target=self._target.identity,
            expected=self._target.count(),
            size=self._source.size(),
        )
        if not fresh.source:
            complain(f"{self._source.name} has no positions: if this is stopped, begin again")
        if self._session.opts.restart:
            return fresh
        state, reason = resume(self._file.load(), fresh)
        if reason:
            complain(f"this begins again, because {reason}")
        if state.read:
            verified = ", and verifies them, too" if self._session.opts.no_verify else ""
            complain(
                f"this goes on after {state.read:,} entries{verified} (--restart begins again)"
            )
        return state

    def _record(self, state: State) -> State:
        """Record what comes after a state; return the last one."""
        if state.position == END:
            return state
        with self._session.progress("entries recorded", self._total) as advance:
            advance(state.read)
            try:
                for batch in self._source.batches(state.position, self._pace.batch):
                    state = state.after(batch, self._target.claim(batch.items))
                    if state.position != END:
                        self._save(state)
                    advance(batch.read)
                    self._pace.spend(batch.read)
            except (BloomError, KeyboardInterrupt):
                then = "goes on" if self._is_resumable(state) else "begins again"
                complain(f"stopped after {state.read:,} entries: the same command {then}")
                raise
        self._refuse_changes(state, state.read)
        self._save(state)
        return state

    def _verify(self, state: State) -> dict[str, Any]:
        """Read it all again, and ask for it; return how many were asked for, and are not seen."""
        read = asked = seen = 0
        with self._session.progress("entries checked", state.read) as advance:
            try:
                for batch in self._source.batches("", self._pace.batch):
                    read += batch.read
                    asked += sum(map(len, batch.items.values()))
                    seen += self._target.count_seen(batch.items)
                    advance(batch.read)
                    self._pace.spend(batch.read)
            except (BloomError, KeyboardInterrupt):
                then = "verifies them" if self._is_resumable(state) else "begins again"
                complain(f"stopped after all are recorded: the same command {then}")
                raise
        self._refuse_changes(state, read)
        return {"checked": asked, "missing": max(asked, state.new) - seen}

    def _refuse_changes(self, state: State, read: int) -> None:
        """Refuse what is not as it was when it was begun, as a SET that was deleted meanwhile.

        Args:
            state: what is known of it.
            read: entries that were read from its beginning to its end.
        """
        if self._source.identity() != state.source:
            raise StorageError(
                f"{self._source.name} has changed while it was read, or its server was started "
                "anew: stop what writes there, and run the same command again"
            )
        left = min(read, self._source.size())
        if left < state.size:
            if not self._session.opts.dry_run:
                self._file.delete()  # its position may be one of a SET that is no more
            raise StorageError(
                f"{self._source.name} had {state.size:,} entries, of which {left:,} are left: it "
                "was deleted, made anew or flushed while it was read. What is recorded stays. Stop "
                "what does that (a scrapy-redis crawl that ends), restore it, and run the same "
                "command again"
            )

    def _is_resumable(self, state: State) -> bool:
        return bool(state.source) and not self._is_unsaved

    def _save(self, state: State) -> None:
        if not state.source or self._is_unsaved:
            return
        try:
            self._file.save(state)
        except OSError as error:
            self._is_unsaved = True
            complain(f"if this is stopped, begin again: no state can be stored ({error.strerror})")

    # -- what is said --

    def _advise(self, entries: int | None) -> None:
        sentence = self._target.advise(entries or 0)
        if sentence:
            complain(sentence)

    def _report(self, state: State, more: dict[str, Any]) -> int:
        numbers = NUMBERS if "dry_run" in more else RECORDED + NUMBERS
        document = {
            "address": self._target.address,
            "filters": self._target.keys,
            "source": self._source.name,
            **{name: getattr(state, name) for name in numbers},
            **more,
        }
        if self._session.tables is None:
            print_json(document)
        else:
            self._session.tables.show("\n".join(self._lines(state, document)))
        if document.get("missing"):
            return FAILED
        return SOME if state.rejected else FINE

    def _lines(self, state: State, document: dict[str, Any]) -> Iterator[str]:
        is_dry = "dry_run" in document
        kind = "fingerprints" if self._session.opts.from_urls is None else "URLs"
        yield f"{self._source.name}: {state.read:,} entries"
        if is_dry:
            yield f"  {document['seen']:,} of {document['asked']:,} that were asked for are seen"
        else:
            yield f"  {state.new:,} recorded in {self._target.name}"
            yield f"  {state.known:,} were there already, or twice in the source"
        if state.run_only:
            yield f"  {state.run_only:,} have the window 'run', which no filter remembers"
        if state.incomplete:
            yield f"  {state.incomplete:,} cut off, as by a crawl that was killed, and left out"
        if state.rejected:
            yield f"  {state.rejected:,} are no {kind}, and left out ({state.example})"
        if is_dry:
            yield "Nothing was changed"
            return
        yield from self._outcome(document)

    def _outcome(self, document: dict[str, Any]) -> Iterator[str]:
        if document["missing"]:
            yield (
                f"NOT ALL THERE: {document['missing']:,} of {document['checked']:,} are not seen. "
                "They came in meanwhile, or the filter has lost them: run the same command again"
            )
            return
        if document["checked"]:
            yield f"Verified: all {document['checked']:,} are seen"
        yield from self._target.until()
        yield "Does it fit? scrapy bloom check URL says whether a page that was crawled is seen"
        if self._session.opts.from_set is not None:
            yield "The SET is as it was. When nothing uses it any more, delete it (UNLINK)"
