"""``scrapy bloom recrawl``: leaves URLs for the next crawl, as a worker that is gone would."""

import argparse
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import partial
from itertools import chain
from typing import Any

from scrapy import Spider
from scrapy.spiders import CrawlSpider

from scrapy_bloom.bloom.errors import BloomError, ConfigurationError, StorageError
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.model.units import plural
from scrapy_bloom.bloom.protocol import claim_protocol
from scrapy_bloom.bloom.protocol.verdicts import Verdict
from scrapy_bloom.cli import render
from scrapy_bloom.cli.check import Identifier
from scrapy_bloom.cli.recrawl_targets import RecrawlTarget, TargetReader, read_targets
from scrapy_bloom.cli.session import (
    CommandSession,
    ExitCode,
    Server,
    add_filter_options,
    complain,
    print_json_list,
)
from scrapy_bloom.cli.stored_claims import printable, without_credentials
from scrapy_bloom.crawl import advice
from scrapy_bloom.crawl.claims import request_codec, workers
from scrapy_bloom.settings import CRAWLED

HELP = "let the next crawl, or one that runs, crawl URLs again, whether or not they are seen"
#: URLs that are left in one round.
BATCH = 1_000
#: Stands in the claims in the place of a nonce.
NONCE = "recrawl"


class State(Enum):
    """What becomes of a URL; the value is its name in JSON."""

    #: The next crawl crawls it.
    LEFT = "left"
    #: It had failed, and the next crawl tries its request again.
    DUE = "due"
    #: A worker has it, or has left it: it is crawled in any case.
    CLAIMED = "claimed"


