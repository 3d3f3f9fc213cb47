"""Filters that are put in the place of others: whole, or refused, whatever ends it and whenever."""

import asyncio
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from threading import Thread
from typing import Any, TypeVar

import pytest
import redis
import redis.asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from servers import Server
from test_saving import Between, watched

from scrapy_bloom import AsyncBloomFilter, BloomFilter, ConfigurationError, StorageError
from scrapy_bloom.clients import async_driver, driver
from scrapy_bloom.clients.driver import Driver
from scrapy_bloom.core.header import Header
from scrapy_bloom.core.keys import Keys
from scrapy_bloom.core.pending import take
from scrapy_bloom.core.rings import PAUSE, Steps
from scrapy_bloom.core.scripts import Call, Reply
from scrapy_bloom.files.archive import Reader, Writer
from scrapy_bloom.files.installing import or_discard
from scrapy_bloom.files.loading import Loading, load, load_async
from scrapy_bloom.files.saving import save
from scrapy_bloom.sets.algebra import copy
from scrapy_bloom.sets.together import Together, on, run_together, run_together_async

T = TypeVar("T")
ITEMS = [f"https://example.com/{number}" for number in range(60)]
OLD = [f"https://example.org/{number}" for number in range(60)]
#: Puts the filter with ITEMS under the key "new", with something happening before round trips.
Put = Callable[[redis.Redis, Between, bool], None]


