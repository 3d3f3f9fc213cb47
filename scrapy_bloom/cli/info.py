"""``scrapy bloom info``: what filters hold. Changes nothing."""

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from scrapy_bloom.bloom.protocol.info import FilterInfo, describe
from scrapy_bloom.bloom.protocol.measure import MAX_PROBES, Measurement
from scrapy_bloom.bloom.protocol.ring_store import Snapshot
from scrapy_bloom.bloom.validators import whole_number
from scrapy_bloom.cli import render
from scrapy_bloom.cli.session import (
    CommandSession,
    ExitCode,
    Server,
    add_filter_options,
    to_json,
)
from scrapy_bloom.cli.settings import compare, options_of

HELP = "show what filters hold; changes nothing"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_filter_options(parser)
    add_measure_option(parser)


def add_measure_option(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--measure``."""
    parser.add_argument(
        "--measure",
        nargs="?",
        const="100000",
        metavar="N",
        help="say how likely a new URL is hidden now, by N random fingerprints (default 100,000)",
    )


def run(session: CommandSession) -> ExitCode:
    """Print what the chosen filters hold.

    Raises:
        StorageError: the server did not answer, or a filter cannot be read.
    """
    documents, texts = [], []
    with session.connect() as server:
        for found in gather(session, server):
            document: dict[str, Any] = {
                "name": found.window,
                "key": found.key,
                "exists": found.info is not None,
            }
            text = f"{found.key} on {server.address} (window {found.window!r}): "
            text += "there is no such filter"
            if found.info is not None:
                more, text = _describe(session, server, found, found.info)
                document |= more
            documents.append(document)
            texts.append(text)
        session.report({"address": server.address, "filters": documents}, "\n\n".join(texts))
    return ExitCode.of(any(document["exists"] for document in documents))


@dataclass(frozen=True, slots=True)
class Found:
    """A filter as it was read.

    Args:
        window: its window's name.
        key: its key.
        snapshot: what is stored; None if there is no such filter.
        info: what it holds; None if there is no such filter.
    """

    window: str
    key: str
    snapshot: Snapshot | None = None
    info: FilterInfo | None = None


def gather(session: CommandSession, server: Server) -> Iterator[Found]:
    """Yield each chosen filter.

    Raises:
        StorageError: the server did not answer, or a filter cannot be read.
    """
    windows = [session.window] if session.is_chosen else session.windows
    for name in windows:
        key, snapshot = server.key(name), server.look(name)
        if snapshot is None:
            yield Found(name, key)
        else:
            lost = snapshot.header.blocks - len(snapshot.rings)
            yield Found(name, key, snapshot, describe(key, snapshot, lost))


def measure(session: CommandSession, server: Server, name: str) -> Measurement | None:
    """Measure the error rate of a window's filter; None if ``--measure`` is not given."""
    if session.opts.measure is None:
        return None
    meaning = "fingerprints to test"
    probes = whole_number("--measure", session.opts.measure, 1, MAX_PROBES, meaning)
    return server.filter(name).measure(probes)


def _describe(
    session: CommandSession, server: Server, found: Found, info: FilterInfo
) -> tuple[dict[str, Any], str]:
    """Return what a filter holds, as JSON and as text."""
    document: dict[str, Any] = to_json(info)
    measured = measure(session, server, found.window)
    if measured is not None:
        document["measured"] = to_json(measured)
    text = render.info(found.window, server.address, info, measured)
    differs = None
    # The windows of a filter that --key names are not known.
    if found.snapshot and found.window in session.windows:
        options = options_of(session.settings, found.window)
        differs = compare(options, found.key, found.snapshot)
    document["differs"] = asdict(differs) if differs else None
    return document, f"{text}\n\n{render.finding(differs)}" if differs else text
