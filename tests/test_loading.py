"""Loading filters on real servers: bit for bit, whole or not at all, whatever happens meanwhile."""

import asyncio
import io
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from clock import MovedServer
from conftest import SERVERS
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import Server, contents
from test_archive import damages, read
from test_saving import KEY, OPTIONS, URLS, Between, make, saved, stored, watched

from scrapy_bloom import BloomFilter, StorageError
from scrapy_bloom.clients import driver
from scrapy_bloom.clients.async_driver import AsyncDriver
from scrapy_bloom.clients.driver import Driver
from scrapy_bloom.core.keys import Keys
from scrapy_bloom.core.pending import take
from scrapy_bloom.core.rings import LOST, Steps
from scrapy_bloom.core.scripts import Call
from scrapy_bloom.errors import ArchiveError, BloomError, ConfigurationError
from scrapy_bloom.files import archive
from scrapy_bloom.files.archive import Block, Reader
from scrapy_bloom.files.loading import Loading, load
from scrapy_bloom.files.saving import Saved
from scrapy_bloom.files.staging import RENEW_AFTER, STAGED_FOR

#: Seconds that a bitmap which was replaced may stay.
GOING = 60
KINDS = [
    {},
    {"window": "3 days", "period": "1 day"},
    {"window": "3 days", "period": "1 day", "ring": "write-all", "stagger": True},
    {"window": "3 runs", "run": "a"},
    {"counting": True},
]


def loaded(
    client: Any, data: bytes, key: str = KEY, between: Between = lambda _: None, **options: Any
) -> Saved:
    """Load a file."""
    driver = Driver(client)

    def run(steps: Steps[Any]) -> Any:
        return driver.run(watched(steps, between))

    return load(run, Loading(Keys(key), Reader(io.BytesIO(data)), **options))


def comparable(client: redis.Redis, key: str = KEY) -> dict[str, object]:
    """Return what makes a filter: all but the nonces and the time it was opened, and their ends."""
    found: dict[str, object] = {}
    for name, value in contents(client, f"{{{key}:*").items():
        short = name.decode().replace(f"{{{key}:", "{")
        if isinstance(value, dict):
            fields = {k: v for k, v in value.items() if k not in (b"v", b"opened")}
            found[short] = (fields, client.expiretime(name))
        else:
            found[short] = (value, client.expiretime(name))
    return found


def going(client: redis.Redis, names: set[bytes]) -> bool:
    """Whether keys are there for a minute at most."""
    return all(0 <= client.ttl(name) <= GOING for name in names)


@pytest.fixture
def full(client: redis.Redis) -> BloomFilter:
    """A filter with 2,000 URLs in two generations."""
    bloom = make(client, window="3 days", period="1 day")
    bloom.extend(URLS[:1_500])
    bloom.rotate()
    bloom.extend(URLS[1_500:])
    return bloom


# -- round trips --


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize("target", sorted(SERVERS))
def test_it_is_the_same_bit_for_bit_on_any_server(
    client: redis.Redis, target: str, options: dict[str, Any]
) -> None:
    bloom = make(client, capacity=600, **options)
    bloom.extend(URLS)
    if "window" in options:
        bloom.rotate()
        bloom.extend(f"new/{i}" for i in range(100))
    with Server(SERVERS[target]) as other_server, other_server.client() as other:
        result = loaded(other, saved(bloom), "else")
        assert {**comparable(client), **without_changed(other, client)} == comparable(other, "else")
        there = BloomFilter(other, "else", run="a" if "run" in options else None)
        assert there.contains(URLS) == bloom.contains(URLS)
        assert there.header == bloom.header
        assert there.claim(["quite new", URLS[0]]) == [True, False]
    assert (result.count, result.memory) == (bloom.info().count, bloom.info().memory)


