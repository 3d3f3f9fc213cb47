"""``scrapy bloom doctor``: what is wrong with a project and its server. Changes nothing."""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import redis
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings

from scrapy_bloom.bloom.client.driver import Driver
from scrapy_bloom.bloom.errors import BloomError, ConfigurationError, in_words
from scrapy_bloom.bloom.model.forecast import load
from scrapy_bloom.bloom.model.sizing import DEFAULT_BLOCKS
from scrapy_bloom.bloom.options import DEFAULTS
from scrapy_bloom.bloom.protocol import ledger_protocol, rights
from scrapy_bloom.bloom.protocol.info import describe
from scrapy_bloom.bloom.protocol.ring_store import Operation, Snapshot
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.cli import render
from scrapy_bloom.cli.doctor_project import (
    OF_PROJECT,
    Check,
    Project,
    Result,
    Unknown,
    check,
    of_error,
)
from scrapy_bloom.cli.doctor_server import OF_PLACE, OF_SERVER, Place, ServerFacts
from scrapy_bloom.cli.session import CommandSession, ExitCode, Server, fingerprinter_of, name_of
from scrapy_bloom.cli.settings import compare, options_of
from scrapy_bloom.crawl import advice
from scrapy_bloom.crawl.advice import Finding
from scrapy_bloom.crawl.filters import data_directory
from scrapy_bloom.settings import DEFAULT, WORDS, BloomSettings, own_names, parse_setting

HELP = "say what is wrong with a project and its server; changes nothing"
#: Settings without which it is not known which server, or which filter, is meant.
NAMES_OF_SERVER = {"BLOOM_REDIS_URL", "BLOOM_REDIS_PARAMS", "BLOOM_KEY"}
#: What stands before a check, by its state.
MARKS = {"fine": "ok", "problem": "PROBLEM", "unknown": "?"}
#: Files that container engines make.
CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv")
#: Directories that a restart of the machine empties.
TEMPORARY = ("/tmp", "/dev/shm", "/run")  # noqa: S108 - it is about these
#: PINGs, of which the fastest counts.
PINGS = 3


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add no options but those of all subcommands."""


def run(session: CommandSession) -> ExitCode:
    """Print what was checked, and what is wrong.

    Raises:
        ConfigurationError: the options name no spider of the project.
    """
    known, found = dict[str, ServerFacts | BloomError](), dict[Check, list[str]]()
    for crawler in _crawlers(session):
        for one in _examine(known, crawler, is_in_project=bool(session.spiders)):
            names = found.setdefault(one, [])
            if name_of(crawler) not in names:
                names.append(name_of(crawler))
    problems = sum(one.state == "problem" for one in found)
    document = {
        "problems": problems,
        "checks": [one.document() | {"spiders": names} for one, names in found.items()],
    }
    lines = [_line(one, _who(names, session)) for one, names in found.items()]
    summary = f"{problems} problems found" if problems != 1 else "1 problem found"
    session.report(document, "\n".join([*lines, "", summary if problems else "No problem found"]))
    return ExitCode.of(not problems)


def _crawlers(session: CommandSession) -> list[Crawler]:
    """Return crawlers of the chosen spider, or all; outside a project, of none in particular."""
    if session.opts.spider is not None:
        return [session.crawler]
    return [*map(session.crawler_of, session.all_spiders)]


def _examine(
    known: dict[str, ServerFacts | BloomError], crawler: Crawler, *, is_in_project: bool
) -> Iterator[Check]:
    """Yield all checks of a spider's settings and of its server.

    Args:
        known: facts of servers, or why there are none, by the settings that name them: each is
            read once.
        crawler: has the settings.
        is_in_project: whether there is a project.
    """
    settings, wrong, errors = read_settings(crawler.settings, name_of(crawler))
    for error in errors:
        yield Check("settings", of_error(error))
    if not errors:
        yield Check("settings", "all BLOOM_ settings are valid")
    yield from check(OF_PROJECT, Project(crawler, settings, is_in_project))
    if wrong & NAMES_OF_SERVER:
        yield Check("server", Unknown("not checked: settings that name it are wrong"))
        return
    need = 0
    try:
        need = _need(settings, {})
    except BloomError as error:
        yield Check("settings", of_error(_in_words(error)))
    place = place_of(settings.redis_url, need)
    if place is not None:
        yield from check(OF_PLACE, place)
    if place is not None and not place.is_there:
        yield Check("server", _binary())
    else:
        yield from _check_server(known, crawler, settings)


def read_settings(
    scrapy_settings: BaseSettings, spider: str
) -> tuple[BloomSettings, set[str], list[ConfigurationError]]:
    """Read our settings without those that are wrong; return also their names, and the errors."""
    names = own_names(scrapy_settings)
    found = {name: _error_of(name, scrapy_settings[name]) for name in names}
    errors = {name: error for name, error in found.items() if error is not None}
    good = _only(scrapy_settings, found.keys() - errors.keys())
    try:
        return BloomSettings.from_scrapy(good, spider), {*errors}, [*errors.values()]
    except ConfigurationError as error:
        # They contradict each other, or it is the key: the others that name the server are good.
        wrong = {*errors, *(["BLOOM_KEY"] if "BLOOM_KEY" in str(error) else [])}
        good = _only(scrapy_settings, NAMES_OF_SERVER - wrong)
        return BloomSettings.from_scrapy(good, spider), wrong, [*errors.values(), error]


def _error_of(name: str, value: object) -> ConfigurationError | None:
    try:
        parse_setting(name, value)
    except ConfigurationError as error:
        return error
    return None


def _only(scrapy_settings: BaseSettings, names: Collection[str]) -> BaseSettings:
    """Return settings of which ours are only those with some names."""
    copy = scrapy_settings.copy()
    for name in own_names(copy):
        if name not in names:
            del copy[name]
    return copy


def _who(names: Sequence[str], session: CommandSession) -> str:
    """Return the spiders of a check, if it is not one of all spiders."""
    if len(names) == len(_crawlers_names(session)):
        return ""
    return f" (spider {', '.join(names)})"


def _crawlers_names(session: CommandSession) -> Sequence[str]:
    return [session.opts.spider] if session.opts.spider else session.spiders or ["spider"]


def _line(one: Check, who: str) -> str:
    head = f"{MARKS[one.state]:8}{one.name}{who}: "
    if isinstance(one.result, Finding):
        return render.finding(one.result, head)
    return render.wrapped(head + one.result)


def place_of(url: str | None, need: int) -> Place | None:
    """Look at the directory of an address for so many bytes; None if it is no embedded server's."""
    if url is None or not url.startswith("embedded:") or url.startswith("embedded://"):
        return None
    directory = Path(url.removeprefix("embedded:") or data_directory("bloom"))
    directory = directory.expanduser().resolve()
    parents = [directory, *directory.parents]
    existing = next(path for path in parents if path.exists())
    temporary = [Path(path).resolve() for path in (*TEMPORARY, tempfile.gettempdir())]
    # A volume is mounted somewhere below the root.
    is_mounted = any(os.path.ismount(path) for path in parents[:-1])
    return Place(
        directory,
        directory.exists(),
        shutil.disk_usage(existing).free,
        any(path in parents for path in temporary),
        any(map(os.path.exists, CONTAINER_FILES)) and not is_mounted,
        need,
    )


