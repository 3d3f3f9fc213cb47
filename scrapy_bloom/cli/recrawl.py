"""``scrapy bloom recrawl``: leaves URLs for the next crawl, as a worker that is gone would."""

import argparse
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import partial
from itertools import chain
from typing import Any

from scrapy import Spider

from scrapy_bloom.bloom.errors import BloomError, ConfigurationError, StorageError
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.protocol import claim_protocol
from scrapy_bloom.bloom.protocol.cached_ring import Verdict
from scrapy_bloom.bloom.validators import plural
from scrapy_bloom.cli import render
from scrapy_bloom.cli.check import Identifier
from scrapy_bloom.cli.recrawl_targets import (
    RecrawlTarget,
    TargetReader,
    pending_targets,
    read_targets,
)
from scrapy_bloom.cli.session import (
    CommandSession,
    ExitCode,
    Server,
    add_filter_options,
    complain,
    print_json_list,
)
from scrapy_bloom.cli.stored_claims import printable, without_credentials
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
    reader = TargetReader(spider, _callback(spider, opts.callback), identifier)
    targets, wrong = read_targets(reader, opts.urls, opts.file)
    if wrong:
        complain(f"{plural(wrong, 'URL is', 'URLs are')} wrong, and none is crawled again")
        return ExitCode.NO
    reader.warn_of_rules(targets)
    with session.connect() as server:
        blocks = session.stored_blocks(server)
        windows = {*blocks, *(target.key[0] for target in targets)}
        filters = {name: _filter(server, identifier, name) for name in sorted(windows)}
        items = {target.item for target in targets}
        pending = [*pending_targets(server, filters, blocks, reader, items, failed=opts.failed)]
        found = {target.item for target in pending}
        new = (target for target in targets if target.item not in found)
        targets = [*{target.key: target for target in chain(pending, new)}.values()]
        states = _Leaver(session, reader, filters).leave_all(targets)
        _report(session, server, spider, [(target, states[target]) for target in targets])
    return ExitCode.FINE


def _filter(server: Server, identifier: Identifier, window: str) -> BloomFilter:
    """Return a window's filter, which must exist; warn of another fingerprinter."""
    identifier.warn_of(server.read(window))
    return server.filter(window)


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
    # A CrawlSpider has another default.
    has_default = cls._parse is not Spider._parse  # noqa: SLF001
    if cls.parse is Spider.parse and (name == "parse" or (name is None and not has_default)):
        raise ConfigurationError(
            f"spider {cls.name!r} has no parse: say which method gets the pages with --callback"
        )
    try:
        return None if name is None else request_codec.method_of(spider, name)
    except ValueError as error:
        raise ConfigurationError(f"--callback: {error} {cls.name!r}") from None


# -- leaving them --


class _Leaver:
    """Leaves URLs in their filters."""

    def __init__(
        self, session: CommandSession, reader: TargetReader, filters: Mapping[str, BloomFilter]
    ) -> None:
        self._owner = workers.failed_id(reader.spider.name)
        self._memory = session.settings.pending_memory
        self._replaces = session.opts.callback is not None
        self._reader, self._filters = reader, filters

    def leave_all(self, targets: Sequence[RecrawlTarget]) -> dict[RecrawlTarget, State]:
        """Leave targets, batch by batch; return their states.

        Raises:
            BloomError: the server did not answer, or has no room; the first batches are left.
        """
        states: dict[RecrawlTarget, State] = {}
        try:
            with render.progress("leaving URLs") as show:
                for start in range(0, len(targets), BATCH):
                    states |= self._leave(targets[start : start + BATCH])
                    show(len(states), len(targets))
        except BloomError:
            complain(
                f"{len(states):,} of {len(targets):,} URLs are done, and some of the next ones "
                "may be: repeat the command, which leaves no URL twice"
            )
            raise
        return states

    def _leave(self, targets: Sequence[RecrawlTarget]) -> dict[RecrawlTarget, State]:
        states: dict[RecrawlTarget, State] = {}
        for window, bloom in self._filters.items():
            if part := [target for target in targets if target.key[0] == window]:
                states |= self._leave_in(bloom, part)
        return states

    def _leave_in(
        self, bloom: BloomFilter, targets: Sequence[RecrawlTarget]
    ) -> dict[RecrawlTarget, State]:
        states, free = dict[RecrawlTarget, State](), list[RecrawlTarget]()
        items = [target.key[1] for target in targets]
        make_due = partial(claim_protocol.make_due, items=items, owner=self._owner, nonce=NONCE)
        due = bloom.run(make_due)
        for target, item in zip(targets, items, strict=True):
            verdict = due[field_of(item)]
            states[target] = State.DUE if verdict is Verdict.MINE else State.CLAIMED
            # Not one whose claim a crawl has ended since.
            has_none = verdict is Verdict.SEEN and target.pending is None
            if has_none or (verdict is Verdict.MINE and self._replaces):
                free.append(target)
        for target, verdict in zip(free, self._claim(bloom, free), strict=True):
            # Another verdict: a worker has claimed it since.
            states[target] = State.LEFT if verdict is Verdict.NEW else State.CLAIMED
        return states

    def _claim(self, bloom: BloomFilter, targets: Sequence[RecrawlTarget]) -> list[Verdict]:
        """Claim targets for nobody, so that they are due; return the verdicts."""
        if not targets:
            return []
        items = [target.key[1] for target in targets]
        requests = [self._reader.request(target) for target in targets]
        verdicts = bloom.run(
            partial(
                claim_protocol.claim,
                items=items,
                requests=requests,
                owner=self._owner,
                nonce=NONCE,
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


def _report(
    session: CommandSession,
    server: Server,
    spider: Spider,
    states: Sequence[tuple[RecrawlTarget, State]],
) -> None:
    counts = {state: sum(one is state for _, one in states) for state in State}
    documents = (
        {"url": without_credentials(target.url), "name": target.key[0], "state": state.value}
        for target, state in states
    )
    if session.opts.json:
        head: dict[str, Any] = {"address": server.address, "spider": spider.name}
        head |= {state.value: count for state, count in counts.items()}
        print_json_list(head, "urls", documents)
        return
    for document in documents:
        print(f"{WORDS[State(document['state'])]:15}  {printable(document['url'])}")
    urls = plural(counts[State.LEFT] + counts[State.DUE], "URL is", "URLs are")
    text = f"{urls} left for the next crawl of {spider.name!r}, or one that runs now"
    if counts[State.CLAIMED]:
        text += (
            f"; {counts[State.CLAIMED]:,} are claimed already: a worker crawls them now, or they "
            "wait for the next crawl"
        )
    print(f"{server.key(session.window)} on {server.address}: {text}")