def without_changed(other: redis.Redis, client: redis.Redis) -> dict[str, object]:
    """Return the rings of a loaded filter in runs: they live on from when they were loaded."""
    after, before = comparable(other, "else"), comparable(client)
    if b'"3 runs"' not in client.hget(Keys(KEY).ring(0), "state"):
        return {}
    for name in before:
        (_, old_end), (_, new_end) = before[name], after[name]
        assert 0 <= new_end - old_end <= 60
    return after


@given(data=st.data())
@settings(max_examples=25)
def test_any_filter_is_the_same_again(both: list[redis.Redis], data: st.DataObject) -> None:
    one, two = both
    one.flushall()
    two.flushall()
    options = data.draw(st.sampled_from(KINDS)) | {
        "capacity": data.draw(st.integers(1, 2_000)),
        "blocks": data.draw(st.integers(1, 6)),
        "growth": data.draw(st.sampled_from([0, 1, 2])),
    }
    bloom = make(one, **options)
    bloom.open()
    for _ in range(data.draw(st.integers(0, 4))):
        if data.draw(st.booleans()) and "window" in options:
            bloom.rotate()
        first = data.draw(st.integers(0, len(URLS)))
        bloom.extend(URLS[first : first + data.draw(st.integers(0, 700))])
    loaded(two, saved(bloom))
    again = BloomFilter(two, KEY, run="a" if "run" in options else None)
    assert again.contains(URLS) == bloom.contains(URLS)
    assert again.info().count == bloom.info().count
    assert [name for name in two.keys() if ":load:" in name] == []


@pytest.fixture(scope="module")
def both() -> Iterator[list[redis.Redis]]:
    binaries = [*SERVERS.values()] * 2
    with (
        Server(binaries[0]) as one,
        Server(binaries[1]) as two,
        one.client() as first,
        two.client(decode_responses=True) as second,
    ):
        yield [first, second]


def test_it_is_loaded_on_asyncio(server: Server, client: redis.Redis, full: BloomFilter) -> None:
    data, before = saved(full), comparable(client)

    async def scenario() -> None:
        async with redis.asyncio.Redis(unix_socket_path=str(server.socket)) as connection:
            loading = Loading(Keys("else"), Reader(io.BytesIO(data)))
            await AsyncDriver(connection, "Redis", 5).run(loading.run(), on_all_blocks=True)

    asyncio.run(scenario())
    assert comparable(client, "else") == before


def test_progress_ends_with_all_that_there_is(client: redis.Redis, full: BloomFilter) -> None:
    told: list[tuple[int, int]] = []
    result = loaded(client, saved(full), "else", progress=lambda *numbers: told.append(numbers))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (result.memory, result.memory)


def test_a_block_that_begins_again_in_the_file_is_as_it_was_then(
    client: redis.Redis, full: BloomFilter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "CHUNK", 2_048)
    reads: list[Call] = []

    def clear(calls: list[Call]) -> None:
        if calls[0].script.name == "fetch" and calls[0].args[3]:
            reads.append(calls[0])
            if len(reads) == 4:
                make(client).clear()

    first = full.info(0).count
    data = saved(full, clear)
    starts = [part for part in Reader(io.BytesIO(data)) if isinstance(part, Block)]
    assert len(starts) > OPTIONS["blocks"]
    told: list[int] = []
    loaded(client, data, "else", progress=lambda done, _: told.append(done))
    there = BloomFilter(client, "else").info()
    assert told != sorted(told)
    assert told[-1] == there.memory
    # Block 0 was saved before the others were cleared.
    assert there.count == BloomFilter(client, "else").info(0).count == first
    assert not any(client.get(Keys("else").layer(block, "2.0")).strip(b"\0") for block in (1, 2, 3))
    assert not client.keys("*:load:*")


# -- a filter that is there --


