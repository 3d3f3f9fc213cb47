"""``scrapy bloom doctor``: what is wrong with a project and its server. Changes nothing."""

import os
import shutil
import tempfile
import timeit
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import redis
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings
from scrapy.utils.python import global_object_name

from scrapy_bloom.bloom.client.addresses import is_embedded
from scrapy_bloom.bloom.client.driver import Driver
from scrapy_bloom.bloom.errors import BloomError, ConfigurationError, in_words
from scrapy_bloom.bloom.model.forecast import load
from scrapy_bloom.bloom.model.sizing import DEFAULT_BLOCKS
from scrapy_bloom.bloom.options import DEFAULTS
from scrapy_bloom.bloom.protocol import ledger_protocol, rights
from scrapy_bloom.bloom.protocol.info import FilterInfo
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.bloom.validators import plural
from scrapy_bloom.cli import output
from scrapy_bloom.cli.change import compare, options_of
from scrapy_bloom.cli.doctor_checks import (
    OF_PROJECT,
    OF_SERVER,
    Check,
    Project,
    Result,
    ServerFacts,
    Unknown,
    check,
    of_error,
)
from scrapy_bloom.cli.output import size
from scrapy_bloom.cli.server import ProjectServer, Stored
from scrapy_bloom.cli.session import (
    CommandSession,
    ExitCode,
    fingerprinter_of,
    name_of,
    subcommand,
)
from scrapy_bloom.crawl import advice
from scrapy_bloom.crawl.advice import Finding
from scrapy_bloom.crawl.server import data_directory
from scrapy_bloom.settings import DEFAULT, WORDS, BloomSettings, own_names, parse_setting

#: Settings without which it is not known which server, or which filter, is meant.
NAMES_OF_SERVER = {"BLOOM_REDIS_URL", "BLOOM_REDIS_PARAMS", "BLOOM_KEY"}
#: What stands before a check, by its state.
MARKS = {"fine": "ok", "problem": "PROBLEM", "unknown": "?"}
#: Files that container engines make.
CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv")
#: Directories that a restart of the machine empties.
TEMPORARY = ("/tmp", "/dev/shm", "/run")  # noqa: S108 - it is about these
#: Sizes of the filters that files take, while the embedded server writes them again.
ON_DISK = 2
#: PINGs, of which the fastest counts.
PINGS = 3


@subcommand("say what is wrong with a project and its server; changes nothing")
def doctor(session: CommandSession) -> ExitCode:
    """Print what was checked, and what is wrong.

    Raises:
        ConfigurationError: the options name no spider of the project.
    """
    known, found = dict[str, ServerFacts | BloomError](), dict[Check, list[str]]()
    # Of the chosen spider, or all; outside a project, of none in particular.
    spiders = [session.crawler.spidercls] if session.opts.spider else session.all_spiders
    crawlers = [*map(session.crawler_of, spiders)]
    for crawler in crawlers:
        for one in _examine(known, crawler, is_in_project=bool(session.spiders)):
            names = found.setdefault(one, [])
            if name_of(crawler) not in names:
                names.append(name_of(crawler))
    problems = sum(one.state == "problem" for one in found)
    document = {
        "problems": problems,
        "checks": [one.document() | {"spiders": names} for one, names in found.items()],
    }
    everybody = len({*map(name_of, crawlers)})
    lines = [_line(one, names, everybody) for one, names in found.items()]
    summary = f"{plural(problems, 'problem')} found" if problems else "No problem found"
    session.report(document, "\n".join([*lines, "", summary]))
    return ExitCode.of(not problems)


def _line(one: Check, spiders: Sequence[str], everybody: int) -> str:
    who = f" (spider {', '.join(spiders)})" if len(spiders) < everybody else ""
    head = f"{MARKS[one.state]:8}{one.name}{who}: "
    if isinstance(one.result, Finding):
        return output.finding(one.result, head)
    return output.wrapped(head + one.result)


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
    settings, errors = read_settings(crawler.settings, name_of(crawler))
    for result in map(of_error, errors.values()) if errors else ["all BLOOM_ settings can be read"]:
        yield Check("settings", result)
    yield from check(OF_PROJECT, Project(crawler, settings, is_in_project))
    if errors.keys() & NAMES_OF_SERVER:
        yield Check("server", Unknown("not checked: settings that name it are wrong"))
        return
    need = _need(settings, {})
    if isinstance(need, BloomError):
        yield Check("settings", of_error(need))
    directory = directory_of(settings.redis_url)
    if directory is not None:
        yield from check_place(directory, 0 if isinstance(need, BloomError) else need)
    if directory is not None and not directory.exists() and os.name == "posix":
        yield Check("server", _binary())
    else:
        yield from _check_server(known, crawler, settings)


