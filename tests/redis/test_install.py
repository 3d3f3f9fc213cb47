"""Filters that are written under a free key: whole or not at all, whatever ends it and when."""

import asyncio
import io
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import redis
import redis.asyncio
from redis import Redis
from support.calls import send_text
from support.installing import (
    NEW,
    OTHERS,
    check_free,
    make,
    outcome,
    put_file,
)
from support.saving import Between, watched
from support.servers import Server, contents

from scrapy_bloom import AsyncBloomFilter, BloomFilter, ConfigurationError, StorageError
from scrapy_bloom.bloom.client import async_driver
from scrapy_bloom.bloom.extras.file import ArchiveReader
from scrapy_bloom.bloom.extras.install import UNFINISHED_SECONDS, load
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.scripts import Call

#: Writes the filter with ITEMS under the key "new", with something happening before round trips.
Put = Callable[[Redis, Between], None]


@pytest.fixture
def put(data: bytes) -> Put:
    return lambda client, between: put_file(client, data, between)


def count_round_trips(client: Redis, put: Put) -> int:
    client.flushall()
    seen: list[object] = []
    put(client, seen.append)
    return len(seen)


class KilledError(BaseException):
    """The process ends: nothing that is sent after it arrives."""


def fail(after: int, error: BaseException, *, for_ever: bool) -> Between:
    """Let round trips fail: one, or all from then on."""
    count = 0

    def between(calls: list[Call]) -> None:
        nonlocal count
        count += 1
        if count > after and (for_ever or count == after + 1):
            raise error

    return between


# -- one, which is ended --


@pytest.mark.parametrize("how", ["killed", "an error", "interrupted"])
def test_whatever_ends_it_and_whenever_there_is_nothing_or_the_whole(
    client: Redis, put: Put, how: str
) -> None:
    error, for_ever = {
        "killed": (KilledError(), True),
        "an error": (redis.ConnectionError("gone"), False),
        "interrupted": (KeyboardInterrupt(), False),
    }[how]
    outcomes, staying = [], 0
    for after in range(count_round_trips(client, put)):
        client.flushall()
        with suppress(StorageError, KilledError, KeyboardInterrupt):
            put(client, fail(after, error, for_ever=for_ever))
        found = outcome(client)
        outcomes.append(found)
        if found == "whole":
            continue
        left = client.keys(NEW)
        assert for_ever or not left
        staying += any(client.ttl(key) == -1 for key in left)
        assert all(client.ttl(key) <= UNFINISHED_SECONDS for key in left)
        if left and after % 2:
            with pytest.raises(ConfigurationError, match=r"being written .* was interrup"):
                put(client, lambda _: None)
            assert BloomFilter(client, "new").delete()
            assert not client.keys(NEW)
            put(client, lambda _: None)
            assert outcome(client) == "whole"
        else:
            check_free(client)
    assert [*dict.fromkeys(outcomes)] == ["nothing", "whole"]
    # Only where it ended between the last two steps.
    assert staying == for_ever


def test_a_header_that_arrives_late_finds_nothing(client: Redis, data: bytes) -> None:
    """As after a time-out: the server carries it out when the clean-up has begun."""
    for late in range(2, 20):
        client.flushall()
        sent: list[Call] = []
        waited = 0

        def hold(calls: list[Call], sent: list[Call] = sent, late: int = late) -> None:
            nonlocal waited
            waited += bool(sent)
            if calls[0].script.name == "create":
                sent.append(calls[0])
                raise redis.ConnectionError("gone")
            if sent and waited == late:
                send_text(client, sent[0])

        with pytest.raises(StorageError):
            put_file(client, data, hold)
        assert contents(client) == {}
        if waited < late:
            return
    pytest.fail("it does not end")


def before(name: str, what: Callable[[], object]) -> Between:
    """Do something before a script is called for the first time."""
    done = list[bool]()

    def between(calls: list[Call]) -> None:
        if not done and calls[0].script.name == name:
            done.append(True)
            what()

    return between


@pytest.mark.parametrize("script", ["allocate", "write_range", "create"])
def test_a_server_that_is_out_of_memory_says_so_and_nothing_is_left(
    client: Redis, put: Put, script: str
) -> None:
    try:
        with pytest.raises(StorageError, match="memory"):
            put(client, before(script, lambda: client.config_set("maxmemory", 1)))
    finally:
        client.config_set("maxmemory", 0)
    assert client.keys(NEW) == []