def test_a_filter_that_is_there_is_left_alone(client: redis.Redis, full: BloomFilter) -> None:
    data = saved(full)
    for key, block in (("here", None), ("lost", 0), ("lost", 3)):
        client.flushall()
        other = BloomFilter(client, key, blocks=4)
        other.extend(["a", "b"])
        if block is not None:  # its header is lost, or all but one block
            rings = [Keys(key).ring(number) for number in range(4) if number != block]
            client.delete(Keys(key).header(), *rings)
        before = contents(client)
        with pytest.raises(
            ConfigurationError, match=rf"a filter under the key '{key}' already.*replace"
        ):
            loaded(client, data, key)
        assert contents(client) == before


@pytest.mark.parametrize("blocks", [2, 4, 9])
@pytest.mark.parametrize("window", [None, "3 days"])
def test_a_filter_that_is_replaced_is_gone(
    client: redis.Redis, full: BloomFilter, blocks: int, window: str | None
) -> None:
    data, expected = saved(full), comparable(client)
    other = BloomFilter(client, "else", blocks=blocks, window=window)
    other.extend(f"old/{i}" for i in range(500))
    other.run(lambda view: take(view, [b"claimed"], ["{}"], "me", "nonce"))
    notes: list[str] = []
    user = BloomFilter(client, "else", notify=lambda event, _: notes.append(event))
    user.open()
    loaded(client, data, "else", replace=True)
    assert comparable(client, "else") == expected
    assert user.contains(URLS) == [True] * len(URLS)
    assert not any(user.contains(f"old/{i}" for i in range(500)))
    assert user.header == full.header
    assert len(user) == len(full)


def test_a_filter_goes_back_to_what_it_was_and_keeps_its_claims(
    client: redis.Redis, full: BloomFilter
) -> None:
    data, expected = saved(full), comparable(client)
    full.extend(f"later/{i}" for i in range(500))
    full.run(lambda view: take(view, [b"claimed"], ["{}"], "me", "nonce"))
    claims = {name for name in comparable(client) if name.endswith("claims")}
    assert claims
    loaded(client, data, replace=True)
    after = comparable(client)
    assert {name: value for name, value in after.items() if name not in claims} == expected
    assert claims <= after.keys()
    # Whoever has it open notices.
    assert not any(full.contains(f"later/{i}" for i in range(500)))
    assert full.contains(URLS) == [True] * len(URLS)


def test_whatever_lies_under_the_names_is_not_taken_for_the_filters(
    client: redis.Redis, full: BloomFilter
) -> None:
    data, expected = saved(full), comparable(client)
    client.set(Keys("else").layer(0, "0.0"), b"\xff" * 20_000)
    client.set(Keys("else").layer(1, "1.0"), b"\xff" * 20_000)
    before = set(client.keys("{else*"))
    loaded(client, data, "else")
    found = comparable(client, "else")
    assert {name: found[name] for name in expected} == expected
    assert len(before) == 2
    assert going(client, {name for name in client.keys() if b":load:" in name})


