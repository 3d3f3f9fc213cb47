"""``scrapy bloom info``: what filters hold. Changes nothing."""

import argparse
from collections.abc import Iterator
from typing import Any

from scrapy_bloom.bloom.protocol.info import FilterInfo, describe
from scrapy_bloom.bloom.protocol.measure import MAX_PROBES, Measurement
from scrapy_bloom.bloom.validators import whole_number
from scrapy_bloom.cli import render
from scrapy_bloom.cli.session import (
    CommandSession,
    ExitCode,
    Server,
    add_filter_options,
    to_json,
)
from scrapy_bloom.settings import LASTING

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
        for name, key, info in gather(session, server):
            document: dict[str, Any] = {"name": name, "key": key, "exists": info is not None}
            text = f"{key} on {server.address} (window {name!r}): there is no such filter"
            if info is not None:
                found, text = _describe(session, server, name, info)
                document |= found
            documents.append(document)
            texts.append(text)
        session.report({"address": server.address, "filters": documents}, "\n\n".join(texts))
    return ExitCode.of(any(document["exists"] for document in documents))


def gather(session: CommandSession, server: Server) -> Iterator[tuple[str, str, FilterInfo | None]]:
    """Yield the window, the key, and what the filter holds, of each chosen filter.

    Raises:
        StorageError: the server did not answer, or a filter cannot be read.
    """
    windows = [session.window] if session.is_chosen else [LASTING, *session.settings.windows]
    for name in windows:
        key, snapshot = server.key(name), server.look(name)
        if snapshot is None:
            yield name, key, None
        else:
            lost = snapshot.header.blocks - len(snapshot.rings)
            yield name, key, describe(key, snapshot, lost)


def measure(session: CommandSession, server: Server, name: str) -> Measurement | None:
    """Measure the error rate of a window's filter; None if ``--measure`` is not given."""
    if session.opts.measure is None:
        return None
    meaning = "fingerprints to test"
    probes = whole_number("--measure", session.opts.measure, 1, MAX_PROBES, meaning)
    return server.filter(name).measure(probes)


def _describe(
    session: CommandSession, server: Server, name: str, info: FilterInfo
) -> tuple[dict[str, Any], str]:
    """Return what a filter holds, as JSON and as text."""
    document: dict[str, Any] = to_json(info)
    measured = measure(session, server, name)
    if measured is not None:
        document["measured"] = to_json(measured)
    return document, render.info(name, server.address, info, measured)