def read_settings(
    scrapy_settings: BaseSettings, spider: str
) -> tuple[BloomSettings, dict[str, ConfigurationError]]:
    """Read our settings without those that are wrong; return also the errors, by their names."""
    good, errors = scrapy_settings.copy(), dict[str, ConfigurationError]()
    for name in own_names(good):
        try:
            parse_setting(name, good[name])
        except ConfigurationError as error:
            errors[name] = error
            del good[name]
    try:
        return BloomSettings.from_scrapy(good, spider), errors
    except ConfigurationError as error:
        # They contradict each other, or it is the key: the others that name the server are good.
        wrong = "BLOOM_KEY" if "BLOOM_KEY" in str(error) else "several"
        for name in own_names(good):
            if name not in NAMES_OF_SERVER - {wrong}:
                del good[name]
        return BloomSettings.from_scrapy(good, spider), errors | {wrong: error}


# -- the place of an embedded server --


def directory_of(url: str | None) -> Path | None:
    """Return the directory of an address; None if it is no embedded server's."""
    if url is None or not is_embedded(url):
        return None
    directory = Path(url.removeprefix("embedded:") or data_directory("bloom"))
    return directory.expanduser().resolve()


def check_place(directory: Path, need: int) -> Iterator[Check]:
    """Yield what is to be said of an embedded server's directory, for so many bytes of filters."""
    parents = [directory, *directory.parents]
    free = shutil.disk_usage(next(path for path in parents if path.exists())).free
    temporary = [Path(path).resolve() for path in (*TEMPORARY, tempfile.gettempdir())]
    # A volume is mounted somewhere below the root.
    is_mounted = any(os.path.ismount(path) for path in parents[:-1])
    is_in_container = any(map(os.path.exists, CONTAINER_FILES)) and not is_mounted
    if not is_in_container and not any(path in parents for path in temporary):
        yield Check("place", f"{directory}, {size(free)} free")
    else:
        when = "the container is removed" if is_in_container else "the machine restarts"
        remedy = 'Set BLOOM_REDIS_URL = "embedded:/a/lasting/directory"'
        problem = Finding(
            f"embedded: keeps its data in {directory}, which is lost when {when}",
            "the filter is lost with all that is pending, and everything is crawled again",
            f"{remedy} on a volume" if is_in_container else remedy,
        )
        yield Check("place", problem)
    if free < ON_DISK * need:
        problem = Finding(
            f"{size(free)} are free on the disk of {directory}, and the filters take up to "
            f"{size(ON_DISK * need)} there at full capacity",
            "a server with a full disk refuses to record",
            "Free the disk, or use a directory on another one",
        )
        yield Check("disk", problem)


def _binary() -> Result:
    """Return whether there is an embedded server to start."""
    from scrapy_bloom.bloom.client.embedded import binary  # noqa: PLC0415 - needs POSIX

    try:
        binary()
    except BloomError as error:
        return of_error(error)
    return "embedded: is not there yet, the first crawl starts it"


# -- the server and its filters --


def _check_server(
    known: dict[str, ServerFacts | BloomError], crawler: Crawler, settings: BloomSettings
) -> Iterator[Check]:
    address = _address(crawler, settings)
    facts = known.get(address)
    try:
        if isinstance(facts, BloomError):
            raise facts
        with closing(ProjectServer(settings, crawler.settings)) as server:
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