#: How a URL's line begins.
WORDS = {
    State.LEFT: "will be crawled",
    State.DUE: "failed, is due",
    State.CLAIMED: "claimed already",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_filter_options(parser)
    parser.add_argument("urls", nargs="*", metavar="URL")
    parser.add_argument("--file", metavar="FILE", help="URLs, one a line; - is the standard input")
    parser.add_argument("--failed", action="store_true", help="all pages that failed, now")
    parser.add_argument(
        "--callback",
        metavar="NAME",
        help="method of the spider that gets the pages. By default, a page that failed goes where "
        "it would have gone, and others to the spider's parse; in a CrawlSpider, where a link to "
        "them goes by the first rule that matches",
    )


def run(session: CommandSession) -> ExitCode:
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
    _check_callback(spider, opts.callback)
    reader = TargetReader(spider, opts.callback, identifier)
    targets, wrong = read_targets(reader, opts.urls, opts.file)
    if wrong:
        complain(f"{plural(wrong, 'URL is', 'URLs are')} wrong, and none is crawled again")
        return ExitCode.NO
    _warn_of_rules(spider, reader, targets)
    with session.connect() as server:
        blocks = session.stored_blocks(server)
        windows = {*blocks, *(target.key[0] for target in targets)}
        filters = _filters(server, identifier, windows)
        pending = [*reader.pending(server, filters, blocks, targets, failed=opts.failed)]
        found = {target.item for target in pending}
        new = (target for target in targets if target.item not in found)
        targets = [*{target.key: target for target in chain(pending, new)}.values()]
        leaver = _Leaver(session, spider, reader, filters)
        _report(session, server, spider, targets, leaver.leave_all(targets))
    return ExitCode.FINE


# -- the spider --


def _spider(session: CommandSession) -> Spider:
    """Return the spider that will crawl, without making it: it may need arguments.

    Raises:
        ConfigurationError: there is none, or its crawls take no claims over.
    """
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


def _check_callback(spider: Spider, name: str | None) -> None:
    """Refuse a callback that the crawl would not find.

    Raises:
        ConfigurationError: there is no such method.
    """
    cls = type(spider)
    # A CrawlSpider has another default.
    has_default = cls._parse is not Spider._parse  # noqa: SLF001
    if cls.parse is Spider.parse and (name == "parse" or (name is None and not has_default)):
        raise ConfigurationError(
            f"spider {cls.name!r} has no parse: say which method gets the pages with --callback"
        )
    if name is not None:
        try:
            request_codec.method_of(spider, name)
        except ValueError as error:
            raise ConfigurationError(f"--callback: {error} {cls.name!r}") from None


def _warn_of_rules(spider: Spider, reader: TargetReader, targets: Sequence[RecrawlTarget]) -> None:
    """Say that pages of a CrawlSpider yield no items, if no callback gets them."""
    if reader.callback is None and isinstance(spider, CrawlSpider):
        count = sum(reader.rule_of(target.url) is None for target in targets)
        if count:
            complain(
                f"no rule of spider {spider.name!r} matches {count:,} of the URLs: only their "
                "links are followed, unless --callback says which method gets the pages"
            )


# -- the filters --


def _filters(server: Server, identifier: Identifier, windows: set[str]) -> dict[str, BloomFilter]:
    """Return the filters of some windows, which must exist."""
    filters = {}
    for name in sorted(windows):
        stored = server.read(name).header.fingerprinter
        if warning := advice.on_fingerprinter(stored, identifier.name):
            complain(str(warning))
        filters[name] = server.filter(name)
    return filters


class _Leaver:
    """Leaves URLs in their filters.

    Args:
        session: the call of the subcommand.
        spider: the spider that will crawl them.
        reader: makes the requests.
        filters: window -> filter.
    """

    def __init__(
        self,
        session: CommandSession,
        spider: Spider,
        reader: TargetReader,
        filters: Mapping[str, BloomFilter],
    ) -> None:
        self._owner = workers.failed_id(spider.name)
        self._memory = session.settings.pending_memory
        self._replaces = session.opts.callback is not None
        self._reader, self._filters = reader, filters

    def leave_all(self, targets: Sequence[RecrawlTarget]) -> list[State]:
        """Leave targets, batch by batch; return their states.

        Raises:
            BloomError: the server did not answer, or has no room; the first batches are left.
        """
        states: list[State] = []
        try:
            with render.progress("leaving URLs") as show:
                for start in range(0, len(targets), BATCH):
                    states += self._leave(targets[start : start + BATCH])
                    show(len(states), len(targets))
        except BloomError:
            complain(
                f"{len(states):,} of {len(targets):,} URLs are done, and some of the next ones "
                "may be: repeat the command, which leaves no URL twice"
            )
            raise
        return states

    def _leave(self, targets: Sequence[RecrawlTarget]) -> list[State]:
        found: dict[RecrawlTarget, State] = {}
        for window, bloom in self._filters.items():
            part = [target for target in targets if target.key[0] == window]
            if part:
                found |= zip(part, self._leave_in(bloom, part), strict=True)
        return [found[target] for target in targets]

    def _leave_in(self, bloom: BloomFilter, targets: Sequence[RecrawlTarget]) -> list[State]:
        items = [target.key[1] for target in targets]
        due = bloom.run(
            partial(claim_protocol.make_due, items=items, owner=self._owner, nonce=NONCE)
        )
        verdicts = [due[field_of(item)] for item in items]
        states = [State.DUE if one is Verdict.MINE else State.CLAIMED for one in verdicts]
        free = [
            place
            for place, verdict in enumerate(verdicts)
            if (verdict is Verdict.MINE and self._replaces)
            # Not one whose claim a crawl has ended since.
            or (verdict is Verdict.SEEN and targets[place].pending is None)
        ]
        for place, verdict in zip(free, self._claim(bloom, targets, free), strict=True):
            # Another verdict: a worker has claimed it since.
            states[place] = State.LEFT if verdict is Verdict.NEW else State.CLAIMED
        return states

    def _claim(
        self, bloom: BloomFilter, targets: Sequence[RecrawlTarget], places: Sequence[int]
    ) -> list[Verdict]:
        """Claim targets for nobody, so that they are due; return the verdicts."""
        if not places:
            return []
        items = [targets[place].key[1] for place in places]
        requests = [self._reader.request(targets[place]) for place in places]
        verdicts = bloom.run(
            lambda session: claim_protocol.claim(
                session,
                items,
                requests,
                self._owner,
                NONCE,
                memory=self._memory,
                tested=False,
            )
        )
        unkept = [item for item, one in zip(items, verdicts, strict=True) if one is Verdict.UNKEPT]
        if unkept:
            bloom.run(partial(claim_protocol.release, items=unkept, owner=self._owner))
            raise StorageError(
                f"there is no room for more pending requests on {bloom.key}: raise "
                "BLOOM_PENDING_MEMORY, or give fewer URLs until a crawl has crawled these"
            )
        return verdicts


# -- the answer --


def _report(
    session: CommandSession,
    server: Server,
    spider: Spider,
    targets: Sequence[RecrawlTarget],
    states: Sequence[State],
) -> None:
    counts = {state: states.count(state) for state in State}
    pairs = zip(targets, states, strict=True)
    if session.opts.json:
        head: dict[str, Any] = {"address": server.address, "spider": spider.name}
        head |= {state.value: count for state, count in counts.items()}
        documents = (
            {
                "url": without_credentials(target.url),
                "name": target.key[0],
                "state": state.value,
            }
            for target, state in pairs
        )
        print_json_list(head, "urls", documents)
        return
    for target, state in pairs:
        print(f"{WORDS[state]:15}  {printable(without_credentials(target.url))}")
    left = counts[State.LEFT] + counts[State.DUE]
    urls = plural(left, "URL is", "URLs are")
    text = f"{urls} left for the next crawl of {spider.name!r}, or one that runs now"
    if counts[State.CLAIMED]:
        text += (
            f"; {counts[State.CLAIMED]:,} are claimed already: a worker crawls them now, or they "
            "wait for the next crawl"
        )
    print(f"{server.key(session.window)} on {server.address}: {text}")
