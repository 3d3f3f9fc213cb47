"""``scrapy bloom recrawl``: leaves URLs for the next crawl, as a worker that is gone would."""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scrapy import Request, Spider
from scrapy.link import Link
from scrapy.spiders import CrawlSpider

from scrapy_bloom.bloom.errors import BloomError, ConfigurationError, StorageError, shown
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.protocol import claim_protocol
from scrapy_bloom.bloom.protocol.cached_ring import Verdict
from scrapy_bloom.bloom.validators import plural
from scrapy_bloom.cli.check import Identifier
from scrapy_bloom.cli.output import Column, Document, complain, printable, progress
from scrapy_bloom.cli.server import (
    FoundClaim,
    Stored,
    url_of,
    with_texts,
    without_credentials,
)
from scrapy_bloom.cli.session import FILTER, CommandSession, ExitCode, option, subcommand
from scrapy_bloom.crawl import request_codec, workers
from scrapy_bloom.crawl.tracker import META, key_of, set_claims
from scrapy_bloom.fingerprinter import Key
from scrapy_bloom.migrate import open_file, parse_line
from scrapy_bloom.settings import CRAWLED, RUN

#: URLs that are left in one round.
BATCH = 1_000
#: Wrong lines that are shown.
MAX_NAMED = 20
#: Stands in the claims in the place of a nonce.
NONCE = "recrawl"
#: What becomes of a URL, as JSON has it: the next crawl crawls it; it had failed, and the next
#: crawl tries its request again; a worker has it or has left it, so that it is crawled in any case.
LEFT, DUE, CLAIMED = "left", "due", "claimed"
STATES = {LEFT: "will be crawled", DUE: "failed, is due", CLAIMED: "claimed already"}
COLUMNS: Sequence[Column[Document]] = (
    Column("", lambda row: STATES[row["state"]], is_left=True),
    Column("", lambda row: printable(row["url"]), is_left=True),
)


@subcommand(
    "let the next crawl, or one that runs, crawl URLs again, whether or not they are seen",
    *FILTER,
    option("urls", nargs="*", metavar="URL", help="pages; -s BLOOM_RECRAWL_RULES names parts"),
    option("--file", metavar="FILE", help="URLs, one a line; - is the standard input"),
    option("--failed", action="store_true", help="all pages that failed, now"),
    option(
        "--callback",
        metavar="NAME",
        help="method of the spider that gets the pages. By default, a page that failed goes where "
        "it would have gone, and others to the spider's parse; in a CrawlSpider, where a link to "
        "them goes by the first rule that matches",
    ),
)
def recrawl(session: CommandSession) -> ExitCode:
    """Leave URLs for the next crawl.

    Raises:
        NothingThereError: a filter is missing.
        ConfigurationError: settings or options are wrong.
        StorageError: the server did not answer; some URLs may be left.
    """
    opts = session.opts
    if not (opts.urls or opts.file or opts.failed):
        raise ConfigurationError(
            "give URLs to crawl again, a file of them with --file, or --failed for all that failed"
        )
    spider, identifier = _spider(session), Identifier(session)
    reader = TargetReader(spider, _callback(spider, opts.callback), identifier)
    targets, wrong = read_targets(reader, opts.urls, opts.file)
    if wrong:
        complain(f"{plural(wrong, 'URL is', 'URLs are')} wrong, and none is crawled again")
        return ExitCode.NO
    reader.warn_of_rules(targets)
    with session.connect() as server:
        filters = session.stored(server)
        for target in targets:
            if target.key[0] not in filters:
                raise server.absent(target.key[0])
        for stored in filters.values():
            identifier.warn_of(stored)
        items = {target.item for target in targets}
        pending = [*pending_targets(reader, filters.values(), items, failed=opts.failed)]
        found = {target.item for target in pending}
        new = (target for target in targets if target.item not in found)
        targets = [*{target.key: target for target in chain(pending, new)}.values()]
        states = _leave(session, filters, targets)
        where = f"{server.key(session.window)} on {server.address}"
        counts = {state: [*states.values()].count(state) for state in STATES}
        head = {"address": server.address, "spider": spider.name} | counts
        rows = (
            {"url": without_credentials(one.url), "name": one.key[0], "state": states[one]}
            for one in targets
        )
        text = f"{where}: {_summary(spider.name, counts)}"
        if counts[LEFT] and opts.callback is None and not isinstance(spider, CrawlSpider):
            text += ". They go to parse: --callback names another method"
        session.report_list(head, "urls", rows, COLUMNS, lambda _: text)
    return ExitCode.FINE


def _summary(spider: str, counts: Mapping[str, int]) -> str:
    urls = plural(counts[LEFT] + counts[DUE], "URL is", "URLs are")
    text = f"{urls} left for the next crawl of {spider!r}, or one that runs now"
    if counts[CLAIMED]:
        text += f"; {counts[CLAIMED]:,} are claimed already: a worker crawls them now, or they wait"
        text += " for the next crawl"
    return text


# -- the spider --


