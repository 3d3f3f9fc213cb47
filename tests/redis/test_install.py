"""Filters that are written under a free key: whole or not at all, whatever ends it and when."""

import asyncio
import io
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import coroutine
from typing import Any, TypeVar

import pytest
import redis
import redis.asyncio
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from support.calls import send_text
from support.examples import examples
from support.saving import Between, blocking, watched
from support.servers import Server, contents

from scrapy_bloom import (
    AsyncBloomFilter,
    BloomFilter,
    ConfigurationError,
    FilterMismatchError,
    StorageError,
)
from scrapy_bloom.bloom.base import complete
from scrapy_bloom.bloom.client import async_driver
from scrapy_bloom.bloom.client.driver import Driver
from scrapy_bloom.bloom.extras.file import ArchiveReader
from scrapy_bloom.bloom.extras.install import UNFINISHED_SECONDS, load
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.scripts import Call, Reply

T = TypeVar("T")
ITEMS = [f"https://example.com/{number}" for number in range(60)]
OTHERS = [f"https://example.org/{number}" for number in range(60)]
NEW = "{new:*"
#: Writes the filter with ITEMS under the key "new", with something happening before round trips.
Put = Callable[[redis.Redis, Between], None]


def make(client: redis.Redis, key: str, items: list[str] = ITEMS, **options: Any) -> BloomFilter:
    bloom = BloomFilter(
        client, key, **{"capacity": 200, "blocks": 3, "error_rate": 1e-9, **options}
    )
    bloom.extend(items)
    return bloom


def file_of(bloom: BloomFilter) -> bytes:
    file = io.BytesIO()
    bloom.save(file)
    return file.getvalue()


@pytest.fixture
def data(client: redis.Redis) -> bytes:
    """The file of a filter with ITEMS, which is not on the server any more."""
    bloom = make(client, "gone")
    found = file_of(bloom)
    bloom.delete()
    return found


def put_file(client: redis.Redis, data: bytes, between: Between) -> None:
    run = Driver(client).run
    watching = blocking(lambda steps: run(watched(steps, between)))
    complete(load(watching, Keys("new"), ArchiveReader(io.BytesIO(data))))


@pytest.fixture
def put(data: bytes) -> Put:
    return lambda client, between: put_file(client, data, between)


def outcome(client: redis.Redis) -> str:
    """Return what a client finds that opens the filter."""
    bloom = BloomFilter(client, "new")
    if bloom.look() is None:
        return "nothing"
    found = bloom.contains(ITEMS), bloom.contains(OTHERS)
    whole, none = [True] * len(ITEMS), [False] * len(ITEMS)
    assert bloom.lost_blocks == 0
    return {(True, False): "whole", (False, True): "others"}.get(
        (found == (whole, none), found == (none, whole)), "a part"
    )


def check_clean(client: redis.Redis) -> None:
    """Nothing is there but the keys of the filter, and nothing is unfinished."""
    assert {key.decode() for key in client.keys(NEW)} == set(BloomFilter(client, "new").keys())
    nonces = [client.hget(key, "v") for key in client.keys("{new:*ring")]
    assert not any(nonce.startswith(b"unfinished") for nonce in nonces)


def check_free(client: redis.Redis) -> None:
    """A crawl can use the key: nothing is hidden from it; and it can be deleted."""
    crawl = BloomFilter(client, "new", blocks=5)
    assert crawl.add_many(ITEMS) == [True] * len(ITEMS)
    assert crawl.add_many(ITEMS) == [False] * len(ITEMS)
    assert crawl.delete()


def count_round_trips(client: redis.Redis, put: Put) -> int:
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


