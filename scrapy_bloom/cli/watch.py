"""``scrapy bloom watch``: what filters hold, again and again. Changes nothing on the server."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from scrapy_bloom.bloom.errors import StorageError, in_words
from scrapy_bloom.bloom.protocol import worker_protocol
from scrapy_bloom.bloom.validators import seconds, whole_number
from scrapy_bloom.cli import render
from scrapy_bloom.cli.info import gather
from scrapy_bloom.cli.metrics import living
from scrapy_bloom.cli.render import Column
from scrapy_bloom.cli.session import CommandSession, ExitCode, Server, add_filter_options
from scrapy_bloom.settings import WORDS

try:
    import rich.live
    import rich.text
except ImportError:  # pip install "scrapy-bloom[cli]"
    rich = None  # type: ignore[assignment]

HELP = "show what filters hold, again and again until Ctrl-C; changes nothing"
#: Looks, if the options give no number: more than anybody waits for.
ENDLESS = 10**9


@dataclass(frozen=True, slots=True)
class Watched:
    """A filter at one moment.

    Args:
        window: its window's name.
        key: its key.
        urls: how many it remembers; None if there is no such filter.
        fill: of its active generation.
        claims: URLs that are claimed, and not settled yet.
        workers: that are alive.
        rotates: Unix time of its next rotation; 0 for never, or with a run.
        rate: new URLs a second since the last look; None if it was not there then.
    """

    window: str
    key: str
    urls: int | None = None
    fill: float = 0.0
    claims: int = 0
    workers: int = 0
    rotates: int = 0
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """All filters at one moment.

    Args:
        at: seconds of a clock that never goes back.
        filters: as they were read; empty if the server failed.
        error: why it failed.
    """

    at: float
    filters: Sequence[Watched] = ()
    error: str = ""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_filter_options(parser)
    parser.add_argument(
        "--every", metavar="SECONDS", default="2", help="time between two looks, 2 by default"
    )
    parser.add_argument(
        "--times", metavar="N", default=str(ENDLESS), help="end after so many looks"
    )


def run(session: CommandSession) -> ExitCode:
    """Show the chosen filters until Ctrl-C.

    Raises:
        ConfigurationError: an option or a setting is wrong.
    """
    every = seconds("--every", session.opts.every, 0.1, 3_600)
    times = whole_number("--times", session.opts.times, 1, ENDLESS, "looks before it ends")
    before = Look(0.0)
    try:
        with _screen(is_json=session.opts.json) as show:
            for number, look in enumerate(islice(looks(session), times), start=1):
                show(look, before)
                before = look if look.filters else before
                if number < times:
                    time.sleep(every)
    except KeyboardInterrupt:
        pass  # the usual end
    return ExitCode.FINE


def looks(session: CommandSession) -> Iterator[Look]:
    """Yield what there is, without end. After a failure, the next one connects again."""
    while True:
        yield from _looks_until_failure(session)


def _looks_until_failure(session: CommandSession) -> Iterator[Look]:
    try:
        with session.connect() as server:
            while True:
                yield Look(time.monotonic(), [*_read(session, server)])
    except StorageError as error:
        yield Look(time.monotonic(), error=in_words(str(error), WORDS))


def _read(session: CommandSession, server: Server) -> Iterator[Watched]:
    for found in gather(session, server):
        if found.info is None:
            yield Watched(found.window, found.key)
            continue
        newest = found.info.generations[0]
        yield Watched(
            found.window,
            found.key,
            found.info.count,
            newest.fill_ratio,
            found.info.claims,
            living(server.filter(found.window).run(worker_protocol.read_workers)),
            newest.closes,
        )


def rates(look: Look, before: Look) -> Mapping[str, float]:
    """Return new URLs a second, by key, of filters that two looks have seen."""
    then = {one.key: one.urls for one in before.filters if one.urls is not None}
    passed = look.at - before.at
    return {
        one.key: (one.urls - then[one.key]) / passed
        for one in look.filters
        if one.urls is not None and one.key in then and passed > 0
    }


def _rated(look: Look, before: Look) -> list[Watched]:
    speed = rates(look, before)
    return [replace(one, rate=speed.get(one.key)) for one in look.filters]


@contextmanager
def _screen(*, is_json: bool) -> Iterator[Callable[[Look, Look], None]]:
    """Yield what shows a look: on a terminal in one place, else below the last one."""
    if is_json:
        yield lambda look, before: print(json.dumps(_document(look, before)), flush=True)
    elif rich is None or not sys.stdout.isatty():
        yield lambda look, before: print(_text(look, before), end="\n\n", flush=True)
    else:
        with rich.live.Live(auto_refresh=False) as live:
            yield lambda look, before: live.update(
                rich.text.Text(_text(look, before)), refresh=True
            )


def _document(look: Look, before: Look) -> dict[str, Any]:
    filters = render.documents(COLUMNS, _rated(look, before))
    return {"error": look.error or None, "filters": filters}


def _text(look: Look, before: Look) -> str:
    time_of_day = time.strftime("%H:%M:%S")
    if look.error:
        return f"{time_of_day}  {look.error}"
    return f"{time_of_day}\n{render.table(COLUMNS, _rated(look, before))}"


def _if_there(text: Callable[[Watched], str]) -> Callable[[Watched], str]:
    """Return a text of filters that are there."""
    return lambda one: "-" if one.urls is None else text(one)


COLUMNS: Sequence[Column[Watched]] = (
    Column("", name="name", value=lambda one: one.window),
    Column("", name="exists", value=lambda one: one.urls is not None),
    Column(
        "URLs",
        lambda one: "no such filter" if one.urls is None else f"{one.urls:,}",
        "urls",
        lambda one: one.urls,
    ),
    Column(
        "new a second",
        lambda one: "-" if one.rate is None else f"{one.rate:+,.0f}",
        "urls_a_second",
        lambda one: one.rate,
    ),
    Column("fill", _if_there(lambda one: f"{one.fill:.1%}"), "fill_ratio", lambda one: one.fill),
    Column("claimed", _if_there(lambda one: f"{one.claims:,}"), "claims", lambda one: one.claims),
    Column(
        "workers", _if_there(lambda one: f"{one.workers:,}"), "workers", lambda one: one.workers
    ),
    Column(
        "rotates (UTC)",
        lambda one: render.minute(one.rotates) or "-",
        "closes",
        lambda one: one.rotates or None,
    ),
    Column("key", lambda one: one.key, "key", lambda one: one.key, is_left=True),
)