def test_clients_that_use_the_key_meanwhile_break_nothing(
    client: redis.Redis, full: BloomFilter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They make blocks before those of the file are there, and rotate others."""
    monkeypatch.setattr(driver, "PAUSE_FOR", 0)
    data = saved(full)
    dice = random.Random(3)

    def use(calls: list[Call]) -> None:
        if calls[0].script.name in ("create", "install", "read", "drop"):
            bloom = BloomFilter(client, "else", capacity=dice.choice([100, 5_000]))
            with suppress(StorageError):  # it does not become whole while they wait
                bloom.claim([f"{dice.random()}"])

    for number in range(1, 4):
        client.delete(*client.keys("{else*"), "none")
        BloomFilter(client, "else", blocks=3 * number).extend(["old"])
        loaded(client, data, "else", use, replace=True)
        bloom = BloomFilter(client, "else")
        assert bloom.contains(URLS) == [True] * len(URLS)
        assert bloom.lost_blocks == 0


@pytest.mark.parametrize("when", ["header", "fill", "create"])
def test_one_of_two_loads_into_a_new_key_wins(
    client: redis.Redis, full: BloomFilter, when: str
) -> None:
    data, expected = saved(full), comparable(client)
    done = []

    def load_too(calls: list[Call]) -> None:
        if not done and calls[0].script.name == when:
            done.append(True)
            loaded(client, data, "else")

    with pytest.raises(ConfigurationError, match="already"):
        loaded(client, data, "else", load_too)
    assert comparable(client, "else") == expected


# -- what fails --


def test_damaged_files_change_nothing(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "CHUNK", 2_048)
    bloom = make(client, window="3 days", period="1 day")
    bloom.extend(URLS)
    bloom.rotate()
    data, before = saved(bloom), contents(client)
    refused = 0
    for number, (kind, damaged) in enumerate(damages(data, 220)):
        key = KEY if number % 2 else "else"
        with pytest.raises(ArchiveError, match=r"the file cannot be loaded: at byte [\d,]+, \w"):
            loaded(client, damaged, key, replace=True)
        assert client.dbsize() == len(before), kind
        refused += 1
    assert contents(client) == before
    assert refused > 200


def steps_of(client: redis.Redis, data: bytes, **options: Any) -> int:
    """Return how many round trips a load takes."""
    seen: list[object] = []
    loaded(client, data, between=seen.append, **options)
    return len(seen)


class Killed(BaseException):
    """Nothing runs after it: no clean-up."""


@pytest.mark.parametrize("replace", [False, True])
def test_a_load_that_is_killed_leaves_nothing_for_ever_and_can_be_repeated(
    client: redis.Redis, full: BloomFilter, replace: bool
) -> None:
    data, expected = saved(full), comparable(client)
    client.flushall()
    total = steps_of(client, data)
    for last in range(0, total, 3):
        client.flushall()
        if replace:
            make(client, blocks=7).extend(["old"])
        before = contents(client)
        seen: list[Call] = []

        def kill(calls: list[Call], last: int = last, seen: list[Call] = seen) -> None:
            seen += calls
            if len(seen) > last:
                raise Killed

        driver = Driver(client)
        loading = Loading(Keys(KEY), Reader(io.BytesIO(data)), replace=replace)
        with pytest.raises(Killed):
            driver.run(watched(loading.run(), kill))
        staged = {name for name in client.keys() if b":load:" in name}
        assert all(0 < client.ttl(name) <= STAGED_FOR for name in staged)
        if "create" not in {call.script.name for call in seen}:
            assert {k: v for k, v in contents(client).items() if k not in staged} == before
            driver.run(loading.discard())
            assert contents(client) == before
        driver.run(loading.discard())
        loaded(client, data, replace=True)
        found = comparable(client)
        assert {name: found[name] for name in expected} == expected
        assert going(
            client, {n for n in client.keys() if n.decode().replace("{shop:", "{") not in expected}
        )


def test_a_connection_that_is_lost_leaves_nothing(client: redis.Redis, full: BloomFilter) -> None:
    data, before = saved(full), contents(client)
    count = 0

    def fail(calls: list[Call]) -> None:
        nonlocal count
        if calls[0].script.name == "fill":
            count += 1
            if count == 3:
                raise redis.ConnectionError("gone")

    with pytest.raises(StorageError, match="closed the connection"):
        loaded(client, data, "else", fail)
    assert contents(client) == before


def test_a_server_that_is_full_says_so_and_gets_its_memory_back(any_binary: str) -> None:
    with Server(any_binary) as server, server.client() as client:
        bloom = BloomFilter(client, KEY, capacity=2_000_000, blocks=16)
        bloom.extend(URLS)
        data = saved(bloom)
        bloom_keys = set(client.keys())
        used = client.info("memory")["used_memory"]
        client.config_set("maxmemory", used + (3 << 20))
        with pytest.raises(StorageError, match="is out of memory: raise its maxmemory"):
            loaded(client, data, "else")
        assert set(client.keys()) == bloom_keys
        client.config_set("maxmemory", 0)
        loaded(client, data, "else")
        assert BloomFilter(client, "else").contains(URLS) == [True] * len(URLS)


@pytest.mark.parametrize("when", ["fill", "install"])
def test_bitmaps_that_are_evicted_while_they_are_loaded_are_noticed(
    client: redis.Redis, full: BloomFilter, when: str
) -> None:
    data, before = saved(full), contents(client)

    def evict(calls: list[Call]) -> None:
        if calls[0].script.name == when:
            client.delete(*[name for name in client.keys() if b":load:" in name])

    with pytest.raises(StorageError, match="is gone again: the server is out of memory and evicts"):
        loaded(client, data, "else", evict)
    assert contents(client) == before


def test_what_is_not_allowed_is_refused_before_anything_is_done(
    client: redis.Redis, full: BloomFilter
) -> None:
    data, before = saved(full), contents(client)
    with pytest.raises(ArchiveError, match=r"bytes, and 1,000 are allowed: .*raise max_memory"):
        Reader(io.BytesIO(data), 1_000)
    assert contents(client) == before


@pytest.mark.parametrize("key", ["{shop:1}:ring", "{shop:0}:header"])
def test_a_key_of_another_type_is_named(client: redis.Redis, full: BloomFilter, key: str) -> None:
    data = saved(full)
    client.flushall()
    client.set(key, "mine")
    with pytest.raises(StorageError, match=f"the Redis key '{key}' holds a string"):
        loaded(client, data)
    assert contents(client) == {key.encode(): b"mine"}


def test_a_filter_that_cannot_be_read_is_only_replaced_if_it_may_be(
    client: redis.Redis, full: BloomFilter
) -> None:
    data, expected = saved(full), comparable(client)
    client.hset(Keys(KEY).ring(2), "state", "{}")
    before = contents(client)
    with pytest.raises(ConfigurationError, match="already"):
        loaded(client, data)
    assert contents(client) == before
    loaded(client, data, replace=True)
    assert comparable(client) == expected


# -- time --


@pytest.fixture
def moved_client(moved: MovedServer) -> Iterator[redis.Redis]:
    with moved.client() as client:
        yield client


def test_what_is_overdue_is_forgotten_at_the_next_use(
    moved: MovedServer, moved_client: redis.Redis
) -> None:
    notes: list[str] = []
    bloom = make(moved_client, window="3 days", period="1 day")
    bloom.extend(URLS[:500])
    moved.move(86_400)
    bloom.extend(URLS[500:600])
    data = saved(bloom)
    for days, expected in ((1, 600), (2, 100), (3, 0), (30, 0)):
        moved.move(86_400 if days < 30 else 27 * 86_400)
        loaded(moved_client, data, f"after {days}")
        other = BloomFilter(
            moved_client, f"after {days}", notify=lambda event, _: notes.append(event)
        )
        assert sum(other.contains(URLS[:600])) == expected
        assert other.claim(URLS[:600]).count(False) == expected
        assert other.contains(URLS[:600]) == [True] * 600
    assert LOST not in notes


def test_a_file_of_which_all_is_forgotten_is_refused(
    moved: MovedServer, moved_client: redis.Redis
) -> None:
    bloom = make(moved_client, window="3 days", period="1 day")
    bloom.extend(URLS)
    data = saved(bloom)
    moved.move(timedelta(days=500).total_seconds())
    assert contents(moved_client) == {}
    with pytest.raises(ArchiveError, match="all that it remembers is forgotten by now"):
        loaded(moved_client, data)
    assert contents(moved_client) == {}


def test_runs_do_not_pass_while_a_file_lies_about(
    moved: MovedServer, moved_client: redis.Redis
) -> None:
    bloom = make(moved_client, window="2 runs", run="a")
    bloom.extend(URLS)
    data = saved(bloom)
    moved.move(timedelta(days=900).total_seconds())
    assert contents(moved_client) == {}
    loaded(moved_client, data)
    assert BloomFilter(moved_client, KEY, run="b").contains(URLS) == [True] * len(URLS)
    assert not any(BloomFilter(moved_client, KEY, run="c").contains(URLS))


def test_a_load_may_take_its_time(moved: MovedServer, moved_client: redis.Redis) -> None:
    bloom = make(moved_client)
    bloom.extend(URLS)
    data, expected = saved(bloom), comparable(moved_client)
    fills: list[float] = []

    def wait(calls: list[Call]) -> None:
        if calls[0].script.name == "fill" and calls[0].args[3]:
            moved.move(STAGED_FOR / 2)
            fills.append(moved.now())

    loaded(moved_client, data, "else", wait)
    assert comparable(moved_client, "else") == expected
    assert fills[-1] - fills[0] > STAGED_FOR > RENEW_AFTER


# -- limits --


def test_it_takes_memory_for_some_chunks_only(client: redis.Redis) -> None:
    bloom = make(client, capacity=10_000_000, error_rate=1e-5, blocks=16)
    bloom.extend(URLS)
    memory = bloom.info(0).memory
    for block in range(16):
        client.set(Keys(KEY).layer(block, "0.0"), random.Random(block).randbytes(memory))
    data = saved(bloom)
    loaded(client, data, "first")
    driver = Driver(client)
    with io.BytesIO(data) as file:
        tracemalloc.start()
        driver.run(Loading(Keys("second"), Reader(file)).run())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert len(data) > 30 << 20
    assert peak < 6 << 20
    assert comparable(client, "second") == comparable(client)


#: Saves and loads a filter; prints by how many KiB the process has grown meanwhile at most.
CHILD = """
import sys, redis
from pathlib import Path
from scrapy_bloom.files.archive import Reader, Writer
from scrapy_bloom.clients.driver import Driver
from scrapy_bloom.core.keys import Keys
from scrapy_bloom.files.loading import Loading, load
from scrapy_bloom.files.places import reading, writing
from scrapy_bloom.files.saving import save

def kib(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])