@pytest.mark.parametrize("block", [0, 2])
def test_bitmaps_that_are_evicted_meanwhile_are_noticed(
    client: Redis, put: Put, block: int
) -> None:
    """Also if no more is written to them, but to those of another block."""
    ring, evicted = Keys("new").ring(block), Keys("new").layer(0, "0.0")
    with pytest.raises(StorageError, match="is gone again: the server is out of memory and evict"):
        put(client, lambda calls: calls[0].keys[0] == ring and client.delete(evicted))
    assert client.keys(NEW) == []


# -- asyncio --


async def load_and_watch(own: Any, data: bytes, between: Between) -> None:
    bloom = AsyncBloomFilter(own, "new")

    def run(steps: Operation[Any], /, *, cleaning: bool = False) -> Any:
        return bloom.run_on_all(watched(steps, between), cleaning=cleaning)

    await load(run, Keys("new"), ArchiveReader(io.BytesIO(data)))


def test_a_task_that_is_cancelled_cleans_up_even_if_it_is_cancelled_again(
    server: Server, client: Redis, data: bytes
) -> None:
    async def attempt(after: int) -> str:
        """Cancel it at a round trip and at the next one, and say what came of that."""
        count, task = 0, asyncio.current_task()
        assert task is not None

        def cancel(calls: list[Call]) -> None:
            nonlocal count
            count += 1
            if count in (after, after + 1):
                task.cancel()

        # With a time-out of the client's, asyncio.wait_for may swallow it (before Python 3.12).
        async with redis.asyncio.Redis.from_url(server.url, socket_timeout=None) as own:
            try:
                await load_and_watch(own, data, cancel)
            except asyncio.CancelledError:
                while async_driver._cleaning:
                    await asyncio.sleep(0)
                return "cancelled"
            # redis-py swallows it where it looks for bytes that nobody asked for.
            return "ended before" if count < after else "swallowed"

    outcomes = []
    for after in range(1, 200):
        client.flushall()
        result = asyncio.run(attempt(after))
        found = outcome(client)
        if result == "cancelled":
            outcomes.append(found)
        else:
            assert found == "whole"
        if found == "nothing":
            assert not client.keys(NEW)
        if result == "ended before":
            break
    assert set(outcomes) <= {"nothing", "whole"}
    assert sorted(outcomes) == outcomes
    # redis-py 6 swallows all of them but the first.
    assert len(outcomes) > (0 if redis.__version__.startswith("6.") else 10)


def test_a_server_that_does_not_answer_is_not_waited_for(
    server: Server, client: Redis, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_driver, "CLEAN_UP_SECONDS", 0.01)

    def hang(calls: list[Call]) -> None:
        if calls[0].script.name == "write_range":
            client.client_pause(600_000, all=False)
            raise asyncio.CancelledError

    async def scenario() -> None:
        async with redis.asyncio.Redis.from_url(server.url) as own:
            await load_and_watch(own, data, hang)

    try:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(scenario())
    finally:
        client.client_unpause()
    assert outcome(client) == "nothing"


def test_the_header_is_restored_from_any_ring_of_what_is_finished(client: Redis, put: Put) -> None:
    put(client, lambda _: None)
    before = BloomFilter(client, "new").open()
    client.delete(Keys("new").header(), Keys("new").ring(0), Keys("new").ring(2))
    assert BloomFilter(client, "new").open() == before


# -- a key that is in use --


@pytest.mark.parametrize(
    "lost", [(), ("{new:0}:header",), ("{new:0}:ring", "{new:1}:ring", "{new:2}:ring")]
)
def test_a_key_in_use_is_refused_before_anything_is_written(
    client: Redis, put: Put, lost: tuple[str, ...]
) -> None:
    make(client, "new", OTHERS, window="3 days", period="1 day", blocks=5)
    if lost:
        client.delete(*lost)
    before = {key: value for key, value in contents(client).items() if b"{new:" in key}
    written: list[str] = []
    with pytest.raises(
        ConfigurationError,
        match=r"'new' is in use, there is a filter .* or delete this one first \(filter\.delete\(\)"
        r", scrapy bloom delete\)",
    ):
        put(client, lambda calls: written.extend(call.script.name for call in calls))
    after = {key: value for key, value in contents(client).items() if b"{new:" in key}
    assert after == before
    assert not {"swap", "allocate", "write_range", "create", "drop"} & set(written)