def _spider(session: CommandSession) -> Spider:
    """Return the spider that will crawl, without making it: it may need arguments."""
    cls = session.crawler.spidercls
    if not getattr(cls, "name", None):
        listed = ", ".join(session.spiders) or "none"
        raise ConfigurationError(
            f"say which spider crawls the URLs with --spider (there are: {listed})"
        )
    if not session.settings.makes_claims:
        raise ConfigurationError(
            f'BLOOM_REMEMBER is "{session.settings.remember}": its crawls keep no claims, and '
            f'would not find the URLs. Set BLOOM_REMEMBER = "{CRAWLED}", which uses the same '
            "filter, or have the spider yield the URLs with dont_filter=True"
        )
    return cls.__new__(cls)


def _callback(spider: Spider, name: str | None) -> Any:
    """Return the method of a name; None for the default, which the spider must have."""
    cls = type(spider)
    to_parse = name == "parse" or (name is None and not isinstance(spider, CrawlSpider))
    if to_parse and cls.parse is Spider.parse:
        raise ConfigurationError(
            f"spider {cls.name!r} has no parse: say which method gets the pages with --callback"
        )
    try:
        return None if name is None else request_codec.method_of(spider, name)
    except ValueError as error:
        raise ConfigurationError(f"--callback: {error} {cls.name!r}") from None


# -- the URLs --


@dataclass(frozen=True, slots=True)
class RecrawlTarget:
    """A URL to crawl again.

    Args:
        url: the URL.
        key: its window and fingerprint.
        item: its fingerprint; not that of its version, or of a key of its own.
        request: its request as it is stored.
        is_pending: whether it has a claim.
    """

    url: str
    key: Key
    item: bytes
    request: str
    is_pending: bool = False


class TargetReader:
    """Reads URLs, and makes their requests.

    Args:
        spider: the spider, which is not initialized: only its class counts.
        callback: its method that gets the pages; None for the default.
        identifier: finds windows and fingerprints.
    """

    def __init__(self, spider: Spider, callback: Any, identifier: Identifier) -> None:
        self.spider, self._callback, self._identifier = spider, callback, identifier

    def read(self, url: str) -> RecrawlTarget:
        """Return a target.

        Raises:
            ConfigurationError: the URL cannot be crawled, or no claim can stand for it.
        """
        name = shown(without_credentials(url))
        if not _is_of_a_page(url):
            raise ConfigurationError(
                f"{name} is no URL of a page: give it in full, as https://example.com/page"
            )
        window, item = self._identifier.identify(url)
        if window == RUN:
            raise ConfigurationError(
                f"{name} has the window {RUN!r} by BLOOM_RECRAWL_RULES: each run crawls it when it "
                "is found, and none remembers it"
            )
        request = self._new_request(url)
        # A redirect of it has it as well: else it would end at a page that is seen.
        request.dont_filter = True
        set_claims(request, {(window, item): 0})
        try:
            text = request_codec.dump(request, self.spider)
        except request_codec.NotKeepableError as error:
            raise ConfigurationError(f"{name} cannot be stored: {error}") from None
        return RecrawlTarget(url, (window, item), item, text)

    def _new_request(self, url: str) -> Request:
        """Return a request with the callback that is asked for, or that a link to it would have."""
        number = None if self._callback else self._rule_of(url)
        if number is None:
            return Request(url, callback=self._callback)
        spider: Any = self.spider
        request: Request = spider._build_request(number, Link(url))  # noqa: SLF001 - no other way
        return request

    def _rule_of(self, url: str) -> int | None:
        """Return the number of the first rule of a CrawlSpider that matches a URL; or None."""
        rules = self.spider.rules if isinstance(self.spider, CrawlSpider) else ()
        matches = (n for n, rule in enumerate(rules) if rule.link_extractor.matches(url))
        return next(matches, None)

    def warn_of_rules(self, targets: Iterable[RecrawlTarget]) -> None:
        """Say that pages of a CrawlSpider yield no items, if no callback gets them."""
        if self._callback is not None or not isinstance(self.spider, CrawlSpider):
            return
        if count := sum(self._rule_of(target.url) is None for target in targets):
            complain(
                f"no rule of spider {self.spider.name!r} matches {count:,} of the URLs: only their "
                "links are followed, unless --callback says which method gets the pages"
            )

    def read_claim(
        self, found: FoundClaim, stored: bytes | None, items: Collection[bytes] | None
    ) -> RecrawlTarget | None:
        """Return a claim's target; None if it is of none of the items, or cannot be crawled."""
        url, window = url_of(stored), found.stored.window
        if url is None or not (items is None or self._identifier.identify(url)[1] in items):
            return None
        try:
            text = (stored or b"").decode().split(" ", 4)[4]
            request = request_codec.load(text, self.spider)
            item = self._identifier.item(request)
            keys = map(key_of, request.meta[META])
            key = next(
                key for key in keys if key[0] == window and field_of(key[1]) == found.claim.field
            )
            request = request.replace(
                callback=self._callback, errback=None, cb_kwargs={}, dont_filter=True
            )
            text = request_codec.dump(request, self.spider)
        except (ValueError, LookupError, TypeError, AttributeError, StopIteration):
            return None
        is_wanted = items is None or item in items
        return RecrawlTarget(url, key, item, text, is_pending=True) if is_wanted else None


