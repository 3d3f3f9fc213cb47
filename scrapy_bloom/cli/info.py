"""``scrapy bloom info`` and ``list``: what filters hold, and which there are. Change nothing."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from scrapy_bloom.bloom.errors import BloomError
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.schedule import Schedule, parse_span
from scrapy_bloom.bloom.protocol.info import MAX_PROBES, FilterInfo, GenerationInfo, Measurement
from scrapy_bloom.bloom.protocol.rights import CRAWL, LIST
from scrapy_bloom.bloom.validators import plural, whole_number
from scrapy_bloom.cli import output
from scrapy_bloom.cli.change import compare, options_of
from scrapy_bloom.cli.output import Column, Document, minute, size, to_json, two_digits, with_dates
from scrapy_bloom.cli.server import ProjectServer, Stored, calling
from scrapy_bloom.cli.session import FILTER, CommandSession, ExitCode, option, subcommand
from scrapy_bloom.crawl import workers
from scrapy_bloom.settings import WORDS

#: Names of headers and rings, and a few others.
PATTERN = "{*:*}:[hr]*"
_NAME = re.compile(rb"\{(.+):[0-9]{1,5}\}:(?:header|ring)", re.DOTALL)
#: Keys that the server walks in one step.
STEP = 1_000
#: What a user needs to find filters by the names of their keys.
RIGHTS = f"what scrapy bloom acl --for {CRAWL},{LIST} prints"
MEASURE = option(
    "--measure",
    nargs="?",
    const="100000",
    metavar="N",
    help="say how likely a new URL is hidden now, by N random fingerprints (default 100,000)",
)


# -- info --


@subcommand(
    "show what filters hold, where a URL and each version of it count as one; changes nothing",
    *FILTER,
    MEASURE,
)
def info(session: CommandSession) -> ExitCode:
    """Print what the chosen filters hold.

    Raises:
        StorageError: the server did not answer, or a filter cannot be read.
    """
    found = list[tuple[Document, str]]()
    with session.connect() as server:
        for name, stored in session.chosen(server):
            document: Document = {"name": name, "key": server.key(name), "exists": bool(stored)}
            where = f"{server.key(name)} on {server.address} (window {name!r})"
            more, text = _describe(session, stored) if stored is not None else ({}, "")
            found.append((document | more, text or f"{where}: there is no such filter"))
        session.report_filters(server, found)
    return ExitCode.of(any(document["exists"] for document, _ in found))


def measure(session: CommandSession, stored: Stored) -> Measurement | None:
    """Measure the error rate of a filter; None if ``--measure`` is not given."""
    if session.opts.measure is None:
        return None
    meaning = "fingerprints to test"
    probes = whole_number("--measure", session.opts.measure, 1, MAX_PROBES, meaning)
    return stored.bloom.measure(probes)


def _describe(session: CommandSession, stored: Stored) -> tuple[Document, str]:
    """Return what a filter holds, as JSON and as text."""
    document: Document = to_json(stored.info) | {"ledger": to_json(stored.ledger)}
    measured = measure(session, stored)
    if measured is not None:
        document["measured"] = to_json(measured)
    text = _as_text(stored, measured)
    # The windows of a filter that --key names are not known.
    is_known = stored.window in session.windows
    differs = compare(options_of(session.settings, stored.window), stored) if is_known else None
    document["differs"] = asdict(differs) if differs else None
    return document, f"{text}\n\n{output.finding(differs)}" if differs else text


def _as_text(stored: Stored, measured: Measurement | None) -> str:
    """Return what a filter is and holds."""
    info = stored.info
    rate, room = f"{two_digits(info.estimated_error_rate)} now", _room(info)
    if info.has_configured_sizes:
        rate += f", {two_digits(info.error_rate)} at most asked for"
    growth = f"by {info.growth:g} times the last layer" if info.growth else "no"
    counters = f" of {output.places(info.counting)}" if info.counting else ""
    facts = {
        "window": output.window_and_period(info.window, info.period, info.ring),
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
        claims = f"{plural(info.claims, 'URL')} not crawled or delivered yet, or failed"
        facts["pending"] = f"{claims} (scrapy bloom pending lists them)"
    if stored.ledger is not None:
        pages = f"{plural(stored.ledger.pages, 'page')} in {size(stored.ledger.memory)}"
        facts["ledger"] = f"about {pages}, {stored.ledger.due_pages:,} of them due"
    if measured is not None:
        facts["measured"] = _measured(measured)
    if info.lost_blocks:
        facts["lost blocks"] = f"{info.lost_blocks} (evicted or deleted)"
    heading = f"{stored.where} (window {stored.window!r})"
    return "\n".join(
        (output.under(heading, facts), "", *output.table(generations(info), info.generations))
    )


def _measured(m: Measurement) -> str:
    return (
        f"{m.seen:,} of {m.probes:,} random fingerprints are seen: {two_digits(m.rate)} "
        f"({two_digits(m.low)} to {two_digits(m.high)} with 95% confidence) of all new URLs are "
        "hidden now"
    )


def generations(info: FilterInfo) -> Sequence[Column[GenerationInfo]]:
    """Return the columns of a table of generations."""
    return (
        Column("opened (UTC)", lambda one: minute(one.opened), field="opened"),
        Column("closes", lambda one: _ends(info, one)[0], field="closes"),
        Column("forgotten", lambda one: _ends(info, one)[1], field="forgotten"),
        Column("URLs", lambda one: f"{one.count:,}", field="count"),
        Column("fill", lambda one: f"{one.fill_ratio:.1%}", field="fill_ratio"),
        Column(
            "rate now",
            lambda one: two_digits(one.estimated_error_rate),
            field="estimated_error_rate",
        ),
        Column("layers", lambda one: str(one.layers), field="layers"),
        Column("memory", lambda one: size(one.memory), field="memory"),
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


# -- list --


@subcommand("list all filters on the server, of all projects; changes nothing")
def list_(session: CommandSession) -> None:
    """Print a line about each filter.

    Raises:
        ConfigurationError: settings are wrong.
        StorageError: the server did not answer, or the user may not see the names of all keys.
    """
    with session.connect() as server:
        names, others = names_in(_walk(server))
        found = [one for name in names if (one := _listed(server, name))]
    skipped = others + len(names) - len(found)
    lines = [f"{plural(len(found), 'filter')} on {server.address}"]
    if found:
        lines += ["", *output.table(LISTED, found)]
    if skipped:
        lines += ["", f"{skipped:,} with keys like a filter's are none, or cannot be read: skipped"]
    document = {"address": server.address, "filters": found, "skipped": skipped}
    session.report(document, "\n".join(lines))


def names_in(keys: Iterable[bytes]) -> tuple[list[str], int]:
    """Return the filters that names of keys are of, and how many names look alike and are not."""
    names, others = set[str](), set[bytes]()
    for key in keys:
        match = _NAME.fullmatch(key)
        if match is None:
            continue
        try:
            names.add(Keys(match[1].decode()).prefix)
        except (ValueError, BloomError):
            others.add(match[1])
    return sorted(names), len(others)


def _walk(server: ProjectServer) -> Iterator[bytes]:
    """Yield names of keys, of a cluster those of all primaries; some may come twice."""
    with calling(server.address, {**WORDS, "rights": RIGHTS}):
        for key in server.client.scan_iter(match=PATTERN, count=STEP):
            yield key if isinstance(key, bytes) else str(key).encode("utf-8", "surrogateescape")


def _listed(server: ProjectServer, name: str) -> Document | None:
    """Read a filter; None for keys that only look like one's, or that cannot be read."""
    try:
        stored = server.look_at(name)
        if stored is None:
            return None
        found = workers.parse_all(stored.workers.entries).values()
    except BloomError:
        server.ping()  # is it the server that fails?
        return None
    last = max((worker.until for worker in found), default=0)
    document: Document = to_json(stored.info)
    document |= with_dates({"closes": stored.info.generations[0].closes})
    return document | {"workers": {"alive": stored.alive} | with_dates({"until": last})}


def _rotation(row: Document) -> str:
    return minute(row["closes"]) or ("never" if row["window"] is None else "by runs")


def _worker(row: Document) -> str:
    alive, until = row["workers"]["alive"], row["workers"]["until"]
    return f"{alive:,} alive" if alive else minute(until) or "-"


LISTED: Sequence[Column[Document]] = (
    Column("window", lambda row: row["window"] or "never"),
    Column("generations", lambda row: str(len(row["generations"]))),
    Column("capacity", lambda row: f"{row['capacity']:,}"),
    Column("URLs", lambda row: f"{row['count']:,}"),
    Column("fill", lambda row: f"{row['generations'][0]['fill_ratio']:.1%}"),
    Column("memory", lambda row: size(row["memory"])),
    Column("rotates (UTC)", _rotation),
    Column("last worker", _worker),
    Column("key", lambda row: row["key"], is_left=True),
)
