"""``scrapy bloom check``: whether URLs are seen, by the rules of the project's crawls."""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from scrapy import Request
from scrapy.utils.python import global_object_name

from scrapy_bloom.bloom.errors import ConfigurationError, shown
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.model.hashing import to_bytes
from scrapy_bloom.bloom.protocol.claim_protocol import StoredClaim
from scrapy_bloom.bloom.protocol.info import ItemInfo
from scrapy_bloom.bloom.protocol.ring_store import Snapshot
from scrapy_bloom.cli import render
from scrapy_bloom.cli.session import (
    CommandSession,
    ExitCode,
    Server,
    add_filter_options,
    complain,
    fingerprinter_of,
    print_json_list,
    to_json,
    with_dates,
)
from scrapy_bloom.cli.stored_claims import claims_of
from scrapy_bloom.crawl import advice
from scrapy_bloom.crawl.identity import of_own_key
from scrapy_bloom.fingerprinter import MAX_VERSION, bounded, version_of, versioned
from scrapy_bloom.migrate import parse_line
from scrapy_bloom.settings import RUN

HELP = "say whether URLs are seen, claimed or failed, since when and until when"
#: URLs that are looked up together.
BATCH = 4096


class Identifier:
    """Finds a URL's window and fingerprint as a crawl does."""

    def __init__(self, session: CommandSession) -> None:
        crawler, settings = session.crawler, session.settings
        self.fingerprinter = fingerprinter_of(crawler)
        #: Import path of the class that makes the fingerprints.
        self.name = global_object_name(type(self.fingerprinter))
        #: The window of URLs that no rule matches.
        self.default = session.window
        #: None if the options name the filter.
        self._windows = None if session.is_chosen else settings.windows

    @property
    def windows(self) -> set[str]:
        """The windows that URLs may have, and that have a filter."""
        rules = () if self._windows is None else self._windows.rules
        return {self.default, *(name for _, name in rules)} - {RUN}

    def identify(self, url: str) -> tuple[str, bytes]:
        """Return a URL's window and fingerprint. Rules that ask for a depth do not match.

        Raises:
            ConfigurationError: the text is no URL.
        """
        try:
            request = Request(url)
        except ValueError as error:
            raise ConfigurationError(f"{url!r:.100} is no URL: {error}") from None
        # A URL alone has no depth.
        window = self.default if self._windows is None else self._windows.name(request.url, None)
        return window, self.item(request)

    def item(self, request: Request) -> bytes:
        """Return a request's fingerprint, whatever its ``meta`` says."""
        return bounded(self.fingerprinter.fingerprint(request))

    def warn_of(self, snapshot: Snapshot) -> None:
        """Warn of a filter whose fingerprints are another class's."""
        if warning := advice.on_fingerprinter(snapshot.header.fingerprinter, self.name):
            complain(str(warning))


@dataclass(frozen=True, slots=True)
class Answer:
    """What is known of a URL, key or item.

    Args:
        info: what the filter remembers of it.
        claim: its claim, if it is not seen: it is crawled now, or has failed.
    """

    info: ItemInfo
    claim: StoredClaim | None = None

    @property
    def state(self) -> str:
        """One of ``seen``, ``new``, ``claimed`` and ``failed``."""
        if self.info.seen or self.claim is None:
            return "seen" if self.info.seen else "new"
        return "failed" if self.claim.was_tried else "claimed"

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        found: dict[str, Any] = to_json(self.info) | {"state": self.state}
        if self.claim is None:
            return found
        times = {"due": self.claim.time} if self.claim.was_tried else {"claimed": self.claim.time}
        return found | {"attempts": self.claim.attempt} | with_dates(times)

    def line(self, text: str) -> str:
        """Return it as a line of a table."""
        if self.claim is None:
            return render.item_line(text, self.info)
        if self.claim.was_tried:
            return render.claim_line("failed", text, due=self.claim.time)
        return render.claim_line("claimed", text, since=self.claim.time)


@dataclass(frozen=True, slots=True)
class Query:
    """One lookup.

    Args:
        kind: ``url``, ``bloom_key`` or ``item``.
        text: that URL, key or item.
        window: whose filter is asked.
        item: what that filter has of it.
    """

    kind: str
    text: str
    window: str
    item: bytes


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_filter_options(parser)
    parser.add_argument("urls", nargs="*", metavar="URL", help="- reads them from stdin")
    parser.add_argument(
        "--bloom-key",
        action="append",
        default=[],
        metavar="TEXT",
        help='meta["bloom_key"] of a request (may be repeated)',
    )
    parser.add_argument(
        "--bloom-version",
        metavar="TEXT",
        help='meta["bloom_version"] of the URLs and keys; without it, whether any was crawled',
    )
    parser.add_argument(
        "--item",
        action="append",
        default=[],
        metavar="TEXT",
        help="item as the library has it, such as add(TEXT) records (may be repeated)",
    )