def _binary() -> Result:
    """Return whether there is an embedded server to start."""
    try:
        from scrapy_bloom.bloom.client.embedded import binary  # noqa: PLC0415 - needs POSIX

        binary()
    except ImportError:
        text = '`url` = "embedded:" works on Linux and macOS only: use redis://host:port'
        return of_error(BloomError(text))
    except BloomError as error:
        return of_error(error)
    return "embedded: is not there yet, the first crawl starts it"


def _check_server(
    known: dict[str, ServerFacts | BloomError], crawler: Crawler, settings: BloomSettings
) -> Iterator[Check]:
    address = _address(crawler, settings)
    facts = known.get(address)
    try:
        if isinstance(facts, BloomError):
            raise facts
        with closing(Server(settings, crawler.settings, "")) as server:
            facts = known[address] = facts or _read(server, settings)
            yield from _check_filters(crawler, settings, server, facts)
    except BloomError as error:
        known[address] = error
        yield Check("server", of_error(error))


def _address(crawler: Crawler, settings: BloomSettings) -> str:
    """Return what names a server. It may hold a password."""
    names = ("REDIS_URL", "REDIS_HOST", "REDIS_PORT", "REDIS_DB", "REDIS_PARAMS")
    shared = [crawler.settings.get(name) for name in names]
    return repr((settings.redis_url, settings.redis_params, settings.timeout, shared))


def _read(server: Server, settings: BloomSettings) -> ServerFacts:
    """Read what there is to know of a server.

    Raises:
        StorageError: it does not answer.
    """
    driver = Driver(server.client, server.address, settings.timeout, WORDS)
    seconds = min(_ping(server) for _ in range(PINGS))
    return ServerFacts(
        address=server.address,
        seconds=seconds,
        is_cluster=isinstance(server.client, redis.RedisCluster),
        server=driver.infos("server"),
        memory=driver.infos("memory"),
        persistence=driver.infos("persistence"),
        replication=driver.infos("replication"),
        save=driver.options("save"),
    )


