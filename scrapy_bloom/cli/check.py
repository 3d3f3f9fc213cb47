"""``scrapy bloom check``: whether URLs are seen, as a crawl of the project would say."""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any

from scrapy import Request
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.python import global_object_name

from scrapy_bloom.bloom.errors import ConfigurationError, shown
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.model.hashing import to_bytes
from scrapy_bloom.bloom.protocol.info import ItemInfo
from scrapy_bloom.cli.session import CommandSession, ExitCode, add_filter_options, complain, to_json
from scrapy_bloom.crawl import advice
from scrapy_bloom.crawl.identity import of_own_key
from scrapy_bloom.crawl.windows import Windows
from scrapy_bloom.fingerprinter import bounded
from scrapy_bloom.migrate.lines import Line, read_lines
from scrapy_bloom.settings import LASTING, RUN

HELP = "say whether URLs are seen, since when and until when"
#: URLs that are looked up together.
BATCH = 4096


@dataclass(frozen=True, slots=True)
class Query:
    """One lookup: whether a request or an item was seen.

    Args:
        kind: ``url``, ``bloom_key`` or ``item``.
        text: that URL, key or item.
        window: the window of the request.
        item: what the filter of the window has of it.
        problem: why it is no URL, which then has no window; "" if it is one.
    """

    kind: str
    text: str
    window: str
    item: bytes
    problem: str = ""


class Identifier:
    """Finds a request's window and fingerprint as a crawl does."""

    def __init__(self, session: CommandSession) -> None:
        crawler, settings = session.crawler, session.settings
        fingerprinter = load_object(crawler.settings["REQUEST_FINGERPRINTER_CLASS"])
        self._fingerprinter: Any = build_from_crawler(fingerprinter, crawler)
        self.name = global_object_name(type(self._fingerprinter))
        self._default = session.window
        self._windows = Windows(
            settings.windows, LASTING, () if session.is_chosen else settings.window_rules
        )

    @property
    def windows(self) -> set[str]:
        """The windows that requests may have, and that have a filter."""
        return {self._default, *(name for _, name in self._windows.rules)} - {RUN}

    def query(self, kind: str, text: str) -> Query:
        """Make a query.

        Raises:
            ConfigurationError: the text is no URL.
        """
        if kind == "bloom_key":
            return Query(kind, text, self._default, of_own_key(to_bytes(text)))
        if kind == "item":
            return Query(kind, text, self._default, to_bytes(text))
        try:
            request = Request(text)
        except ValueError as error:
            raise ConfigurationError(f"{text!r:.100} is no URL: {error}") from None
        window = self._windows.of(request, None)
        window = self._default if window == LASTING else window
        return Query(kind, text, window, bounded(self._fingerprinter.fingerprint(request)))


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
    identifier = Identifier(session)
    with session.connect() as server:
        for name in identifier.windows:
            stored = server.read(name).header.fingerprinter
            warning = advice.on_fingerprinter(stored, identifier.name)
            if warning and (opts.urls or opts.bloom_key):
                complain(warning)
        filters = {name: server.filter(name) for name in identifier.windows}
        answers = (_answer(batch, filters) for batch in _batches(_queries(opts, identifier)))
        asked, seen = _print_answers(session, server.address, answers)
    return ExitCode.of(asked == seen)


def _queries(opts: argparse.Namespace, identifier: Identifier) -> Iterator[Query]:
    yield from (identifier.query("bloom_key", key) for key in opts.bloom_key)
    yield from (identifier.query("item", item) for item in opts.item)
    for url in opts.urls:
        if url == "-":
            yield from _queries_of(sys.stdin.buffer.readline, identifier)
        elif url.strip():
            yield identifier.query("url", url.strip())


def _queries_of(readline: Callable[[int], bytes], identifier: Identifier) -> Iterator[Query]:
    """Yield a query for each line that is not blank."""
    questions = (_query_of(line, identifier) for line in read_lines(readline))
    yield from (question for question in questions if question is not None)


def _query_of(line: Line, identifier: Identifier) -> Query | None:
    """Return the query of a line; None if it is blank. A malformed line is a query, too."""
    try:
        url = line.url()
        return identifier.query("url", url) if url else None
    except ConfigurationError as error:
        text = line.data.decode(errors="replace").strip("\ufeff \t\r\n")
        return Query("url", text, "", b"", problem=f"{error!s:.200}")


def _batches(questions: Iterator[Query]) -> Iterator[list[Query]]:
    while batch := list(islice(questions, BATCH)):
        yield batch


#: Questions, each with its answer.
Answers = Sequence[tuple[Query, ItemInfo]]


def _answer(questions: Sequence[Query], filters: Mapping[str, BloomFilter]) -> Answers:
    places = defaultdict(list)
    for place, question in enumerate(questions):
        places[question.window].append(place)
    # What is remembered for a run is in no filter, and what is no URL nowhere.
    answers = [ItemInfo(seen=False, since=0, until=0, window=RUN)] * len(questions)
    for name in places.keys() - {RUN, ""}:
        infos = filters[name].find_all(questions[place].item for place in places[name])
        for place, info in zip(places[name], infos, strict=True):
            answers[place] = info
    return list(zip(questions, answers, strict=True))


def _print_answers(
    session: CommandSession, address: str, batches: Iterator[Answers]
) -> tuple[int, int]:
    """Print answers as they come; return how many there were, and how many were "seen"."""
    show = _AnswersAsJson(address) if session.printer is None else _AnswersAsText(session.printer)
    asked = seen = 0
    # On a terminal, the answers themselves say how far it is.
    is_shown = sys.stdout.isatty()
    with nullcontext(lambda _: None) if is_shown else session.progress("URLs checked") as advance:
        for answers in batches:
            for question, info in answers:
                show.answer(question, info)
                seen += info.seen
            asked += len(answers)
            advance(len(answers))
    show.end(asked, seen)
    return asked, seen


class _AnswersAsText:
    def __init__(self, tables: Any) -> None:
        self._line = tables.item_line
        sys.stdout.write(f"{tables.ITEM_HEADING}\n")

    def answer(self, question: Query, info: ItemInfo) -> None:
        if question.problem:
            sys.stdout.write(f"{'none':4}  {'no URL':34}  {shown(question.text)}\n")
        else:
            sys.stdout.write(f"{self._line(question.text, info)}\n")

    def end(self, asked: int, seen: int) -> None:
        sys.stdout.write(f"{seen:,} of {asked:,} are seen\n")


class _AnswersAsJson:
    """One document, printed piece by piece: there may be millions of answers."""

    def __init__(self, address: str) -> None:
        self._separator = f'{{"address": {json.dumps(address)}, "answers": [\n'

    def answer(self, question: Query, info: ItemInfo) -> None:
        document = {question.kind: question.text, "name": question.window, **to_json(info)}
        if question.problem:
            document = {"url": question.text, "seen": False, "problem": question.problem}
        sys.stdout.write(f"{self._separator}  {json.dumps(document)}")
        self._separator = ",\n"

    def end(self, asked: int, seen: int) -> None:
        start = "" if asked else self._separator
        sys.stdout.write(f'{start}\n], "asked": {asked}, "seen": {seen}}}\n')
