"""``scrapy bloom settings``, ``clear``, ``rotate`` and ``delete``, which ask before they forget."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from scrapy_bloom.bloom.errors import BloomError, ConfigurationError, StorageError, in_words
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.model.generations import Counts
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.options import EXTEND, REPLACE, FilterOptions
from scrapy_bloom.bloom.protocol.deletion import stored_blocks
from scrapy_bloom.bloom.protocol.info import FilterInfo
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.bloom.validators import plural
from scrapy_bloom.cli import output
from scrapy_bloom.cli.output import Column, Document, size, to_json
from scrapy_bloom.cli.server import ProjectServer, Stored
from scrapy_bloom.cli.session import CHANGE, CommandSession, option, subcommand
from scrapy_bloom.crawl import advice
from scrapy_bloom.crawl.advice import Finding
from scrapy_bloom.settings import WORDS, BloomSettings

#: Columns of settings: name, stored value, and the project's.
SETTINGS: Sequence[Column[tuple[str, object, object]]] = (
    Column("setting", lambda pair: pair[0]),
    Column("stored", lambda pair: advice.said(pair[0], pair[1])),
    Column("project", lambda pair: advice.said(pair[0], pair[2])),
)


def forgotten_by(stored: Stored, change: Callable[[Ring, Counts], Ring]) -> int:
    """Return how many URLs a change of each block's ring forgets."""
    forgotten = 0
    for block, ring in stored.snapshot.rings.items():
        counts = stored.snapshot.counts[block]
        forgotten += ring.count(counts) - change(ring, counts).count(counts)
    return forgotten


# -- settings --


@subcommand(
    "show the stored settings of filters beside the project's; --apply writes the project's",
    *CHANGE,
    option("--apply", action="store_true", help="store the project's, also if that forgets URLs"),
)
def settings(session: CommandSession) -> None:
    """Print the settings of the chosen filters, or apply the project's.

    Raises:
        NothingThereError: there is no filter.
        ConfigurationError: a filter is impossible, or there is no terminal to ask at.
        FilterMismatchError: what differs is fixed.
        StorageError: the server did not answer; some filters may be changed already.
    """
    found = list[tuple[Document, str]]()
    with session.connect() as server:
        for name, stored in session.stored(server).items():
            if session.opts.apply:
                _apply(session, stored)
            document, text = _describe(session, server.read(name))
            if session.opts.apply:
                text += "\n\nThe filter has the project's settings now."
            found.append((document, text))
        session.report_filters(server, found)


def _apply(session: CommandSession, stored: Stored) -> None:
    """Apply the project's settings to a filter, if the user agrees."""
    # An id of a run would count as one.
    wanted = replace(options_of(session.settings, stored.window), on_difference=REPLACE, run=None)
    config, now = wanted.config(stored.config), stored.snapshot.now
    if config == stored.config:
        return
    forgotten = forgotten_by(stored, lambda ring, n: ring.reconfigure(config, now).advance(now, n))
    changes = advice.changes(stored.config, config)
    names = ", ".join(f"{name} = {advice.said(name, new)}" for name, _, new in changes)
    question = f"Set {names} in {stored.key!r} on {stored.server.address}, which forgets "
    session.confirm(f"{question}{forgotten:,} of its URLs at once")
    stored.bloom.run(partial(FilterSession.apply, wanted=wanted), on_all_blocks=True)


def _describe(session: CommandSession, stored: Stored) -> tuple[Document, str]:
    """Return the stored settings of a filter and the project's, as JSON and as text."""
    wanted = options_of(session.settings, stored.window)
    pairs = advice.pairs(stored.config, wanted.config(stored.config))
    document: Document = {
        "name": stored.window,
        "key": stored.key,
        "settings": {setting: {"stored": old, "project": new} for setting, old, new in pairs},
    }
    heading = f"{stored.where} (window {stored.window!r})"
    text = "\n".join([heading, *output.table(SETTINGS, pairs)])
    if finding := compare(wanted, stored):
        text += f"\n\n{output.finding(finding)}"
    return document, in_words(text, WORDS)