def run(session: CommandSession) -> ExitCode:
    """Print for each URL, key and item whether it is seen.

    Raises:
        NothingThereError: there is no filter.
        ConfigurationError: there is nothing to look up, or a text is not a URL.
        StorageError: the server did not answer.
    """
    opts = session.opts
    if not (opts.urls or opts.bloom_key or opts.item):
        raise ConfigurationError(
            "give URLs to check, - to read them from stdin, --bloom-key or --item"
        )
    version = _version(opts.bloom_version)
    identifier, totals = Identifier(session), {"asked": 0, "seen": 0}
    with session.connect() as server:
        for name in identifier.windows:
            snapshot = server.read(name)
            if opts.urls or opts.bloom_key:
                identifier.warn_of(snapshot)
        filters = {name: server.filter(name) for name in identifier.windows}
        queries = _queries(opts, identifier, version)
        answers = _answer(queries, partial(_look_up, server, filters), totals)
        if opts.json:
            documents = (
                {query.kind: query.text, "name": query.window, **answer.document()}
                for query, answer in answers
            )
            print_json_list({"address": server.address}, "answers", documents)
        else:
            print(render.ITEM_HEADING)
            for query, answer in answers:
                print(answer.line(query.text))
            print(f"{totals['seen']:,} of {totals['asked']:,} are seen")
    return ExitCode.of(totals["asked"] == totals["seen"])


def _version(text: str | None) -> bytes:
    """Return a version as filters have it; empty for none."""
    version = version_of({"bloom_version": text})
    if text is not None and not version:
        raise ConfigurationError(
            f"--bloom-version is a text of 1 to {MAX_VERSION} bytes in UTF-8, as "
            f'meta["bloom_version"]; got {shown(text)}'
        )
    return version


def _queries(
    opts: argparse.Namespace, identifier: Identifier, version: bytes
) -> Iterator[Query | None]:
    """Yield all queries; None for a line of the standard input that is no URL."""

    def query(kind: str, text: str, window: str, item: bytes) -> Query:
        return Query(kind, text, window, versioned(item, version) if version else item)

    for key in opts.bloom_key:
        yield query("bloom_key", key, identifier.default, of_own_key(to_bytes(key)))
    for item in opts.item:
        yield Query("item", item, identifier.default, to_bytes(item))
    for url in opts.urls:
        if url != "-":
            yield query("url", url.strip(), *identifier.identify(url.strip()))
            continue
        for line in filter(bytes.strip, sys.stdin.buffer):
            try:
                text = parse_line(line)
                yield query("url", text, *identifier.identify(text))
            except ConfigurationError as error:
                complain(str(error))
                yield None


def _answer(
    queries: Iterator[Query | None],
    look_up: Callable[[Sequence[Query]], Iterable[Answer]],
    totals: dict[str, int],
) -> Iterator[tuple[Query, Answer]]:
    """Yield each query with its answer; count queries and answers that are "seen"."""
    while batch := list(islice(queries, BATCH)):
        found = [query for query in batch if query is not None]
        totals["asked"] += len(batch)
        for query, answer in zip(found, look_up(found), strict=True):
            totals["seen"] += answer.info.seen
            yield query, answer


def _look_up(
    server: Server, filters: Mapping[str, BloomFilter], queries: Sequence[Query]
) -> Iterator[Answer]:
    """Yield the answers to queries: each filter is asked for all of its own at once."""
    answers = dict[tuple[str, bytes], Answer]()
    for window, bloom in filters.items():
        if items := [query.item for query in queries if query.window == window]:
            infos = dict(zip(items, bloom.find_all(items), strict=True))
            claims = claims_of(server, bloom, [i for i in items if not infos[i].seen])
            answers |= {(window, i): Answer(info, claims.get(i)) for i, info in infos.items()}
    # No filter has the URLs of the window "run".
    not_seen = Answer(ItemInfo(seen=False, recorded_after=0, until=0, window=RUN))
    return (answers.get((query.window, query.item), not_seen) for query in queries)