@pytest.mark.parametrize("how", ["killed", "an error", "no server any more", "interrupted"])
def test_whatever_ends_it_and_whenever_there_is_nothing_or_the_whole(
    client: redis.Redis, put: Put, how: str
) -> None:
    error, for_ever = {
        "killed": (KilledError(), True),
        "an error": (redis.ConnectionError("gone"), False),
        "no server any more": (redis.ConnectionError("gone"), True),
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


@pytest.mark.parametrize("options", [{}, {"window": "3 days", "period": "1 day"}])
def test_whatever_reply_is_lost_there_is_nothing_or_the_whole(
    client: redis.Redis, options: dict[str, Any]
) -> None:
    """Whether it was carried out is not known then."""
    data, outcomes = file_of(make(client, "gone", **options)), []

    def put(client: redis.Redis, between: Between) -> None:
        put_file(client, data, between)

    for after in range(count_round_trips(client, put)):
        client.flushall()
        count = 0

        def lose(calls: list[Call], after: int = after) -> None:
            nonlocal count
            count += 1
            if count == after + 1:
                for call in calls:
                    send_text(client, call)
                raise redis.ConnectionError("gone")

        with suppress(StorageError):
            put(client, lose)
        outcomes.append(outcome(client))
        if outcomes[-1] == "nothing":
            assert contents(client) == {}
        elif after + 1 < len(outcomes):
            check_clean(client)
    assert [*dict.fromkeys(outcomes)] == ["nothing", "whole"]


def test_a_header_that_arrives_late_finds_nothing(client: redis.Redis, data: bytes) -> None:
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


def test_a_client_that_sends_commands_again_changes_nothing(client: redis.Redis, put: Put) -> None:
    """As redis-py 6 and later do, if nobody says otherwise; whatever it is that comes twice."""
    for number in range(count_round_trips(client, put)):
        client.flushall()
        count = 0

        def twice(calls: list[Call], number: int = number) -> None:
            nonlocal count
            for call in calls if count == number else ():
                send_text(client, call)
            count += 1

        put(client, twice)
        assert outcome(client) == "whole"
        assert len(BloomFilter(client, "new")) == len(ITEMS)
        check_clean(client)


def fail_before(name: str, error: BaseException) -> Between:
    """Let all round trips fail from the first call of a script on."""
    ended = False

    def between(calls: list[Call]) -> None:
        nonlocal ended
        ended |= calls[0].script.name == name
        if ended:
            raise error

    return between


def before(name: str, what: Callable[[], object]) -> Between:
    """Do something before a script is called for the first time."""
    done = []

    def between(calls: list[Call]) -> None:
        if not done and calls[0].script.name == name:
            done.append(True)
            what()

    return between


@pytest.mark.parametrize("script", ["allocate", "write_range", "create"])
def test_a_server_that_is_out_of_memory_says_so_and_nothing_is_left(
    client: redis.Redis, put: Put, script: str
) -> None:
    try:
        with pytest.raises(StorageError, match="memory"):
            put(client, before(script, lambda: client.config_set("maxmemory", 1)))
    finally:
        client.config_set("maxmemory", 0)
    assert client.keys(NEW) == []


def test_bitmaps_that_are_evicted_meanwhile_are_noticed(client: redis.Redis, data: bytes) -> None:
    """Whenever they go, and also if no more is written to them."""
    for when in range(2, 100):
        client.flushall()
        racer = Racer(client, data)
        for _ in range(when):
            racer.go_on()
        evicted = client.delete(Keys("new").layer(0, "0.0"))
        if racer.next_script == "swap" and evicted and len(client.keys("{new:*ring")) == 3:
            return  # the header is about to be written: a bitmap that is lost now is found lost
        racer.to_the_end()
        if evicted:
            assert "is gone again: the server is out of memory and evicts" in str(racer.error)
            assert client.keys(NEW) == []
    pytest.fail("it does not end")


# -- asyncio --


@pytest.mark.parametrize("again", [False, True])
def test_a_task_that_is_cancelled_cleans_up_even_if_it_is_cancelled_again(
    server: Server, client: redis.Redis, data: bytes, again: bool
) -> None:
    async def attempt(after: int) -> str:
        """Cancel it at a round trip, and say what came of that."""
        # With a time-out of the client's, asyncio.wait_for may swallow it (before Python 3.12).
        async with redis.asyncio.Redis.from_url(server.url, socket_timeout=None) as own:
            bloom, count = AsyncBloomFilter(own, "new"), 0
            task = asyncio.current_task()
            assert task is not None

            def cancel(calls: list[Call]) -> None:
                nonlocal count
                count += 1
                if count == after or (again and count == after + 1):
                    task.cancel()

            def run(steps: Operation[Any], /, *, cleaning: bool = False) -> Any:
                return bloom.run_on_all(watched(steps, cancel), cleaning=cleaning)

            try:
                await load(run, Keys("new"), ArchiveReader(io.BytesIO(data)))
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
    server: Server, client: redis.Redis, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_driver, "CLEAN_UP_SECONDS", 0.01)

    async def scenario() -> None:
        async with redis.asyncio.Redis.from_url(server.url) as own:
            bloom = AsyncBloomFilter(own, "new")

            def hang(calls: list[Call]) -> None:
                if calls[0].script.name == "write_range":
                    client.client_pause(600_000, all=False)
                    raise asyncio.CancelledError

            def run(steps: Operation[Any], /, *, cleaning: bool = False) -> Any:
                return bloom.run_on_all(watched(steps, hang), cleaning=cleaning)

            await load(run, Keys("new"), ArchiveReader(io.BytesIO(data)))

    try:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(scenario())
    finally:
        client.client_unpause()
    assert outcome(client) == "nothing"


# -- several at once --


@coroutine
def step_by_step(steps: Operation[T], /, *, cleaning: bool = False) -> Operation[T]:
    """Leave the round trips of an operation to who drives the coroutine that awaits it."""
    return (yield from steps)


class Racer:
    """One of several operations, which goes on when it is told to."""

    def __init__(self, client: redis.Redis, data: bytes) -> None:
        self._client = client
        self._steps = load(step_by_step, Keys("new"), ArchiveReader(io.BytesIO(data)))
        self._calls: list[Call] | None = None
        self.error: Exception | None = None
        self.ended = False

    @property
    def next_script(self) -> str:
        return self._calls[0].script.name if self._calls else ""

    def go_on(self, *, lost: bool = False) -> None:
        """Make one round trip; its replies may be lost."""
        try:
            if self._calls is None:
                self._calls = self._steps.send(None)
            replies = [Reply.parse(send_text(self._client, call)) for call in self._calls]
            if lost:
                self._calls = self._steps.throw(StorageError("the replies are lost"))
            else:
                self._calls = self._steps.send(replies)
        except StopIteration:
            self.ended = True
        except (StorageError, ConfigurationError) as error:
            self.ended, self.error = True, error

    def to_the_end(self) -> None:
        while not self.ended:
            self.go_on()


