"""``scrapy bloom list``: all filters on the server, whoever made them. Changes nothing."""

import argparse
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from scrapy_bloom.bloom.client.driver import reading
from scrapy_bloom.bloom.errors import BloomError, explain, showable
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.protocol import worker_protocol
from scrapy_bloom.bloom.protocol.info import FilterInfo, describe
from scrapy_bloom.bloom.protocol.rights import CRAWL, LIST
from scrapy_bloom.bloom.validators import plural
from scrapy_bloom.cli import render
from scrapy_bloom.cli.render import Column
from scrapy_bloom.cli.session import CommandSession, ExitCode, Server, to_json, with_dates
from scrapy_bloom.settings import WORDS

HELP = "list all filters on the server, of all projects; changes nothing"
#: Names of headers and rings, and a few others.
PATTERN = "{*:*}:[hr]*"
_NAME = re.compile(rb"\{(.+):[0-9]{1,5}\}:(?:header|ring)", re.DOTALL)
#: Keys that the server walks in one step.
STEP = 1_000


@dataclass(frozen=True, slots=True)
class Listed:
    """One filter.

    Args:
        info: what it is and holds.
        workers: how many are alive.
        last: when the last worker is, or was, given up for dead: Unix time, 0 if there is none.
    """

    info: FilterInfo
    workers: int
    last: int

    @property
    def next_rotation(self) -> int:
        """When the active generation closes; 0 for never, or with a run."""
        return self.info.generations[0].closes

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        document: dict[str, Any] = to_json(self.info)
        workers = {"alive": self.workers} | with_dates({"until": self.last})
        return document | with_dates({"closes": self.next_rotation}) | {"workers": workers}


#: What a user needs to find filters by the names of their keys.
RIGHTS = f"what scrapy bloom acl --for {CRAWL},{LIST} prints"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add no options but those of all subcommands."""


def run(session: CommandSession) -> ExitCode:
    """Print a line about each filter.

    Raises:
        ConfigurationError: settings are wrong.
        StorageError: the server did not answer, or the user may not see the names of all keys.
    """
    with session.connect_any() as server:
        names, others = names_in(_walk(server))
        found = {name: _look(server, name) for name in names}
    listed = [one for one in found.values() if isinstance(one, Listed)]
    skipped = others + len(found) - len(listed)
    document = {
        "address": server.address,
        "filters": [one.document() for one in listed],
        "skipped": skipped,
    }
    session.report(document, _text(server.address, listed, skipped))
    return ExitCode.FINE


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


def _walk(server: Server) -> Iterator[bytes]:
    """Yield names of keys, of a cluster those of all primaries; some may come twice."""
    try:
        with reading():
            for key in server.client.scan_iter(match=PATTERN, count=STEP):
                yield key if isinstance(key, bytes) else str(key).encode("utf-8", "surrogateescape")
    except (redis.RedisError, OSError) as error:
        raise explain(error, server.address, {**WORDS, "rights": RIGHTS}) from showable(error)


def _look(server: Server, name: str) -> Listed | None:
    """Read a filter; None for keys that only look like one's, or that cannot be read."""
    bloom = BloomFilter(server.client, name, label=server.address, words=WORDS)
    try:
        snapshot = bloom.look()
        if snapshot is None or not snapshot.rings:
            return None
        workers = bloom.run(worker_protocol.read_workers)
    except BloomError:
        server.ping()  # is it the server that fails?
        return None
    ends = [int(until) for until in workers.entries.values() if until.isdecimal()]
    info = describe(name, snapshot, snapshot.header.blocks - len(snapshot.rings))
    return Listed(info, sum(until > workers.now for until in ends), max(ends, default=0))


def _text(address: str, listed: list[Listed], skipped: int) -> str:
    lines = [f"{plural(len(listed), 'filter')} on {address}"]
    if listed:
        lines += ["", render.table(COLUMNS, listed)]
    if skipped:
        lines += ["", f"{skipped:,} with keys like a filter's are none, or cannot be read: skipped"]
    return "\n".join(lines)


def _rotation(one: Listed) -> str:
    return render.minute(one.next_rotation) or ("never" if one.info.window is None else "by runs")


def _worker(one: Listed) -> str:
    return f"{one.workers:,} alive" if one.workers else render.minute(one.last) or "-"


COLUMNS: Sequence[Column[Listed]] = (
    Column("window", lambda one: one.info.window or "never"),
    Column("generations", lambda one: str(len(one.info.generations))),
    Column("capacity", lambda one: f"{one.info.capacity:,}"),
    Column("URLs", lambda one: f"{one.info.count:,}"),
    Column("fill", lambda one: f"{one.info.generations[0].fill_ratio:.1%}"),
    Column("memory", lambda one: render.size(one.info.memory)),
    Column("rotates (UTC)", _rotation),
    Column("last worker", _worker),
    Column("key", lambda one: one.info.key, is_left=True),
)