def options_of(settings: BloomSettings, window: str) -> FilterOptions:
    """Return what settings ask of the filter of a window."""
    others = settings.windows.others
    return FilterOptions(**settings.parameters(others.get(window)), on_difference=EXTEND)


def compare(wanted: FilterOptions, stored: Stored) -> Finding | None:
    """Return how the options that a project wants differ from a filter's; None if they do not."""
    try:
        wanted.check(stored.snapshot.header, stored.key)
        return advice.on_difference(stored.config, wanted.change(stored.config, stored.key))
    except BloomError as error:
        problem, _, remedy = in_words(str(error), WORDS).partition(": ")
    remedy = remedy or "Correct the settings"
    return Finding(problem, "a crawl refuses to open the filter", remedy[0].upper() + remedy[1:])


# -- clear, rotate, delete --


@subcommand("forget all URLs of a filter", *CHANGE)
def clear(session: CommandSession) -> None:
    """Forget all URLs."""
    with session.connect() as server:
        stored = server.read(session.window)
        text = f"its {plural(stored.info.count, 'URL')}"
        if stored.info.claims:
            text += f" and {plural(stored.info.claims, 'claim')}"
        _forget(session, stored, BloomFilter.clear, stored.info.count, text)


@subcommand("open a new generation now; the oldest may be forgotten", *CHANGE)
def rotate(session: CommandSession) -> None:
    """Open a new generation.

    Raises:
        ConfigurationError: the filter has no window.
    """
    with session.connect() as server:
        stored = server.read(session.window)
        if stored.info.window is None:
            raise ConfigurationError(
                f"the filter {stored.key!r} is stored without a window, so it has nothing to "
                "rotate: set BLOOM_RECRAWL_AFTER and run scrapy bloom settings --apply, or clear "
                "the filter"
            )
        forgotten = forgotten_by(stored, lambda ring, n: ring.rotate(stored.snapshot.now, n))
        text = f"{forgotten:,} of its {stored.info.count:,} URLs"
        _forget(session, stored, BloomFilter.rotate, forgotten, text)


def _forget(
    session: CommandSession,
    stored: Stored,
    change: Callable[[BloomFilter], object],
    forgotten: int,
    text: str,
) -> None:
    """Change a filter, if the user agrees; say what it holds then."""
    verb = session.opts.command.capitalize()
    where = f"{stored.key!r} on {stored.server.address}"
    session.confirm(f"{verb} {where}, which forgets {text}")
    change(stored.bloom)
    after = stored.bloom.info()
    document = stored.head | {"urls_forgotten": forgotten} | to_json(after)
    text = f"{plural(forgotten, 'URL')} forgotten, {after.count:,} remembered"
    session.report(document, f"{stored.where}: {text}")


@subcommand("delete a filter with all its keys", *CHANGE)
def delete(session: CommandSession) -> None:
    """Delete a filter, or what is left of one."""
    with session.connect() as server:
        info, contents = _contents(server, session.window)
        bloom = server.filter(server.key(session.window))
        session.confirm(f"Delete {bloom.key!r} on {server.address}, {contents}")
        bloom.delete()
        document: dict[str, Any] = {
            "address": server.address,
            "name": session.window,
            "key": bloom.key,
            "urls_forgotten": info and info.count,
            "memory": info and info.memory,
            "claims": info and info.claims,
        }
        session.report(document, f"{bloom.key} on {server.address} deleted, {contents}")


def _contents(server: ProjectServer, name: str) -> tuple[FilterInfo | None, str]:
    """Return what a filter holds, as numbers (None if it cannot be read) and as text.

    Raises:
        NothingThereError: there is no filter, and no remains of one.
    """
    if not server.filter(server.key(name)).run(stored_blocks):
        raise server.absent(name)
    try:
        stored = server.look(name)
    except StorageError as error:
        return None, f"which cannot be read ({error})"
    if stored is None:
        return None, "where a filter is being written, or what is left of one"
    urls, claims = plural(stored.info.count, "URL"), plural(stored.info.claims, "claim")
    return stored.info, f"with {urls} ({size(stored.info.memory)}) and {claims}"
