"""What ``scrapy bloom doctor`` finds on the server of a project. It reads only."""

import time
from collections.abc import Iterator

import redis
from scrapy.crawler import Crawler

from scrapy_bloom.bloom.client.driver import Driver
from scrapy_bloom.bloom.errors import BloomError, in_words
from scrapy_bloom.bloom.model.forecast import load
from scrapy_bloom.bloom.model.sizing import DEFAULT_BLOCKS
from scrapy_bloom.bloom.options import DEFAULTS
from scrapy_bloom.bloom.protocol import ledger_protocol, rights
from scrapy_bloom.bloom.protocol.info import FilterInfo, describe
from scrapy_bloom.bloom.protocol.ring_store import Operation, Snapshot
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.cli.doctor_checks import (
    Check,
    ServerFacts,
    check_facts,
    check_memory,
    of_error,
)
from scrapy_bloom.cli.doctor_embedded import check_binary, check_place, place_of
from scrapy_bloom.cli.session import Server, fingerprinter_of
from scrapy_bloom.cli.stored_settings import compare, options_of
from scrapy_bloom.crawl import advice
from scrapy_bloom.crawl.advice import Finding
from scrapy_bloom.settings import DEFAULT, WORDS, BloomSettings

#: PINGs, of which the fastest counts.
PINGS = 3


class ServerDoctor:
    """Checks servers, each of them once."""

    def __init__(self) -> None:
        #: What is known of servers, by the settings that name them: facts, or why there are none.
        self._known: dict[str, ServerFacts | BloomError] = {}

    def check(self, crawler: Crawler, settings: BloomSettings) -> Iterator[Check]:
        """Yield the checks of the server and the filters of a spider."""
        place = place_of(settings.redis_url)
        need = 0
        try:
            need = _need(settings, {})
        except BloomError as error:
            yield of_error("settings", _in_words(error))
        if place is not None:
            yield from check_place(place, need)
            if not place.is_there:
                yield check_binary()
                return
        address = _address(crawler, settings)
        known = self._known.get(address)
        if isinstance(known, BloomError):
            yield of_error("server", known)
            return
        try:
            server = Server(settings, crawler.settings, "")
        except BloomError as error:
            self._known[address] = error
            yield of_error("server", error)
            return
        try:
            facts = _read(server, settings) if known is None else known
            self._known[address] = facts
            yield from _check_all(crawler, settings, server, facts)
        except BloomError as error:
            self._known[address] = error
            yield of_error("server", error)
        finally:
            server.close()


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


def _check_all(
    crawler: Crawler, settings: BloomSettings, server: Server, facts: ServerFacts
) -> Iterator[Check]:
    windows = [] if facts.is_old else [*server.filters.by_window]
    looks = {window: _look(server, window) for window in windows}
    snapshots = {window: one for window, one in looks.items() if isinstance(one, Snapshot)}
    stored = [next(iter(one.rings.values())).config.schedule for one in snapshots.values()]
    has_window = any([*stored, settings.schedule, settings.windows.others])
    yield from check_facts(facts, has_window=has_window, replicas=settings.wait_replicas)
    if facts.is_old:
        return
    try:
        yield check_memory(facts, _need(settings, snapshots))
    except BloomError as error:
        yield of_error("settings", _in_words(error))
    yield _check_rights(server, has_ledger=settings.ledger)
    ours = _fingerprinter(crawler)
    for window, look in looks.items():
        name = f"filter {server.key(window)}"
        if isinstance(look, BloomError):
            yield of_error(name, look)
        else:
            findings = _findings(settings, server, window, look, ours)
            found = [Check(name, finding=finding) for finding in findings if finding]
            yield from found or [Check(name, _state(look))]


def _look(server: Server, window: str) -> Snapshot | BloomError | None:
    """Return what is stored, or why it cannot be read."""
    try:
        return server.look(window)
    except BloomError as error:
        return error


def _check_rights(server: Server, *, has_ledger: bool) -> Check:
    try:
        bloom = server.filter(DEFAULT)
        bloom.run(_test_rights)
        if has_ledger:
            bloom.run(ledger_protocol.check_rights)
    except BloomError as error:
        return of_error("rights", error)
    return Check("rights", "the user may do what a crawl needs")


def _test_rights(session: FilterSession) -> Operation[None]:
    replies = yield rights.test_open(session.keys, DEFAULT_BLOCKS)
    error = rights.missing(replies)
    if error is not None:
        raise error


def _findings(
    settings: BloomSettings, server: Server, window: str, snapshot: Snapshot | None, ours: str
) -> Iterator[Finding | None]:
    """Yield what is wrong with a filter.

    Args:
        settings: ours.
        server: has it.
        window: its window.
        snapshot: what is stored; None if nothing is.
        ours: import path of the project's fingerprinter; "" if it cannot be used.
    """
    if snapshot is None:
        return
    info = describe(server.key(window), snapshot)
    yield compare(options_of(settings, window), server.key(window), snapshot)
    if ours:
        yield advice.on_fingerprinter(snapshot.header.fingerprinter, ours)
    yield advice.on_capacity(info)
    yield _on_lost(snapshot.header.blocks - len(snapshot.rings), info)
    if not settings.makes_claims:
        yield advice.on_claims_ignored(info.claims)


def _on_lost(lost: int, info: FilterInfo) -> Finding | None:
    if not lost:
        return None
    return Finding(
        f"{lost} of {info.blocks} blocks are gone",
        "their URLs are crawled again",
        "Find out what has evicted, flushed or deleted them; the next crawl makes new ones",
    )


def _state(snapshot: Snapshot | None) -> str:
    if snapshot is None:
        return "is not there yet, the first crawl creates it"
    info = describe("", snapshot)
    return f"{info.count:,} URLs, stored with the settings of the project"


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