run = Driver(redis.Redis.from_url(sys.argv[1])).run
for number, key in enumerate(("small", "large")):
    before = kib("VmRSS")
    with writing(sys.argv[2]) as file:
        run(save(Keys(key), Writer(file)))
    with reading(sys.argv[2]) as file:
        load(run, Loading(Keys(f"{key}-copy"), Reader(file)))
print(kib("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_the_process_grows_no_further_than_for_a_small_filter(
    client: redis.Redis, server: Server, tmp_path: Path
) -> None:
    for key, capacity in (("small", 100_000), ("large", 20_000_000)):
        BloomFilter(client, key, capacity=capacity, blocks=16).extend(URLS)
        for block in range(16):
            size = client.strlen(Keys(key).layer(block, "0.0"))
            client.setrange(Keys(key).layer(block, "0.0"), 0, random.Random(1).randbytes(size // 2))
    command = [sys.executable, "-c", CHILD, server.unix_url, str(tmp_path / "file")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert (tmp_path / "file").stat().st_size > 30 << 20
    assert int(done.stdout) < 10 << 10
    assert comparable(client, "large-copy") == comparable(client, "large")


def test_an_error_of_ours_is_what_the_user_sees_if_cleaning_up_fails_too(
    client: redis.Redis, full: BloomFilter
) -> None:
    data = saved(full)

    def fail(calls: list[Call]) -> None:
        if calls[0].script.name == "stage" and calls[0].args[0] == 0:
            raise redis.ConnectionError("gone")

    with pytest.raises(BloomError, match="the file ends after"):
        loaded(client, data[:-9], "else", fail)
    staged = {name for name in client.keys() if b":load:" in name}
    assert staged
    assert all(0 < client.ttl(name) <= STAGED_FOR for name in staged)


def test_what_is_read_is_what_is_stored(client: redis.Redis, full: BloomFilter) -> None:
    assert OPTIONS["blocks"] == 4
    assert read(saved(full)) == stored(client)
