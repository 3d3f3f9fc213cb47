"""Filters that are written under a key: whole or not at all, whatever ends it, whoever uses it."""

import asyncio
import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
import redis
import redis.asyncio
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from redis import Redis
from support.calls import send_text
from support.cli import unchanged
from support.examples import examples
from support.installing import (
    ITEMS,
    NEW,
    OTHERS,
    Racer,
    check_clean,
    check_free,
    file_of,
    make,
    outcome,
    put_file,
)
from support.outages import admin, stalled
from support.saving import Between, watched
from support.servers import Server, contents

from scrapy_bloom import (
    AsyncBloomFilter,
    BloomFilter,
    ConfigurationError,
    FilterMismatchError,
    StorageError,
)
from scrapy_bloom.bloom.client import async_driver
from scrapy_bloom.bloom.extras.file import ArchiveReader
from scrapy_bloom.bloom.extras.install import UNFINISHED_SECONDS, load
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.scripts import Call

#: Writes the filter with ITEMS under the key "new", with something happening before round trips.
Put = Callable[[Redis, Between], object]


@pytest.fixture
def put(data: bytes) -> Put:
    return lambda client, between: put_file(client, data, between)


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


@pytest.mark.parametrize("error", [KilledError, redis.ConnectionError, KeyboardInterrupt])
def test_whatever_ends_it_and_whenever_there_is_nothing_or_the_whole(
    client: Redis, put: Put, error: type[BaseException]
) -> None:
    for_ever = error is KilledError
    outcomes, staying, calls = [], 0, list[object]()
    put(client, calls.append)
    for after in range(len(calls)):
        client.flushall()
        with suppress(StorageError, KilledError, KeyboardInterrupt):
            put(client, fail(after, error("gone"), for_ever=for_ever))
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


@pytest.mark.parametrize("script", ["allocate", "write_range", "create"])
def test_a_server_that_is_out_of_memory_says_so_and_nothing_is_left(
    server: Server, client: Redis, put: Put, script: str
) -> None:
    def fill(calls: list[Call]) -> None:
        if calls[0].script.name == script:
            client.config_set("maxmemory", 1)

    undo = ("CONFIG", "SET", "maxmemory", "0")
    with admin(server, *undo), pytest.raises(StorageError, match="memory"):
        put(client, fill)
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
            stack.enter_context(stalled(server))
            raise asyncio.CancelledError

    async def scenario() -> None:
        async with redis.asyncio.Redis.from_url(server.url) as own:
            await load_and_watch(own, data, hang)

    with ExitStack() as stack, pytest.raises(asyncio.CancelledError):
        asyncio.run(scenario())
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
    for key in lost:
        client.delete(key)
    called: list[str] = []
    message = "'new' is in use, there is a filter .* or delete this one first .*scrapy bloom delete"
    with unchanged(client), pytest.raises(ConfigurationError, match=message):
        put(client, lambda calls: called.extend(call.script.name for call in calls))
    assert not {"swap", "allocate", "write_range", "create", "drop"} & set(called)


# -- with others at the same time --


@pytest.fixture(scope="module")
def arena(any_binary: str) -> Iterator[tuple[Redis, list[bytes]]]:
    """A server, and the files of two filters of different sizes."""
    with Server(any_binary) as server, server.client() as client:
        one, two = make(client, "one"), make(client, "two", OTHERS, blocks=5)
        files = [file_of(one), file_of(two)]
        client.flushall()
        yield client, files


def race(
    racers: list[Racer], turns: list[bool], ends: tuple[int | None, int | None] = (None, None)
) -> None:
    """Let two go on by turns; the reply to one of their round trips may be lost."""
    turns, made = turns[:], [0, 0]
    while not all(racer.ended for racer in racers):
        index = turns.pop() if turns else not racers[1].ended
        if racers[index].ended:
            index = not index
        racers[index].go_on(lost=made[index] == ends[index])
        made[index] += 1


@given(
    turns=st.lists(st.booleans(), max_size=80),
    ends=st.tuples(*[st.one_of(st.none(), st.integers(0, 40))] * 2),
    chosen=st.tuples(st.integers(0, 1), st.integers(0, 1)),
)
@examples(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_of_two_at_once_that_end_nothing_is_mixed(
    arena: tuple[Redis, list[bytes]],
    turns: list[bool],
    ends: tuple[int | None, int | None],
    chosen: tuple[int, int],
) -> None:
    client, files = arena
    client.flushall()
    racers = [Racer(client, files[number]) for number in chosen]
    race(racers, turns, ends)
    found = outcome(client)
    assert found in ("nothing", "whole", "others")
    if found == "nothing":
        assert all(racer.error for racer in racers)
        assert contents(client) == {}
    else:
        BloomFilter(client, "new").open()
        assert {key.decode() for key in client.keys(NEW)} == set(BloomFilter(client, "new").keys())


@pytest.mark.parametrize(("known", "blocks"), [(True, 3), (False, 3), (True, 7)])
def test_a_crawl_that_opens_the_key_meanwhile_wins_or_finds_the_whole(
    client: Redis, data: bytes, known: bool, blocks: int
) -> None:
    """At any round trip; also a crawl that has a filter open which was deleted."""
    outcomes = []
    for when in range(100):
        client.flushall()
        crawl = BloomFilter(client, "new", blocks=blocks, capacity=200)
        if known:
            crawl.extend(OTHERS)
            BloomFilter(client, "new").delete()
        racer = Racer(client, data)
        for _ in range(when):
            racer.go_on()
        is_last = racer.ended
        try:
            new = crawl.add_many(ITEMS)
        except FilterMismatchError:
            new = []  # the file's filter has other blocks
        racer.to_the_end()
        outcomes.append(racer.error is None)
        if racer.error is None:
            assert not any(new)
            assert outcome(client) == "whole"
        else:
            assert all(new)
            assert crawl.contains(ITEMS) == [True] * len(ITEMS)
            assert not any(crawl.contains(OTHERS))
            check_clean(client)
        if is_last:
            break
    assert [*dict.fromkeys(outcomes)] == [False, True]


def test_one_that_is_dropped_sends_nothing_more(client: Redis, data: bytes) -> None:
    racer = Racer(client, data)
    for _ in range(8):
        racer.go_on()
    del racer
    assert client.keys(NEW)
    check_free(client)
