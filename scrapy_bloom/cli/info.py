"""``scrapy bloom info``: what filters hold. Changes nothing."""

import argparse
from typing import Any

from scrapy_bloom.bloom.protocol.info import describe
from scrapy_bloom.bloom.protocol.measure import MAX_PROBES, Measurement
from scrapy_bloom.bloom.protocol.ring_store import Snapshot
from scrapy_bloom.bloom.validators import whole_number
from scrapy_bloom.cli.session import (
    CommandSession,
    ExitCode,
    Server,
    add_filter_options,
    print_json,
    to_json,
)
from scrapy_bloom.settings import LASTING

HELP = "show what filters hold; changes nothing"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_filter_options(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="show the blocks, too")
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
    windows = [session.window] if session.is_chosen else [LASTING, *session.settings.windows]
    documents = []
    with session.connect() as server:
        for name in windows:
            snapshot = server.look(name)
            document = {"name": name, "key": server.key(name), "exists": snapshot is not None}
            if snapshot is not None:
                document |= _describe(session, server, name, snapshot)
            elif session.printer is not None:
                session.printer.show_absent(name, server.address, server.key(name))
            documents.append(document)
        if session.printer is None:
            print_json({"address": server.address, "filters": documents})
    return ExitCode.of(any(document["exists"] for document in documents))


def _describe(
    session: CommandSession, server: Server, name: str, snapshot: Snapshot
) -> dict[str, Any]:
    """Show a filter, or return it as JSON has it."""
    key, lost = server.key(name), snapshot.header.blocks - len(snapshot.rings)
    info = describe(key, snapshot, lost)
    numbers = sorted(snapshot.rings) if session.opts.verbose else []
    blocks = {number: describe(key, snapshot, block=number) for number in numbers}
    measured = None if session.opts.measure is None else _measure(session, server, name)
    if session.printer is not None:
        session.printer.show_info(name, server.address, info, blocks, measured)
        return {}
    document: dict[str, Any] = to_json(info)
    if measured is not None:
        document["measured"] = to_json(measured)
    if blocks:
        document["per_block"] = [{"block": n, **to_json(block)} for n, block in blocks.items()]
    return document


def _measure(session: CommandSession, server: Server, name: str) -> Measurement:
    probes = whole_number("--measure", session.opts.measure, 1, MAX_PROBES, "fingerprints to test")
    with session.progress("fingerprints tested", probes) as advance:
        return server.filter(name).measure(probes, progress=advance)
