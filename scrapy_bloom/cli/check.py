"""``scrapy bloom check``: whether URLs are seen, by the rules of the project's crawls."""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from scrapy import Request
from scrapy.utils.python import global_object_name

from scrapy_bloom.bloom.errors import ConfigurationError, shown
from scrapy_bloom.bloom.model.hashing import to_bytes
from scrapy_bloom.bloom.protocol.claim_protocol import StoredClaim
from scrapy_bloom.bloom.protocol.info import ItemInfo
from scrapy_bloom.cli.output import Column, Document, complain, minute, to_json, with_dates
from scrapy_bloom.cli.server import Stored
from scrapy_bloom.cli.session import (
    FILTER,
    CommandSession,
    ExitCode,
    fingerprinter_of,
    option,
    subcommand,
)
from scrapy_bloom.crawl import advice
from scrapy_bloom.crawl.identity import of_own_key
from scrapy_bloom.fingerprinter import MAX_VERSION, bounded, version_of, versioned
from scrapy_bloom.migrate import parse_line
from scrapy_bloom.settings import RUN

#: URLs that are looked up together.
BATCH = 4096
#: Of URLs of the window "run", which no filter has.
NOT_SEEN = ItemInfo(seen=False, recorded_after=0, until=0, window=RUN)


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

    def warn_of(self, stored: Stored) -> None:
        """Warn of a filter whose fingerprints are another class's."""
        if warning := advice.on_fingerprinter(stored.snapshot.header.fingerprinter, self.name):
            complain(str(warning))


#: What is looked up: its kind (``url``, ``bloom_key`` or ``item``) and text, and the window whose
#: filter is asked, as JSON has them; and what that filter has of it.
Query = tuple[Document, bytes]


def _state(info: ItemInfo, claim: StoredClaim | None) -> Document:
    """Return the state of what was looked up; with a claim, a crawl crawls it now or later."""
    if claim is None:
        return {"state": "seen" if info.seen else "new"}
    state, time = ("failed", "due") if claim.was_tried else ("claimed", "claimed")
    claimed = {"attempts": claim.attempt} | with_dates({time: claim.time})
    return {"state": "seen" if info.seen else state} | claimed


def _since(row: Document) -> str:
    if row["seen"]:
        return f"{minute(row['recorded_after'])} or later"
    return minute(row.get("claimed", 0))


def _until(row: Document) -> str:
    if not row["seen"]:
        return minute(row.get("due", 0))
    if "attempts" in row:  # it has a claim
        return "pending: a crawl fetches it again"
    return minute(row["until"]) or ("never" if row["window"] is None else "in a later run")


ANSWERS: Sequence[Column[Document]] = (
    Column("", lambda row: row["state"], is_left=True),
    Column("since (UTC)", _since, is_left=True),
    Column("new again, or next try (UTC)", _until, is_left=True),
    # The URL, the key or the item.
    Column("", lambda row: str(next(iter(row.values()))), is_left=True),
)


@subcommand(
    "say whether URLs are seen, claimed or failed, since when and until when",
    *FILTER,
    option("urls", nargs="*", metavar="URL", help="- reads them from stdin"),
    option(
        "--bloom-key",
        action="append",
        default=[],
        metavar="TEXT",
        help='meta["bloom_key"] of a request (may be repeated)',
    ),
    option(
        "--bloom-version",
        metavar="TEXT",
        help='meta["bloom_version"] of the URLs and keys; without it, whether any was crawled',
    ),
    option(
        "--item",
        action="append",
        default=[],
        metavar="TEXT",
        help="item as the library has it, such as add(TEXT) records (may be repeated)",
    ),
)
def check(session: CommandSession) -> ExitCode:
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
    identifier, asked = Identifier(session), Counter[str]()
    with session.connect() as server:
        filters = {name: server.read(name) for name in identifier.windows}
        if opts.urls or opts.bloom_key:
            for stored in filters.values():
                identifier.warn_of(stored)
        answers = _answer(_queries(opts, identifier, version, asked), filters, asked)
        session.report_list(
            {"address": server.address},
            "answers",
            answers,
            ANSWERS,
            lambda _: f"{asked['seen']:,} of {asked.total():,} are seen",
        )
    return ExitCode.of(asked["seen"] == asked.total())


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
    opts: argparse.Namespace, identifier: Identifier, version: bytes, asked: Counter[str]
) -> Iterator[Query]:
    """Yield all queries; count lines of the standard input that are no URL."""

    def query(kind: str, text: str, window: str, item: bytes) -> Query:
        return {kind: text, "name": window}, versioned(item, version) if version else item

    for key in opts.bloom_key:
        yield query("bloom_key", key, identifier.default, of_own_key(to_bytes(key)))
    for item in opts.item:
        yield {"item": item, "name": identifier.default}, to_bytes(item)  # it has no version
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
                asked["none"] += 1


def _answer(
    queries: Iterator[Query], filters: Mapping[str, Stored], asked: Counter[str]
) -> Iterator[Document]:
    """Yield the answers to queries, and count these; each filter is asked for many at once."""
    while batch := list(islice(queries, BATCH)):
        known = dict[tuple[str, bytes], tuple[ItemInfo, StoredClaim | None]]()
        for window, stored in filters.items():
            if items := [item for head, item in batch if head["name"] == window]:
                infos = dict(zip(items, stored.bloom.find_all(items), strict=True))
                claims = stored.claims_of(items)
                known |= {(window, i): (info, claims.get(i)) for i, info in infos.items()}
        for head, item in batch:
            info, claim = known.get((head["name"], item), (NOT_SEEN, None))
            answer = head | to_json(info) | _state(info, claim)
            asked[answer["state"]] += 1
            yield answer
