"""Users who lack rights: refused before anything changes, and by name when a filter is opened."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from support import ledgers
from support.calls import send
from support.cli import unchanged
from support.ledgers import items
from support.rights import PASSWORD, USER, Prober, denials, set_user, user_of, without
from support.servers import Server

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.client.driver import Driver
from scrapy_bloom.bloom.client.exchanges import BaseDriver
from scrapy_bloom.bloom.errors import RightsError
from scrapy_bloom.bloom.model.ledger import LedgerEntry, chunks_of
from scrapy_bloom.bloom.protocol import (
    claim_protocol,
    deletion,
    ledger_protocol,
    rights,
    worker_protocol,
)
from scrapy_bloom.bloom.protocol.claim_protocol import RetryPolicy
from scrapy_bloom.bloom.protocol.rights import CALLS, CRAWL, Rules, commands_for
from scrapy_bloom.bloom.protocol.scripts import WRITES, Call, commands_in, load
from scrapy_bloom.bloom.protocol.session import touches

pytestmark = pytest.mark.each_server

KEY = "k"
OWNER, OTHER = "w1", "w2"
FAILURE = RetryPolicy("-1", 0, 5)
SCRIPTS = {
    file.name.removesuffix(".lua")
    for file in resources.files("scrapy_bloom.bloom.protocol").joinpath("lua").iterdir()
    if not file.name.startswith("prelude_")
}


def make_claims(bloom: BloomFilter, found: list[bytes]) -> None:
    requests = ['{"url":"https://example.com"}'] * len(found)
    claim = claim_protocol.claim
    bloom.run(lambda session: claim(session, found, requests, OWNER, "1", memory=300_000))


def crawl(bloom: BloomFilter) -> None:
    """Do what a crawl does."""
    bloom.add_many(items(3))
    bloom.add_many(items(4))
    make_claims(bloom, items(8, 100))
    bloom.run(lambda s: claim_protocol.confirm(s, items(2, 100), (OWNER,)))
    bloom.run(lambda s: claim_protocol.release(s, items(2, 102), OWNER))
    bloom.run(lambda s: claim_protocol.release(s, items(2, 104), OWNER, FAILURE))
    bloom.run(lambda s: claim_protocol.make_due(s, items(2, 104), FAILURE.owner, "4"))
    bloom.run(lambda s: claim_protocol.hold(s, items(1, 106), OTHER, "2"))
    page = bloom.run(lambda s: claim_protocol.scan(s, {0: "0"}, 100))[0]
    bloom.run(lambda s: claim_protocol.reassign(s, 0, page.claims, OTHER, "3"))
    bloom.run(lambda s: deletion.note_windows(s, ["listing"]))
    send(bloom._driver, touches([bloom.session]))
    for worker in (OWNER, OTHER):
        beat = partial(worker_protocol.heartbeat, member=f"{worker} {{}}", life=60, nonce=worker)
        bloom.run(beat)
    found = bloom.run(worker_protocol.read_workers)
    bloom.run(partial(worker_protocol.remove_workers, entries=found.entries, nonce="n"))
    assert bloom.contains(items(5)) == [True] * 4 + [False]
    bloom.info()


def keep_ledger(bloom: BloomFilter) -> None:
    """Do what a crawl with a ledger does in addition, and list what is missing."""
    bloom.run(ledger_protocol.check_rights)
    for pages, missing in ((items(3, 300), ""), (items(3, 310), "HTTP 404")):
        ledgers.claim(bloom, pages)
        assert ledgers.add(bloom, pages, missing) == 3
        ledgers.crawl(bloom, pages, missing=missing)
    bloom.run(ledger_protocol.to_pack)
    noted = 0
    for block in bloom.session.held:
        noted += len(ledgers.missing_in(bloom, block))
        entries = ledgers.entries_of(bloom, block)
        read = [entry for text in entries.texts if (entry := LedgerEntry.parse(text))]
        chunks = [replace(one, time=1) for one in chunks_of(bloom.session.held[block].ring, read)]
        pack = partial(ledger_protocol.pack, entries=entries, chunks=chunks, nonce="1")
        assert not read or bloom.run(partial(pack, block=block))
    assert noted == 3
    due = bloom.run(ledgers.DUE)
    assert due
    listed = bloom.run(partial(ledger_protocol.chunks, tag="shop"))
    for block, member in listed.members:
        assert bloom.run(partial(ledger_protocol.chunk, block=block, member=member))
    assert bloom.run(partial(ledger_protocol.note_rules, tag="shop", before="", now="1"))
    assert bloom.run(partial(ledger_protocol.rules, tag="shop")) == "1"
    for chunk in due:
        bloom.run(partial(ledger_protocol.drop, chunk=chunk))
    assert bloom.keys()


def library(bloom: BloomFilter, tmp_path: Path) -> None:
    """Do what else there is."""
    other = BloomFilter(bloom._driver.client, "other", like=bloom)
    other.add_many(items(3, 200))
    bloom.update(other)
    bloom.copy("copy").approx_len()
    bloom.save(tmp_path / "file")
    BloomFilter.load(bloom._driver.client, "loaded", tmp_path / "file")
    for key in ("copy", "loaded", "other"):
        BloomFilter(bloom._driver.client, key).delete()


@contextmanager
def granted(server: Server, *uses: str, key: str = KEY) -> Iterator[Redis]:
    """Give a client of a user with exactly the rights that are generated."""
    with user_of(server) as user, server.client() as admin:
        make_user(admin, *uses, key=key)
        yield user


@pytest.fixture
def prober(server: Server, client: Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Prober]:
    """Tries all calls that filters make; each is made in the end."""
    with user_of(server) as user:
        prober, replies = Prober(client, user), BaseDriver._replies

        def probing(self: BaseDriver, calls: list[Call]) -> Any:
            for call in calls:
                prober.probe(call)
            return replies(self, calls)

        monkeypatch.setattr(BaseDriver, "_replies", probing)
        monkeypatch.setattr(Driver, "exchange", lambda *_: None)
        monkeypatch.setattr(worker_protocol, "MAX_WORKERS", 1)
        yield prober


def test_a_refused_script_leaves_no_half_of_its_writes(
    client: Redis, prober: Prober, tmp_path: Path
) -> None:
    make = partial(BloomFilter, client, KEY, capacity=100, blocks=1)
    lasting = make()
    crawl(lasting)
    library(lasting, tmp_path)
    lasting.add_many(items(150, 1_000))  # it grows
    lasting.clear()
    client.delete("{k:0}:ring")  # its bitmaps are found by their names
    lasting.delete()
    windows = make(window="2 days", period="1 day")
    crawl(windows)
    windows.rotate()
    windows.rotate()
    crawl(windows)
    keep_ledger(windows)
    client.flushall()
    keep_ledger(make())
    client.flushall()
    crawl(make(window="2 days", period="1 day", ring="write-all"))
    client.flushall()
    counting = make(counting=True)
    crawl(counting)
    counting.add_many(items(150, 1_000))
    counting.discard(items(1)[0])
    assert prober.tried.keys() == SCRIPTS
    for name in SCRIPTS:
        writes = WRITES & {*commands_in(load(name).text).needed}
        assert writes <= prober.refused[name], f"{name} is not tried with all that it writes"


def make_user(admin: Any, *uses: str, key: str = KEY, more: tuple[str, ...] = ()) -> None:
    """Make the user with exactly the rights that are generated."""
    admin.execute_command(
        *Rules.of([key], uses or (CRAWL,), more=more).setuser(USER, PASSWORD).split()
    )
    denials(admin)


def test_the_commands_that_write_are_known(client: Redis) -> None:
    known = client.execute_command("COMMAND")
    writes = {name.upper() for name, about in known.items() if "write" in about["flags"]}
    called = {name for script in SCRIPTS for name in commands_in(load(script).text).needed}
    assert called & writes == called & WRITES
    assert writes >= WRITES
    assert not WRITES & {*commands_for(rights.READ).needed}


def test_a_missing_command_is_named_when_a_filter_is_opened(server: Server, client: Redis) -> None:
    def assert_is_named(command: str) -> None:
        set_user(client, "~*", "+@all", without(command))
        with pytest.raises(RightsError) as error:
            BloomFilter(user, KEY).open()
        assert command.lower().replace(" ", "|") in str(error.value).lower().replace(" ", "|")

    with user_of(server) as user:
        for command in (*CALLS, *commands_for(CRAWL).needed):
            client.script_flush()
            assert_is_named(command)
            assert not client.keys("*")
            make_user(client)
            BloomFilter(user, KEY).open()
            assert_is_named(command)  # now there is a filter, and the scripts are loaded
            client.flushall()


@pytest.mark.parametrize("command", [*commands_for(CRAWL).optional, *rights.CLIENT])
def test_an_optional_command_is_not_needed(server: Server, client: Redis, command: str) -> None:
    with user_of(server, "~*", "+@all", without(command)) as user:
        bloom = BloomFilter(user, KEY, capacity=1_000, blocks=1)
        crawl(bloom)
        assert bloom.eviction_policy() == ("" if command == "INFO" else "noeviction")
        assert without(command)[1:] in denials(client) or command in ("TYPE", "SELECT")


def test_all_that_is_missing_is_named_with_the_user_and_the_remedy(
    server: Server, client: Redis
) -> None:
    def error_of(*rules: str) -> str:
        with user_of(server, *rules) as user, pytest.raises(RightsError) as error:
            BloomFilter(user, KEY, blocks=1).open()
        assert not client.keys("*")
        return str(error.value)

    text = error_of("~{k:*}:ring", "~{k:*}:0.*", "+@all", "-hset", "-expireat")
    assert "the user 'crawler' may not run EXPIREAT, HSET, nor read and write the keys " in text
    assert "'{k:0}:header', '{k:0}:claims', '{k:0}:heartbeats', '{k:0}:workers-version' on" in text
    assert text.endswith("/s: grant the filter's keys and the commands it needs (docs/acl.md)")
    assert "'{k:0}:0.0', '{k:0}:heartbeats' and 1 more on unix:///" in error_of("%R~*", "+@all")


def test_rights_that_are_taken_away_are_named(server: Server, client: Redis) -> None:
    with granted(server) as user:
        bloom = BloomFilter(user, KEY, blocks=1)
        crawl(bloom)
        for rule, name in (
            ("-hget -hmget -hgetall", "HM?GET"),
            ("resetkeys", "'{k:0}:ring'"),
            ("-evalsha", "'evalsha' command"),
        ):
            client.execute_command("ACL", "SETUSER", USER, *rule.split())
            calls = (partial(bloom.add, b"new"), partial(make_claims, bloom, items(3)), bloom.info)
            for call in calls:
                with unchanged(client), pytest.raises(RightsError, match=name) as error:
                    call()
                assert PASSWORD not in str(error.value)
            make_user(client)


@pytest.mark.parametrize("key", ["k", "a*b?[c]\\d", "tab and q\"u'o\t", "k:\u00e9\u4e2d^-,;$"])
def test_the_generated_rights_are_enough_and_for_this_filter_only(
    server: Server, client: Redis, key: str
) -> None:
    with granted(server, key=key) as user:
        for options in ({}, {"window": "2 days", "period": "1 day"}, {"counting": True}):
            bloom = BloomFilter(user, key, capacity=100, blocks=2, **options)
            crawl(bloom)
            bloom.add_many(items(500, 1_000))
            if options.get("window"):
                bloom.rotate()
            bloom.clear()
            client.flushall()
        crawl(BloomFilter(user, f"{key}:listing", blocks=1))
        assert bloom.eviction_policy()
        assert denials(client) == []
        for other in ("x", "xk", f"x{key}", f"{key}x", "aXbYcd", "a*b?c\\d"):
            with pytest.raises(RightsError):
                BloomFilter(user, other).open()


def test_the_rights_of_a_ledger_are_enough_and_missing_ones_are_named(
    server: Server, client: Redis
) -> None:
    with granted(server) as user:
        bloom = BloomFilter(user, KEY, capacity=100, blocks=2, window="2 days", period="1 day")
        crawl(bloom)
        with unchanged(client), pytest.raises(RightsError) as error:
            bloom.run(ledger_protocol.check_rights)
        lacking = {*commands_for(rights.LEDGER).needed} - {*commands_for(CRAWL).needed}
        assert lacking
        assert f"the user 'crawler' may not run {', '.join(sorted(lacking))} on" in str(error.value)
        assert PASSWORD not in str(error.value)
        make_user(client, CRAWL, rights.LEDGER)
        keep_ledger(bloom)
        bloom.clear()
        assert denials(client) == []
        client.execute_command("ACL", "SETUSER", USER, "resetkeys", "~{k:*}:[hrc0-9]*")
        with pytest.raises(RightsError, match=r"read and write the keys '\{k:0\}:ledger:new'"):
            bloom.run(ledger_protocol.check_rights)


def test_filters_that_are_combined_or_deleted_need_more(server: Server, client: Redis) -> None:
    """Files: test_cli.py."""
    crawl(BloomFilter(client, KEY, capacity=1_000, blocks=2))
    with granted(server) as user:
        bloom = BloomFilter(user, KEY)
        with pytest.raises(RightsError):
            bloom.copy(f"{KEY}:copy")
        make_user(client, CRAWL, rights.SETS)
        bloom.update(BloomFilter(user, KEY))
        bloom.copy(f"{KEY}:copy")
        client.delete("{k:1}:ring")  # its bitmaps have to be looked for
        make_user(client, CRAWL)
        with pytest.raises(RightsError):
            bloom.delete()
        make_user(client, CRAWL, rights.DELETE)
        bloom.delete()
        assert denials(client) == []
