"""``scrapy bloom settings``: a filter's stored settings beside the project's, and apply these."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from scrapy_bloom.bloom.errors import BloomError, in_words
from scrapy_bloom.bloom.options import EXTEND, REPLACE, FilterOptions
from scrapy_bloom.bloom.protocol.ring_store import Snapshot
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.cli import render
from scrapy_bloom.cli.render import Column
from scrapy_bloom.cli.session import CommandSession, ExitCode, Server, add_change_options
from scrapy_bloom.crawl import advice
from scrapy_bloom.crawl.advice import Finding
from scrapy_bloom.settings import WORDS, BloomSettings

HELP = "show the stored settings of filters beside the project's; --apply writes the project's"

#: Columns of settings: name, stored value, and the project's.
COLUMNS: Sequence[Column[tuple[str, object, object]]] = (
    Column("setting", lambda pair: pair[0]),
    Column("stored", lambda pair: advice.said(pair[0], pair[1])),
    Column("project", lambda pair: advice.said(pair[0], pair[2])),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_change_options(parser)
    parser.add_argument(
        "--apply", action="store_true", help="store the project's, also if that forgets URLs"
    )


def run(session: CommandSession) -> ExitCode:
    """Print the settings of the chosen filters, or apply the project's.

    Raises:
        NothingThereError: there is no filter.
        ConfigurationError: a filter is impossible, or there is no terminal to ask at.
        FilterMismatchError: what differs is fixed.
        StorageError: the server did not answer; some filters may be changed already.
    """
    documents, texts = [], []
    with session.connect() as server:
        for name in session.stored_blocks(server):
            snapshot = server.read(name)
            if session.opts.apply and not _apply(session, server, name, snapshot):
                return ExitCode.NO
            document, text = _describe(session, server, name)
            documents.append(document)
            texts.append(text)
        session.report({"address": server.address, "filters": documents}, "\n\n".join(texts))
    return ExitCode.FINE


def _apply(session: CommandSession, server: Server, name: str, snapshot: Snapshot) -> bool:
    """Apply the project's settings to a filter; whether the user agrees."""
    # An id of a run would count as one.
    wanted = replace(options_of(session.settings, name), on_difference=REPLACE, run=None)
    stored = next(iter(snapshot.rings.values())).config
    config = wanted.config(stored)
    if config == stored:
        return True
    forgotten = 0
    for block, ring in snapshot.rings.items():
        counts = snapshot.counts[block]
        after = ring.reconfigure(config, snapshot.now).advance(snapshot.now, counts)
        forgotten += ring.count(counts) - after.count(counts)
    names = ", ".join(
        f"{name} = {advice.said(name, new)}" for name, _, new in advice.changes(stored, config)
    )
    question = f"Set {names} in {server.key(name)!r} on {server.address}, which forgets "
    if not session.confirm(f"{question}{forgotten:,} of its URLs at once"):
        return False
    server.filter(name).run(partial(FilterSession.apply, wanted=wanted), on_all_blocks=True)
    return True


def _describe(session: CommandSession, server: Server, name: str) -> tuple[dict[str, Any], str]:
    """Return the stored settings of a filter and the project's, as JSON and as text."""
    key, snapshot = server.key(name), server.read(name)
    wanted = options_of(session.settings, name)
    stored = next(iter(snapshot.rings.values())).config
    pairs = advice.pairs(stored, wanted.config(stored))
    document: dict[str, Any] = {
        "name": name,
        "key": key,
        "settings": {setting: {"stored": old, "project": new} for setting, old, new in pairs},
    }
    text = f"{key} on {server.address} (window {name!r})\n{render.table(COLUMNS, pairs)}"
    if finding := compare(wanted, key, snapshot):
        text += f"\n\n{render.finding(finding)}"
    return document, in_words(text, WORDS)


def options_of(settings: BloomSettings, window: str) -> FilterOptions:
    """Return what settings ask of the filter of a window."""
    others = settings.windows.others
    return FilterOptions(**settings.parameters(others.get(window)), on_difference=EXTEND)


def compare(wanted: FilterOptions, key: str, snapshot: Snapshot) -> Finding | None:
    """Return how settings differ from those of a stored filter; None if they do not.

    Args:
        wanted: what the project asks for.
        key: the filter's key.
        snapshot: what is stored.
    """
    stored = next(iter(snapshot.rings.values())).config
    try:
        wanted.check(snapshot.header, key)
        return advice.on_difference(stored, wanted.change(stored, key))
    except BloomError as error:
        return _refused(error)


def _refused(error: BloomError) -> Finding:
    problem, _, remedy = in_words(str(error), WORDS).partition(": ")
    remedy = remedy or "Correct the settings"
    return Finding(problem, "a crawl refuses to open the filter", remedy[0].upper() + remedy[1:])