def _is_of_a_page(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def read_targets(
    reader: TargetReader, urls: Iterable[str], file: str | None
) -> tuple[list[RecrawlTarget], int]:
    """Return the targets, each once, and how many URLs are wrong; complain about these."""
    found, wrong = dict[Key, RecrawlTarget](), list[str]()
    given = (("", url.encode("utf-8", "surrogateescape")) for url in urls)
    for where, line in chain(given, _lines(file)):
        try:
            if url := parse_line(line):
                target = reader.read(url)
                found.setdefault(target.key, target)
        except ConfigurationError as error:
            wrong.append(f"{where}{error}")
    for text in wrong[:MAX_NAMED]:
        complain(text)
    return [*found.values()], len(wrong)


def _lines(file: str | None) -> Iterator[tuple[str, bytes]]:
    """Yield the lines of a file, each after its number; ``-`` is the standard input."""
    if file is not None:
        is_stdin = file == "-"
        with (
            nullcontext(sys.stdin.buffer) if is_stdin else open_file(Path(file), "--file") as stream
        ):
            for number, line in enumerate(stream, 1):
                yield f"line {number:,}: ", line


def pending_targets(
    reader: TargetReader, filters: Iterable[Stored], items: Collection[bytes], *, failed: bool
) -> Iterator[RecrawlTarget]:
    """Yield the spider's claims of items under any key or version, or of all pages that failed."""
    claims = (one for stored in filters for one in stored.claims())
    own = (one for one in claims if workers.is_of(one.claim.owner, reader.spider.name))
    without = 0
    for one, text in with_texts(own):
        is_any = failed and one.claim.was_tried
        target = reader.read_claim(one, text, None if is_any else items)
        if target is not None:
            yield target
        without += is_any and target is None
    if without:
        complain(
            f"{without:,} pages failed and have no request any more: they are crawled when they "
            "are linked again, or by their URLs"
        )


# -- leaving them --


def _leave(
    session: CommandSession, filters: Mapping[str, Stored], targets: Sequence[RecrawlTarget]
) -> dict[RecrawlTarget, str]:
    """Leave targets in their filters, batch by batch; return their states.

    Raises:
        BloomError: the server did not answer, or has no room; the first batches are left.
    """
    states: dict[RecrawlTarget, str] = {}
    try:
        with progress("leaving URLs") as show:
            for window, stored in filters.items():
                part = [target for target in targets if target.key[0] == window]
                for start in range(0, len(part), BATCH):
                    states |= _leave_in(session, stored.bloom, part[start : start + BATCH])
                    show(len(states), len(targets))
    except BloomError:
        complain(
            f"{len(states):,} of {len(targets):,} URLs are done, and some of the next ones may be: "
            "repeat the command, which leaves no URL twice"
        )
        raise
    return states


def _leave_in(
    session: CommandSession, bloom: BloomFilter, targets: Sequence[RecrawlTarget]
) -> dict[RecrawlTarget, str]:
    states, free = dict[RecrawlTarget, str](), list[RecrawlTarget]()
    owner, items = _owner(session), [target.key[1] for target in targets]
    due = bloom.run(partial(claim_protocol.make_due, items=items, owner=owner, nonce=NONCE))
    for target, item in zip(targets, items, strict=True):
        verdict = due[field_of(item)]
        states[target] = DUE if verdict is Verdict.MINE else CLAIMED
        # Not one whose claim a crawl has ended since.
        has_none = verdict is Verdict.SEEN and not target.is_pending
        if has_none or (verdict is Verdict.MINE and session.opts.callback is not None):
            free.append(target)
    if free:
        # Another verdict: a worker has claimed it since.
        verdicts = _claim(session, bloom, free)
        states |= {t: LEFT if v is Verdict.NEW else CLAIMED for t, v in verdicts.items()}
    return states


def _claim(
    session: CommandSession, bloom: BloomFilter, targets: Sequence[RecrawlTarget]
) -> dict[RecrawlTarget, Verdict]:
    """Claim targets for nobody, so that they are due; return the verdicts."""
    owner, items = _owner(session), [target.key[1] for target in targets]
    requests, memory = [target.request for target in targets], session.settings.pending_memory
    claim = partial(claim_protocol.claim, items=items, requests=requests, owner=owner)
    verdicts = bloom.run(partial(claim, nonce=NONCE, memory=memory, tested=False))
    unkept = [item for item, one in zip(items, verdicts, strict=True) if one is Verdict.UNKEPT]
    if unkept:
        bloom.run(partial(claim_protocol.release, items=unkept, owner=owner))
        raise StorageError(
            f"there is no room for more pending requests on {bloom.key}: raise "
            "BLOOM_PENDING_MEMORY, or give fewer URLs until a crawl has crawled these"
        )
    return dict(zip(targets, verdicts, strict=True))


def _owner(session: CommandSession) -> str:
    """Return the owner of the spider's claims that no worker has."""
    return workers.failed_id(session.crawler.spidercls.name)