def _read(server: ProjectServer, settings: BloomSettings) -> ServerFacts:
    """Read what there is to know of a server.

    Raises:
        StorageError: it does not answer.
    """
    driver = Driver(server.client, server.address, settings.timeout, WORDS)
    seconds = min(timeit.repeat(server.ping, number=1, repeat=PINGS))
    is_cluster = isinstance(server.client, redis.RedisCluster)
    nodes, save = driver.infos("default"), driver.options("save")
    return ServerFacts(server.address, seconds, is_cluster, nodes, save)


def _check_filters(
    crawler: Crawler, settings: BloomSettings, server: ProjectServer, facts: ServerFacts
) -> Iterator[Check]:
    """Yield the checks of a server that answers, and of its filters."""
    windows = [] if facts.is_old else [*server.filters.by_window]
    looks = {window: _look(server, window) for window in windows}
    found = {window: one for window, one in looks.items() if isinstance(one, Stored)}
    schedules = [settings.schedule, *(stored.config.schedule for stored in found.values())]
    has_window = any([*schedules, settings.windows.others])
    need = None if facts.is_old else _need(settings, found)
    if isinstance(need, BloomError):
        yield Check("settings", of_error(need))
        need = None
    facts = replace(facts, has_window=has_window, replicas=settings.wait_replicas, need=need)
    yield from check(OF_SERVER, facts)
    if facts.is_old:
        return
    yield Check("rights", _rights(server, has_ledger=settings.ledger))
    for window, look in looks.items():
        for result in _results(crawler, settings, look):
            yield Check(f"filter {server.key(window)}", result)


def _look(server: ProjectServer, window: str) -> Stored | BloomError | None:
    """Return what is stored, or why it cannot be read."""
    try:
        return server.look(window)
    except BloomError as error:
        return error


def _results(
    crawler: Crawler, settings: BloomSettings, look: Stored | BloomError | None
) -> Sequence[Result]:
    """Return what is wrong with a filter, or that it is fine."""
    if look is None:
        return ["is not there yet, the first crawl creates it"]
    if isinstance(look, BloomError):
        return [of_error(look)]
    claims = 0 if settings.makes_claims else look.info.claims
    findings = (
        compare(options_of(settings, look.window), look),
        _fingerprints(crawler, look),
        advice.on_capacity(look.info),
        _lost(look.info),
        advice.on_claims_ignored(claims),
    )
    fine = f"{look.info.count:,} URLs, stored with the settings of the project"
    return [one for one in findings if one is not None] or [fine]


def _fingerprints(crawler: Crawler, stored: Stored) -> Finding | None:
    try:
        ours = global_object_name(type(fingerprinter_of(crawler)))
    except Exception:  # of a class of the project's: another check says so
        return None
    return advice.on_fingerprinter(stored.snapshot.header.fingerprinter, ours)


def _lost(info: FilterInfo) -> Finding | None:
    if not info.lost_blocks:
        return None
    return Finding(
        f"{info.lost_blocks} of {info.blocks} blocks are gone",
        "their URLs are crawled again",
        "Find out what has evicted, flushed or deleted them; the next crawl makes new ones",
    )


def _rights(server: ProjectServer, *, has_ledger: bool) -> Result:
    def test_open(session: FilterSession) -> Operation[None]:
        replies = yield rights.test_open(session.keys, DEFAULT_BLOCKS)
        error = rights.missing(replies)
        if error is not None:
            raise error

    bloom = server.filter(server.key(DEFAULT))
    try:
        bloom.run(test_open)
        if has_ledger:
            bloom.run(ledger_protocol.check_rights)
    except BloomError as error:
        return of_error(error)
    return "the user may do what a crawl needs"


def _need(settings: BloomSettings, found: Mapping[str, Stored]) -> int | BloomError:
    """Return the bytes that all filters take at full capacity, beyond what they take now.

    An error if a filter is impossible.
    """
    need = 0
    try:
        for window in (DEFAULT, *settings.windows.others):
            wanted, stored = options_of(settings, window), found.get(window)
            header = stored.snapshot.header if stored is not None else wanted.new_header()
            config = wanted.config(DEFAULTS if stored is None else stored.config)
            taken = 0 if stored is None else stored.info.memory
            need += max(0, load(header, config, config.capacity).memory - taken)
    except BloomError as error:
        return type(error)(in_words(str(error), WORDS))
    return need