@pytest.fixture(autouse=True)
def _no_pauses(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "waits" not in request.node.name:
        monkeypatch.setattr(driver, "PAUSE_FOR", 0)
        monkeypatch.setattr(async_driver, "PAUSE_FOR", 0)


def make(client: redis.Redis, key: str, items: list[str] = ITEMS, **options: Any) -> BloomFilter:
    bloom = BloomFilter(
        client, key, **{"capacity": 200, "blocks": 3, "error_rate": 1e-9, **options}
    )
    bloom.extend(items)
    return bloom


def file_of(bloom: BloomFilter) -> bytes:
    file = io.BytesIO()
    bloom.run(lambda view: save(view.keys, Writer(file)))
    return file.getvalue()


@pytest.fixture
def data(client: redis.Redis) -> bytes:
    """The file of a filter with ITEMS, which is not on the server any more."""
    bloom = make(client, "gone")
    found = file_of(bloom)
    bloom.delete()
    return found


@pytest.fixture(params=["loaded", "copied"])
def put(request: pytest.FixtureRequest, client: redis.Redis, data: bytes) -> Put:
    def loaded(client: redis.Redis, between: Between, replace: bool) -> None:
        run = Driver(client).run
        loading = Loading(Keys("new"), Reader(io.BytesIO(data)), replace=replace)
        load(lambda steps: run(watched(steps, between)), loading)

    def copied(client: redis.Redis, between: Between, replace: bool) -> None:
        operation = copy(make(client, "source").view, Keys("new"), replace=replace)
        run_together(operation, lambda _, steps: Driver(client).run(watched(steps, between)))

    return loaded if request.param == "loaded" else copied


def outcome(client: redis.Redis) -> str:
    """What somebody finds who opens the filter."""
    bloom = BloomFilter(client, "new")
    try:
        if bloom.look() is None:
            return "nothing"
        found = bloom.contains(ITEMS), bloom.contains(OLD)
    except StorageError as error:
        return "refused" if "just being made" in str(error) else str(error)
    whole, none = [True] * len(ITEMS), [False] * len(ITEMS)
    assert bloom.lost_blocks == 0
    return {(True, False): "new", (False, True): "old", (False, False): "a part"}[
        found == (whole, none), found == (none, whole)
    ]


def kept(client: redis.Redis) -> set[bytes]:
    """The keys of the filter that stay for ever."""
    return {key for key in client.keys("{new:*") if client.ttl(key) == -1}


def everything(client: redis.Redis) -> dict[bytes, tuple[object, int]]:
    """The filter whole: what each key holds, and when it expires."""
    keys = [key for key in client.keys("{new:*") if b":load:" not in key]
    return {
        key: (
            client.hgetall(key) if client.type(key) == b"hash" else client.get(key),
            client.pexpiretime(key),
        )
        for key in keys
    }


def round_trips(put: Put, client: redis.Redis, *, replace: bool) -> list[str]:
    """Return the scripts that are called first in each round trip."""
    seen: list[str] = []
    put(client, lambda calls: seen.append(calls[0].script.name), replace)
    return seen


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


@pytest.mark.parametrize("old", [None, {"window": "3 days", "period": "1 day"}, {"blocks": 5}])
@pytest.mark.parametrize("how", ["killed", "an error", "no server any more", "interrupted"])
def test_whatever_ends_it_and_whenever_nobody_takes_a_part_for_the_whole(
    client: redis.Redis, put: Put, how: str, old: dict[str, Any] | None
) -> None:
    error, for_ever = {
        "killed": (KilledError(), True),
        "an error": (redis.ConnectionError("gone"), False),
        "no server any more": (redis.ConnectionError("gone"), True),
        "interrupted": (KeyboardInterrupt(), False),
    }[how]
    if old:
        make(client, "new", OLD, **old)
    scripts = round_trips(put, client, replace=old is not None)
    first, outcomes = scripts.index("install"), []
    for after in range(len(scripts)):
        client.flushall()
        if old:
            make(client, "new", OLD, **old)
        before = everything(client)
        with suppress(StorageError, KilledError, KeyboardInterrupt):
            put(client, fail(after, error, for_ever=for_ever), old is not None)
        left = everything(client)
        found = outcome(client)
        outcomes.append(found)
        if found == "old" or (after < first and not for_ever):
            assert left == before
        if found == "nothing":
            assert not kept(client)
        if not for_ever and found == "refused":
            pytest.fail(f"it can be cleaned up after {after} of {len(scripts)}")
        # It can be put right: by repeating it, and by deleting it.
        repair(client, put, after, old)
    expected = ["old" if old else "nothing", "refused" if for_ever else "nothing", "new"]
    assert [*dict.fromkeys(outcomes)] in (
        [*dict.fromkeys(expected)],
        [*dict.fromkeys(expected[:2])],  # nothing follows the last header
    )


@pytest.mark.parametrize("old", [False, True])
def test_what_was_there_is_put_back_also_if_replies_are_lost(
    client: redis.Redis, put: Put, old: bool
) -> None:
    """Nobody knows whether the unfinished header was put in, or told that rings are."""
    if old:
        make(client, "new", OLD, blocks=5, window="3 days", period="1 day")
    before, count = everything(client), 0
    scripts = round_trips(put, client, replace=old)
    for after in range(scripts.index("install")):
        client.flushall()
        if old:
            make(client, "new", OLD, blocks=5, window="3 days", period="1 day")
        before, count = everything(client), 0

        def lose(calls: list[Call], after: int = after) -> None:
            nonlocal count
            count += 1
            if count == after + 1:
                for call in calls:
                    call.send(client, by_text=True)
                raise redis.ConnectionError("gone")

        with pytest.raises(StorageError, match="closed the connection"):
            put(client, lose, old)
        assert everything(client) == before
        assert outcome(client) == ("old" if old else "nothing")


@pytest.mark.parametrize("script", ["create", "read"])
def test_a_server_that_is_out_of_memory_keeps_what_it_has(
    client: redis.Redis, put: Put, script: str
) -> None:
    """Also if it has room for the unfinished header, and for nothing after it."""
    make(client, "new", OLD)
    client.pexpire(Keys("new").header(), 123_456_789)
    before, announced = everything(client), False

    def fill_up(calls: list[Call]) -> None:
        nonlocal announced
        if calls[0].script.name == script and (announced or script == "create"):
            client.config_set("maxmemory", 1)
        announced |= calls[0].script.name == "create"

    try:
        with pytest.raises(StorageError, match="memory"):
            put(client, fill_up, True)
    finally:
        client.config_set("maxmemory", 0)
    assert everything(client) == before
    assert outcome(client) == "old"


@pytest.mark.parametrize("expiry", [None, 123_456_789])
def test_any_header_is_put_back_as_it_was(
    client: redis.Redis, data: bytes, expiry: int | None
) -> None:
    make(client, "new", OLD)
    client.hset(Keys("new").header(), mapping={"format": "9", b"\xff\x00": bytes(range(256))})
    if expiry:
        client.pexpire(Keys("new").header(), expiry)
    before = everything(client)
    racer = begun(client, data, "read")
    assert outcome(client) == "refused"
    racer.end()
    assert everything(client) == before


def test_what_others_have_put_in_since_is_not_replaced_by_what_was_there(
    client: redis.Redis, data: bytes
) -> None:
    make(client, "new", OLD)
    racer = begun(client, data, "read")
    load(Driver(client).run, Loading(Keys("new"), Reader(io.BytesIO(data)), replace=True))
    now = everything(client)
    racer.end()
    assert everything(client) == now
    assert outcome(client) == "new"


def test_what_is_deleted_meanwhile_does_not_come_back(client: redis.Redis, data: bytes) -> None:
    make(client, "new", OLD)
    racer = begun(client, data, "read")
    assert BloomFilter(client, "new").delete()
    racer.end()
    assert everything(client) == {}


def test_what_an_interrupted_one_left_is_put_back_as_far_as_it_is_whole(
    client: redis.Redis, put: Put, data: bytes
) -> None:
    """It knows by the unfinished header whether rings were put in."""
    make(client, "new", OLD, blocks=5)
    before = everything(client)
    for stopped, expected in (("read", "old"), ("install", "refused")):
        begun(client, data, stopped)
        rings = {key: value for key, value in everything(client).items() if b"header" not in key}
        racer = begun(client, data, "read")
        racer.end()
        assert outcome(client) == expected
        assert {k: v for k, v in everything(client).items() if b"header" not in k} == rings
    assert rings == {key: value for key, value in before.items() if b"header" not in key}
    put(client, lambda _: None, True)
    assert outcome(client) == "new"


def repair(client: redis.Redis, put: Put, after: int, old: dict[str, Any] | None) -> None:
    if after % 2:
        put(client, lambda _: None, True)
        assert outcome(client) == "new"
        assert len(BloomFilter(client, "new")) == len(ITEMS)
    BloomFilter(client, "new").delete()
    assert kept(client) == set()


def test_what_is_left_is_named_and_only_replaced_if_it_may_be(
    client: redis.Redis, put: Put
) -> None:
    with pytest.raises(KilledError):
        put(client, before("install", KilledError()), False)
    with pytest.raises(StorageError, match=r"just being made .* replace=True .* or delete\(\)"):
        BloomFilter(client, "new").look()
    with pytest.raises(ConfigurationError, match=r"interrupted.*replace=True.* or delete\(\)"):
        put(client, lambda _: None, False)
    assert outcome(client) == "refused"
    put(client, lambda _: None, True)
    assert outcome(client) == "new"


def before(name: str, error: BaseException, times: int = 1) -> Between:
    """Fail before a script is called, for the first time or for a later one."""
    count = 0

    def between(calls: list[Call]) -> None:
        nonlocal count
        count += calls[:1] != [] and calls[0].script.name == name
        if count >= times:
            raise error

    return between


def test_an_end_whose_reply_is_lost_leaves_the_whole(client: redis.Redis, put: Put) -> None:
    """It was put in, nobody knows: nothing of it is deleted then."""
    count = 0

    def lose(calls: list[Call]) -> None:
        nonlocal count
        is_last = calls[0].script.name == "create" and "token" not in calls[0].args
        count += is_last
        if count == 1 and is_last:
            calls[0].send(client, by_text=True)
            raise redis.ConnectionError("gone")

    with pytest.raises(StorageError, match="closed the connection"):
        put(client, lose, False)
    assert outcome(client) == "new"


@pytest.mark.parametrize("replace", [False, True])
def test_a_client_that_sends_commands_again_changes_nothing(
    client: redis.Redis, put: Put, replace: bool
) -> None:
    """As redis-py 6 and later do, if nobody says otherwise; whatever it is that comes twice."""
    if replace:
        make(client, "new", OLD, blocks=5)
    for number in range(len(round_trips(put, client, replace=replace))):
        client.flushall()
        if replace:
            make(client, "new", OLD, blocks=5)
        count = 0

        def twice(calls: list[Call], number: int = number) -> None:
            nonlocal count
            for call in calls if count == number else ():
                call.send(client, by_text=True)
            count += 1

        put(client, twice, replace)
        assert outcome(client) == "new"
        assert kept(client) == {key.encode() for key in BloomFilter(client, "new").keys()}


def test_an_error_behind_the_end_is_none(client: redis.Redis, put: Put) -> None:
    make(client, "new", OLD)
    put(client, before("drop", redis.ConnectionError("gone")), True)
    assert outcome(client) == "new"
    going = set(client.keys("*:load:*"))
    assert going
    assert all(0 < client.ttl(key) <= 60 for key in going)


# -- asyncio --


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("how", ["loaded", "copied"])
def test_a_task_that_is_cancelled_cleans_up_even_if_it_is_cancelled_again(
    server: Server, client: redis.Redis, data: bytes, how: str, again: bool
) -> None:
    async def attempt(after: int) -> str:
        """Cancel it at a round trip, and say what came of that."""
        async with redis.asyncio.Redis.from_url(server.url) as own:
            bloom, count, installs = AsyncBloomFilter(own, "source"), 0, False
            task = asyncio.current_task()
            assert task is not None

            def cancel(calls: list[Call]) -> None:
                nonlocal count, installs
                count += 1
                installs |= calls[0].script.name == "install"
                if count == after or (again and count == after + 1):
                    task.cancel()

            def run(steps: Steps[Any]) -> Any:
                return bloom.run(lambda _: watched(steps, cancel), on_all_blocks=True)

            try:
                if how == "loaded":
                    loading = Loading(Keys("new"), Reader(io.BytesIO(data)), replace=True)
                    await load_async(run, loading, async_driver.finish)
                else:
                    operation = copy(bloom.view, Keys("new"), replace=True)
                    await run_together_async(
                        operation, lambda _, steps: run(steps), async_driver.finish
                    )
            except asyncio.CancelledError:
                while async_driver._cleaning:
                    await asyncio.sleep(0)
                return "cancelled later" if installs else "cancelled"
            # redis-py swallows it where it looks for bytes that nobody asked for.
            return "ended before" if count < after else "swallowed"

    outcomes = []
    for after in range(1, 200):
        client.flushall()
        make(client, "source")
        make(client, "new", OLD)
        before = everything(client)
        result = asyncio.run(attempt(after))
        if result == "cancelled":
            assert everything(client) == before
        found = outcome(client)
        if result.startswith("cancelled"):
            outcomes.append(found)
        else:
            assert found == "new"
        if found == "nothing":
            assert not kept(client)
        if result == "ended before":
            break
    assert [*dict.fromkeys(outcomes)] == ["old", "nothing", "new"]
    assert len(outcomes) > 15


def test_a_server_that_does_not_answer_is_not_waited_for(
    server: Server, client: redis.Redis, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_driver, "CLEAN_UP_FOR", 0.01)

    async def scenario() -> None:
        async with redis.asyncio.Redis.from_url(server.url) as own:
            bloom, put = (
                AsyncBloomFilter(own, "new"),
                Loading(Keys("new"), Reader(io.BytesIO(data))),
            )

            def hang(calls: list[Call]) -> None:
                if calls[0].script.name == "install":
                    client.client_pause(600_000, all=False)
                    raise asyncio.CancelledError

            await load_async(
                lambda steps: bloom.run(lambda _: watched(steps, hang), on_all_blocks=True),
                put,
                async_driver.finish,
            )

    try:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(scenario())
    finally:
        client.client_unpause()
    assert outcome(client) == "refused"


# -- several at once --


def flat(operation: Together[T]) -> Steps[T]:
    """Turn an operation on one filter into its round trips."""
    go_on = partial(operation.send, None)
    while True:
        try:
            _, steps = go_on()
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        try:
            result = yield from steps
        except Exception as error:
            go_on = partial(operation.throw, error)
        else:
            go_on = partial(operation.send, result)


class Racer:
    """One of several operations, which goes on when it is told to."""

    def __init__(self, client: redis.Redis, operation: Together[Any]) -> None:
        self._client = client
        self._steps = flat(operation)
        self._calls: list[Call] | None = None
        self.error: Exception | None = None
        self.ended = self.has_begun = False

    def go_on(self, *, lost: bool = False) -> None:
        """Make one round trip; its replies may be lost."""
        try:
            if self._calls is None:
                self._calls = next(self._steps)
            self.has_begun |= any("begun" in call.args for call in self._calls)
            replies = [Reply.parse(call.send(self._client, by_text=True)) for call in self._calls]
            if lost:
                self._calls = self._steps.throw(StorageError("the replies are lost"))
            else:
                self._calls = self._steps.send(replies)
        except StopIteration:
            self.ended = True
        except (StorageError, ConfigurationError) as error:
            self.ended, self.error = True, error

    def end(self) -> None:
        """Have an error, and clean up."""
        self.go_on(lost=True)
        while not self.ended:
            self.go_on()


def loading(data: bytes, *, replace: bool = True) -> Together[Any]:
    put = Loading(Keys("new"), Reader(io.BytesIO(data)), replace=replace)
    return or_discard(put, 0, on(0, put.run()))


@pytest.fixture(scope="module")
def arena(any_binary: str) -> Iterator[tuple[redis.Redis, list[bytes]]]:
    """A server, and the files of two filters of different sizes."""
    with Server(any_binary) as server, server.client() as client:
        one, two = make(client, "one"), make(client, "two", OLD, blocks=5)
        files = [file_of(one), file_of(two)]
        client.flushall()
        yield client, files


@given(
    turns=st.lists(st.booleans(), max_size=80),
    chosen=st.tuples(st.integers(0, 1), st.integers(0, 1)),
    replace=st.booleans(),
)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_of_two_at_once_one_is_whole_and_nothing_is_mixed(
    arena: tuple[redis.Redis, list[bytes]],
    turns: list[bool],
    chosen: tuple[int, int],
    replace: bool,
) -> None:
    client, files = arena
    client.flushall()
    if replace:
        make(client, "new", ["before"], blocks=4)
    racers = [Racer(client, loading(files[n], replace=replace)) for n in chosen]
    turns = turns[:]
    while not all(racer.ended for racer in racers):
        index = turns.pop() if turns else not racers[1].ended
        racer = racers[index]
        if racer.ended:
            racer = racers[not index]
        racer.go_on()
    winners = [n for n, racer in zip(chosen, racers, strict=True) if not racer.error]
    assert winners
    wanted = {"new" if n == 0 else "old" for n in winners}
    assert outcome(client) in wanted
    bloom = BloomFilter(client, "new")
    assert len(bloom) == len(ITEMS)
    assert kept(client) == {key.encode() for key in bloom.keys()}
    for racer in racers:
        if isinstance(racer.error, StorageError):
            assert "at the same time" in str(racer.error)
    assert replace or len(winners) == 1


@given(
    turns=st.lists(st.booleans(), max_size=60),
    ends=st.tuples(*[st.one_of(st.none(), st.integers(0, 30))] * 2),
    chosen=st.tuples(st.integers(0, 1), st.integers(0, 1)),
)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_of_two_at_once_that_end_none_is_taken_for_whole_and_none_is_lost(
    arena: tuple[redis.Redis, list[bytes]],
    turns: list[bool],
    ends: tuple[int | None, int | None],
    chosen: tuple[int, int],
) -> None:
    """What was there is whole until rings of one of them are put in."""
    client, files = arena
    client.flushall()
    make(client, "new", ["before"], blocks=4, window="3 days", period="1 day")
    before = everything(client)
    racers = [Racer(client, loading(files[number])) for number in chosen]
    turns, made = turns[:], [0, 0]
    while not all(racer.ended for racer in racers):
        index = turns.pop() if turns else not racers[1].ended
        if racers[index].ended:
            index = not index
        racers[index].go_on(lost=made[index] == ends[index])
        made[index] += 1
    check_the_end(client, racers, before)


def check_the_end(
    client: redis.Redis, racers: Sequence[Racer], before: dict[bytes, tuple[object, int]]
) -> None:
    if not any(racer.has_begun for racer in racers):
        assert everything(client) == before
    elif everything(client) != before:
        # "a part" would be one that opens, and holds neither.
        assert outcome(client) in ("new", "old", "refused", "nothing")
    for racer, other in (racers, racers[::-1]):
        if not racer.error and not other.has_begun:
            assert outcome(client) in ("new", "old")


@pytest.mark.parametrize("first", [0, 1])
def test_wherever_one_is_overtaken_by_one_that_ends(
    arena: tuple[redis.Redis, list[bytes]], first: int
) -> None:
    """One stops anywhere, another one begins and ends anywhere; either is the first to clean up."""
    client, files = arena
    seen = set()
    for when, until in product(range(8, 24), range(8, 24)):
        client.flushall()
        make(client, "new", ["before"], blocks=4, window="3 days", period="1 day")
        before = everything(client)
        racers = [Racer(client, loading(files[0])) for _ in range(2)]
        for racer, number in zip(racers, (when, until), strict=True):
            for _ in range(number):
                if not racer.ended:
                    racer.go_on()
        for racer in (racers[first], racers[not first]):
            if not racer.ended:
                racer.end()
        check_the_end(client, racers, before)
        seen.add(tuple(racer.has_begun for racer in racers))
    assert len(seen) == 4


def test_wherever_one_is_overtaken(arena: tuple[redis.Redis, list[bytes]]) -> None:
    """All of a second one happens between two round trips of the first."""
    client, files = arena
    for when in range(100):
        client.flushall()
        make(client, "new", ["before"], blocks=7)
        racers = [Racer(client, loading(data)) for data in files]
        for _ in range(when):
            if not racers[0].ended:
                racers[0].go_on()
        last = racers[0].ended
        for racer in reversed(racers):
            while not racer.ended:
                racer.go_on()
        assert racers[1].error is None
        assert outcome(client) in ({"old"} if racers[0].error or last else {"old", "new"})
        assert kept(client) == {key.encode() for key in BloomFilter(client, "new").keys()}
        if last:
            return
    raise AssertionError("it does not end")


def test_threads_that_replace_one_filter_leave_one_of_theirs(server: Server) -> None:
    """Readers have no errors meanwhile, whoever of the two it is."""
    with server.client() as client:
        client.flushall()
        one, two = make(client, "one", blocks=16), make(client, "two", OLD, blocks=16)
        files = [file_of(one), file_of(two)]
        make(client, "new", OLD, blocks=16)
    unexpected: list[BaseException] = []
    done = 0

    def replace(data: bytes) -> None:
        with server.client() as mine:
            for _ in range(15):
                keys, reader = Keys("new"), Reader(io.BytesIO(data))
                try:
                    load(Driver(mine).run, Loading(keys, reader, replace=True))
                except StorageError as error:
                    if "at the same time" not in str(error):
                        unexpected.append(error)

    def read() -> None:
        with server.client() as mine:
            while done < 2:
                try:
                    BloomFilter(mine, "new").contains(ITEMS)
                except BaseException as error:
                    if "just being made" not in str(error):
                        unexpected.append(error)

    readers = [Thread(target=read) for _ in range(2)]
    writers = [Thread(target=replace, args=(data,)) for data in files]
    for thread in (*readers, *writers):
        thread.start()
    for thread in writers:
        thread.join()
        done += 1
    for thread in readers:
        thread.join()
    assert unexpected == []
    with server.client() as client:
        assert outcome(client) in ("new", "old")


# -- who uses it meanwhile --


def begun(client: redis.Redis, data: bytes, script: str) -> Racer:
    """Return a load that has put in its unfinished header, and comes to a script."""
    racer, announced = Racer(client, loading(data)), False
    while not (announced and racer._calls and racer._calls[0].script.name == script):
        announced |= bool(racer._calls) and racer._calls[0].script.name == "create"
        racer.go_on()
    return racer


def half_way(client: redis.Redis, data: bytes) -> Racer:
    """Return a load whose rings are put in, and not its header."""
    racer = begun(client, data, "install")
    racer.go_on()
    return racer


@pytest.mark.parametrize("opened", [False, True])
def test_who_uses_it_meanwhile_waits_for_it(
    server: Server, client: redis.Redis, data: bytes, opened: bool
) -> None:
    make(client, "new", OLD)
    found: list[list[bool]] = []
    with server.client() as theirs:
        user = BloomFilter(theirs, "new")
        if opened:
            user.open()
        racer = half_way(client, data)
        thread = Thread(target=lambda: found.append(user.contains(ITEMS)))
        thread.start()
        while not racer.ended:
            racer.go_on()
        thread.join()
    assert found == [[True] * len(ITEMS)]


def test_a_task_that_uses_it_meanwhile_waits_for_it(
    server: Server, client: redis.Redis, data: bytes
) -> None:
    async def scenario() -> list[bool]:
        async with redis.asyncio.Redis.from_url(server.url) as own:
            racer = half_way(client, data)
            task = asyncio.create_task(AsyncBloomFilter(own, "new").contains(ITEMS))
            await asyncio.sleep(0)
            while not racer.ended:
                racer.go_on()
            return await task

    assert all(asyncio.run(scenario()))


def test_it_is_not_waited_for_longer_than_the_user_wants(
    client: redis.Redis, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_way(client, data)
    monkeypatch.setattr(driver, "PAUSE_FOR", 600)
    with pytest.raises(StorageError, match="did not answer in time"):
        BloomFilter(client, "new", timeout=0.05).contains("a")


def test_a_pause_is_no_round_trip(client: redis.Redis) -> None:
    def steps() -> Steps[list[Reply]]:
        return (yield PAUSE)

    runner = Driver(client)
    assert runner.run(steps()) == []
    assert runner.round_trips == 0


def test_it_is_deleted_meanwhile(client: redis.Redis, data: bytes) -> None:
    racer = half_way(client, data)
    assert BloomFilter(client, "new").delete()
    while not racer.ended:
        racer.go_on()
    assert "or it was deleted" in str(racer.error)
    assert not kept(client)


# -- what is replaced --


@pytest.mark.parametrize("state", ["", "{}", "garbage", "[" * 9_999])
def test_what_cannot_be_read_is_replaced(client: redis.Redis, put: Put, state: str) -> None:
    make(client, "new", OLD, blocks=5, growth=1, capacity=20)
    for block in (1, 4):
        client.hset(Keys("new").ring(block), "state", state)
    client.hset(Keys("new").ring(1), "n:../../x", "1")
    put(client, lambda _: None, True)
    assert outcome(client) == "new"
    assert set(client.keys("{new:*")) == {key.encode() for key in BloomFilter(client, "new").keys()}


def test_it_is_told_how_many_blocks_could_not_be_read(client: redis.Redis, data: bytes) -> None:
    make(client, "new", OLD)
    client.hset(Keys("new").ring(2), "state", "{}")
    put = Loading(Keys("new"), Reader(io.BytesIO(data)), replace=True)
    assert load(Driver(client).run, put).unreadable == 1


@pytest.mark.parametrize(
    "fields",
    [{"format": "9"}, {"scheme": "other"}, {"blocks": "many"}, {"blocks": "-1"}, {"seeds": "[]"}],
)
def test_a_header_that_cannot_be_read_is_replaced(
    client: redis.Redis, put: Put, fields: dict[str, str]
) -> None:
    make(client, "new", OLD)
    client.hset(Keys("new").header(), mapping=fields)
    with pytest.raises(ConfigurationError, match="already"):
        put(client, lambda _: None, False)
    put(client, lambda _: None, True)
    assert outcome(client) == "new"


@pytest.mark.parametrize("same", [False, True])
def test_claims_stay_if_they_are_of_the_same_filter(client: redis.Redis, same: bool) -> None:
    bloom = make(client, "new")
    data = file_of(bloom)
    if not same:
        bloom.delete()
        bloom = make(client, "new", OLD)
    bloom.run(lambda view: take(view, [b"claimed"], ["{}"], "me", "nonce"))
    (claims,) = client.keys("{new:*claims")
    half_way(client, data)
    assert client.exists(claims) == same
    load(Driver(client).run, Loading(Keys("new"), Reader(io.BytesIO(data)), replace=True))
    assert client.exists(claims) == same


def test_a_header_of_more_blocks_than_there_may_be_costs_nothing(
    client: redis.Redis, data: bytes
) -> None:
    make(client, "new", OLD)
    client.hset(Keys("new").header(), "blocks", "999999999")
    seen: list[Call] = []
    put = Loading(Keys("new"), Reader(io.BytesIO(data)), replace=True)
    load(lambda steps: Driver(client).run(watched(steps, seen.extend)), put)
    assert len(seen) < 100
    assert isinstance(BloomFilter(client, "new").open(), Header)
