"""``scrapy bloom info``: what filters hold. Changes nothing."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scrapy_bloom.bloom.model.schedule import Schedule, parse_span
from scrapy_bloom.bloom.protocol.info import (
    MAX_PROBES,
    FilterInfo,
    GenerationInfo,
    Measurement,
    describe,
)
from scrapy_bloom.bloom.protocol.ring_store import Snapshot
from scrapy_bloom.bloom.validators import plural, whole_number
from scrapy_bloom.cli import render
from scrapy_bloom.cli.render import (
    Column,
    discards,
    minute,
    places,
    size,
    table,
    two_digits,
    under,
    window_and_period,
)
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
    text = _as_text(found.window, server.address, info, measured)
    differs = None
    # The windows of a filter that --key names are not known.
    if found.snapshot and found.window in session.windows:
        options = options_of(session.settings, found.window)
        differs = compare(options, found.key, found.snapshot)
    document["differs"] = asdict(differs) if differs else None
    return document, f"{text}\n\n{render.finding(differs)}" if differs else text


def _as_text(name: str, address: str, info: FilterInfo, measured: Measurement | None) -> str:
    """Return what a filter is and holds."""
    rate, room = f"{two_digits(info.estimated_error_rate)} now", _room(info)
    if info.has_configured_sizes:
        rate += f", {two_digits(info.error_rate)} at most asked for"
    growth = f"by {info.growth:g} times the last layer" if info.growth else "no"
    counters = f" of {places(info.counting)}" if info.counting else ""
    facts = {
        "window": window_and_period(info.window, info.period, info.ring),
        "URLs": f"{info.count:,} ({room})",
        "error rate": f"{rate}, {two_digits(info.error_bound)} when all layers are full",
        "memory": f"{size(info.memory)} in {plural(info.blocks, 'block')}{counters}",
        "bits per URL": f"{info.bits_per_url:.1f}, {plural(info.num_hashes, 'hash function')}",
        "grows": growth + ("" if info.max_memory is None else f" up to {size(info.max_memory)}"),
        "pending": "none",
    }
    if not info.has_configured_sizes:
        facts["new sizes"] = _new_sizes(info)
    if info.claims:
        claims = f"{plural(info.claims, 'URL')} claimed, not settled yet"
        facts["pending"] = f"{claims} (scrapy bloom pending lists them)"
    if measured is not None:
        facts["measured"] = _measured(measured)
    if info.counting:
        facts["discards"] = discards(info, "now")
    if info.lost_blocks:
        facts["lost blocks"] = f"{info.lost_blocks} (evicted or deleted)"
    heading = f"{info.key} on {address} (window {name!r})"
    return "\n".join((under(heading, facts), "", table(_generations(info), info.generations)))


def _measured(m: Measurement) -> str:
    return (
        f"{m.seen:,} of {m.probes:,} random fingerprints are seen: {two_digits(m.rate)} "
        f"({two_digits(m.low)} to {two_digits(m.high)} with 95% confidence) of all new URLs are "
        "hidden now"
    )


def _generations(info: FilterInfo) -> Sequence[Column[GenerationInfo]]:
    return (
        Column("opened (UTC)", lambda one: minute(one.opened)),
        Column("closes", lambda one: _ends(info, one)[0]),
        Column("forgotten", lambda one: _ends(info, one)[1]),
        Column("URLs", lambda one: f"{one.count:,}"),
        Column("fill", lambda one: f"{one.fill_ratio:.1%}"),
        Column("rate now", lambda one: two_digits(one.estimated_error_rate)),
        Column("layers", lambda one: str(one.layers)),
        Column("memory", lambda one: size(one.memory)),
    )


def _ends(info: FilterInfo, generation: GenerationInfo) -> tuple[str, str]:
    """Return when a generation closes and is forgotten."""
    if info.window is None or info.period is None:
        return "never", "never"
    if generation.closes:
        return minute(generation.closes), minute(generation.forgotten)
    return _in_runs(info.window, info.period, info.generations[0].run - generation.run)


def _in_runs(window: str, period: str, age: int) -> tuple[str, str]:
    """Return when a generation closes and is forgotten, in runs of the crawl."""
    schedule = Schedule(parse_span("window", window), parse_span("period", period))
    left = schedule.generations - age
    forgotten = "with the next run" if left == 1 else f"{left} runs from now"
    return "closed" if age else "with the next run", forgotten


def _room(info: FilterInfo) -> str:
    if info.has_configured_sizes:
        return f"made for {info.capacity:,} a generation, {info.capacity_in_all:,} in all"
    return f"room for {info.generations[0].capacity:,} in the active generation"


def _new_sizes(info: FilterInfo) -> str:
    """Return which sizes are set that the active generation does not have, and since when."""
    closes = minute(info.generations[0].closes) or "with the next run"
    since = f"generation on ({closes})" if info.window else "layer on, when those there are full"
    return (
        f"{info.capacity:,} URLs a generation, an error rate of {info.error_rate:g}: from the next "
        f"{since}"
    )