def _ping(server: Server) -> float:
    """Return the seconds until a server answers. Raises as ``Server.ping`` does."""
    begin = time.perf_counter()
    server.ping()
    return time.perf_counter() - begin


def _check_filters(
    crawler: Crawler, settings: BloomSettings, server: Server, facts: ServerFacts
) -> Iterator[Check]:
    """Yield the checks of a server that answers, and of its filters."""
    windows = [] if facts.is_old else [*server.filters.by_window]
    looks = {window: _look(server, window) for window in windows}
    snapshots = {window: one for window, one in looks.items() if isinstance(one, Snapshot)}
    stored = [next(iter(one.rings.values())).config.schedule for one in snapshots.values()]
    has_window = any([*stored, settings.schedule, settings.windows.others])
    need = None
    if not facts.is_old:
        try:
            need = _need(settings, snapshots)
        except BloomError as error:
            yield Check("settings", of_error(_in_words(error)))
    facts = replace(facts, has_window=has_window, replicas=settings.wait_replicas, need=need)
    yield from check(OF_SERVER, facts)
    if facts.is_old:
        return
    yield Check("rights", _rights(server, has_ledger=settings.ledger))
    ours = _fingerprinter(crawler)
    for window, look in looks.items():
        name = f"filter {server.key(window)}"
        if isinstance(look, Snapshot):
            findings = [*filter(None, _findings(settings, server, window, look, ours))]
            count = describe("", look).count
            fine = f"{count:,} URLs, stored with the settings of the project"
            yield from [Check(name, finding) for finding in findings] or [Check(name, fine)]
        elif look is not None:
            yield Check(name, of_error(look))
        else:
            yield Check(name, "is not there yet, the first crawl creates it")


def _look(server: Server, window: str) -> Snapshot | BloomError | None:
    """Return what is stored, or why it cannot be read."""
    try:
        return server.look(window)
    except BloomError as error:
        return error


def _rights(server: Server, *, has_ledger: bool) -> Result:
    try:
        bloom = server.filter(DEFAULT)
        bloom.run(_test_rights)
        if has_ledger:
            bloom.run(ledger_protocol.check_rights)
    except BloomError as error:
        return of_error(error)
    return "the user may do what a crawl needs"


def _test_rights(session: FilterSession) -> Operation[None]:
    replies = yield rights.test_open(session.keys, DEFAULT_BLOCKS)
    error = rights.missing(replies)
    if error is not None:
        raise error


def _findings(
    settings: BloomSettings, server: Server, window: str, snapshot: Snapshot, ours: str
) -> Iterator[Finding | None]:
    """Yield what is wrong with a filter.

    Args:
        settings: ours.
        server: has it.
        window: its window.
        snapshot: what is stored.
        ours: import path of the project's fingerprinter; "" if it cannot be used.
    """
    info = describe(server.key(window), snapshot)
    yield compare(options_of(settings, window), server.key(window), snapshot)
    if ours:
        yield advice.on_fingerprinter(snapshot.header.fingerprinter, ours)
    yield advice.on_capacity(info)
    lost = snapshot.header.blocks - len(snapshot.rings)
    if lost:
        yield Finding(
            f"{lost} of {info.blocks} blocks are gone",
            "their URLs are crawled again",
            "Find out what has evicted, flushed or deleted them; the next crawl makes new ones",
        )
    if not settings.makes_claims:
        yield advice.on_claims_ignored(info.claims)


def _need(settings: BloomSettings, snapshots: dict[str, Snapshot]) -> int:
    """Return the bytes that all filters take at full capacity, beyond what they take now.

    Raises:
        ConfigurationError: a filter is impossible.
    """
    need = 0
    for window in (DEFAULT, *settings.windows.others):
        wanted, snapshot = options_of(settings, window), snapshots.get(window)
        if snapshot is None:
            header, config, taken = wanted.new_header(), wanted.config(DEFAULTS), 0
        else:
            header, ring = snapshot.header, next(iter(snapshot.rings.values()))
            config, taken = wanted.config(ring.config), describe("", snapshot).memory
        need += max(0, load(header, config, config.capacity).memory - taken)
    return need


def _fingerprinter(crawler: Crawler) -> str:
    try:
        kind = type(fingerprinter_of(crawler))
    except Exception:  # of a class of the project's: another check says so
        return ""
    return f"{kind.__module__}.{kind.__qualname__}"


def _in_words(error: BloomError) -> BloomError:
    return type(error)(in_words(str(error), WORDS))