@pytest.fixture(scope="module")
def arena(any_binary: str) -> Iterator[tuple[redis.Redis, list[bytes]]]:
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


TURNS = st.lists(st.booleans(), max_size=80)
CHOSEN = st.tuples(st.integers(0, 1), st.integers(0, 1))


@given(turns=TURNS, chosen=CHOSEN)
@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_of_two_at_once_exactly_one_wins(
    arena: tuple[redis.Redis, list[bytes]], turns: list[bool], chosen: tuple[int, int]
) -> None:
    client, files = arena
    client.flushall()
    racers = [Racer(client, files[number]) for number in chosen]
    race(racers, turns)
    (winner,) = [n for n, racer in zip(chosen, racers, strict=True) if not racer.error]
    (error,) = [racer.error for racer in racers if racer.error]
    assert isinstance(error, ConfigurationError)
    assert "the key 'new' is in use" in str(error)
    assert outcome(client) == ("others" if winner else "whole")
    assert len(BloomFilter(client, "new")) == len(ITEMS)
    check_clean(client)


@given(
    turns=TURNS,
    ends=st.tuples(*[st.one_of(st.none(), st.integers(0, 40))] * 2),
    chosen=CHOSEN,
)
@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_of_two_at_once_that_end_nothing_is_mixed(
    arena: tuple[redis.Redis, list[bytes]],
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


# -- clients that use the key meanwhile --


@pytest.mark.parametrize("blocks", [2, 3, 7])
@pytest.mark.parametrize("known", [False, True])
def test_a_crawl_that_opens_the_key_meanwhile_wins_or_finds_the_whole(
    client: redis.Redis, data: bytes, known: bool, blocks: int
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
        if racer.error is None:
            assert not any(new)
            outcomes.append("whole")
            assert outcome(client) == "whole"
            assert len(BloomFilter(client, "new")) == len(ITEMS)
        else:
            outcomes.append("crawl's")
            assert all(new)
            assert crawl.contains(ITEMS) == [True] * len(ITEMS)
            assert not any(crawl.contains(OTHERS))
            check_clean(client)
        if is_last:
            break
    assert [*dict.fromkeys(outcomes)] == ["crawl's", "whole"]


def test_it_may_be_deleted_meanwhile(client: redis.Redis, data: bytes) -> None:
    for when in range(3, 100):
        client.flushall()
        racer = Racer(client, data)
        for _ in range(when):
            racer.go_on()
        if racer.ended:
            return
        BloomFilter(client, "new").delete()
        racer.to_the_end()
        if racer.error:
            assert "deleted or evicted while a filter was written" in str(racer.error)
        assert outcome(client) == "nothing"
        assert not client.keys(NEW)
    pytest.fail("it does not end")


def test_no_header_is_restored_from_what_is_unfinished(client: redis.Redis, put: Put) -> None:
    with pytest.raises(KilledError):
        put(client, fail_before("create", KilledError()))
    assert len(client.keys("{new:*ring")) == 3
    assert not any(BloomFilter(client, "new", blocks=3).contains(ITEMS))
    check_clean(client)


@pytest.mark.parametrize("block", range(3))
def test_the_header_is_restored_from_any_ring_of_what_is_finished(
    client: redis.Redis, put: Put, block: int
) -> None:
    put(client, lambda _: None)
    before = BloomFilter(client, "new").open()
    others = (Keys("new").ring(number) for number in range(3) if number != block)
    client.delete(Keys("new").header(), *others)
    assert BloomFilter(client, "new").open() == before


# -- a key that is in use --


@pytest.mark.parametrize(
    "lost", [(), ("{new:0}:header",), ("{new:0}:ring", "{new:1}:ring", "{new:2}:ring")]
)
def test_a_key_in_use_is_refused_before_anything_is_written(
    client: redis.Redis, put: Put, lost: tuple[str, ...]
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


@pytest.mark.parametrize(
    ("key", "fields"),
    [
        ("{new:0}:header", {"format": "9"}),
        ("{new:0}:header", {"blocks": "many"}),
        ("{new:1}:ring", {"state": "garbage"}),
    ],
)
def test_what_cannot_be_read_is_in_use_until_it_is_deleted(
    client: redis.Redis, put: Put, key: str, fields: dict[str, str]
) -> None:
    make(client, "new", OTHERS)
    client.hset(key, mapping=fields)
    with pytest.raises(ConfigurationError, match="is in use"):
        put(client, lambda _: None)
    BloomFilter(client, "new").delete()
    put(client, lambda _: None)
    assert outcome(client) == "whole"
    check_clean(client)
