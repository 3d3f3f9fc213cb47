"""Filters in files, on real servers: saved while they are in use, and loaded bit for bit."""

import io
import random
import re
import tracemalloc
from collections.abc import Iterator
from operator import ge
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from redis import Redis
from support.archives import read
from support.clock import MovedServer
from support.examples import examples
from support.installing import put_file
from support.saving import KEY, KEYS, KINDS, URLS, at_round, make, saved, watched
from support.servers import Server, contents

from scrapy_bloom import BloomFilter, StorageError
from scrapy_bloom.bloom.errors import ArchiveError
from scrapy_bloom.bloom.extras import file as format_
from scrapy_bloom.bloom.extras.algebra import read_block, try_block
from scrapy_bloom.bloom.extras.file import MAX_LAYERS, ArchiveWriter
from scrapy_bloom.bloom.extras.install import UNFINISHED_SECONDS
from scrapy_bloom.bloom.extras.save import save
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.protocol.ring_store import LOST, MAX_ROUNDS
from scrapy_bloom.bloom.protocol.scripts import BYTES, Call, Reply


def test_a_filter_that_is_not_there_is_an_error_and_is_not_made(client: Redis) -> None:
    with pytest.raises(StorageError, match="there is no filter 'shop' to be saved"):
        saved(make(client))
    assert contents(client) == {}
    bloom = make(client)
    bloom.open()
    client.delete(*(KEYS.ring(block) for block in range(4)))
    with pytest.raises(StorageError, match="there is no filter 'shop' to be saved"):
        saved(bloom)


# -- while it is in use --


def test_a_filter_that_never_keeps_still_is_given_up(client: Redis) -> None:
    bloom, other = make(client), make(client)
    header = bloom.open()

    def clear(calls: list[Call]) -> None:
        if calls[0].script.name == "read_range":
            other.clear()

    message = f"was different each of {MAX_ROUNDS} times"
    with pytest.raises(StorageError, match=message):
        saved(bloom, clear)
    reading = try_block(bloom.session, header, 0, read_block)
    with pytest.raises(StorageError, match=message):
        bloom.run(lambda _: watched(reading, clear))


def test_a_server_that_answers_with_too_few_bytes_is_an_error(client: Redis) -> None:
    bloom = make(client)
    bloom.open()
    steps = read_block(bloom.session.held[0])
    next(steps)
    steps.send([Reply("ok", version=bloom.session.held[0].version)])
    with pytest.raises(StorageError, match="answered 3 bytes where there are"):
        steps.send([Reply(BYTES, data=b"abc")])


def test_a_filter_that_is_deleted_meanwhile_is_an_error(client: Redis) -> None:
    bloom = make(client)
    bloom.extend(URLS)
    with pytest.raises(StorageError, match="of the filter 'shop' was deleted or evicted"):
        saved(bloom, at_round(5, client.flushall))
    assert contents(client) == {}


@example(["lose"] * 40)
@given(st.lists(st.sampled_from(["extend", "rotate", "clear", "lose", "nothing"]), max_size=40))
@examples(25)
def test_whatever_happens_meanwhile_what_is_still_seen_is_in_the_file(
    server: Server, events: list[str]
) -> None:
    with server.client() as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr(format_, "CHUNK_BYTES", 512)
        client.flushall()
        options = {"window": "3 days", "period": "1 day", "capacity": 500}
        bloom, other = make(client, **options), make(client, **options)
        bloom.extend(URLS[:600])
        to_come, later = iter(events), iter(URLS[600:])

        def happen(_: list[Call]) -> None:
            event = next(to_come, "nothing")
            if event == "extend":
                other.extend([url for _, url in zip(range(60), later, strict=False)])
            elif event in ("rotate", "clear"):
                getattr(other, event)()
            elif event == "lose":
                client.delete(min(client.keys(b"*[0-9].[0-9]"), default=b"none"))

        data = saved(bloom, happen)
        assert [ring.block for ring, _, _ in read(data)] == [0, 1, 2, 3]
        still = other.contains(URLS[:600])
        if "lose" not in events:  # else what is lost is noticed by whoever asks
            copy = BloomFilter.load(client, "copy", io.BytesIO(data))
            assert all(map(ge, copy.contains(URLS[:600]), still))


# -- what is lost --


def test_bitmaps_that_are_lost_are_empty_in_the_file(client: Redis) -> None:
    bloom = make(client)
    bloom.extend(URLS)
    client.delete(KEYS.layer(1, "0.0"))
    client.set(KEYS.layer(2, "0.0"), "of another size")
    client.hdel(KEYS.ring(3), "n:0.0")
    before = contents(client)
    file = io.BytesIO()
    result = bloom.run(lambda session: save(session.keys, ArchiveWriter(file)))
    assert result.lost == 3
    content = read(file.getvalue())
    assert contents(client) == before
    assert content[0][2] == [client.get(KEYS.layer(0, "0.0"))]
    for block in (1, 2, 3):
        assert content[block][1] == {"0.0": 0}
        assert content[block][2] == [bytes(content[0][0].memory)]
    # A lost block is allocated when the filter is opened again.
    client.delete(KEYS.ring(2))
    with pytest.raises(StorageError, match="block 2 of the filter 'shop' was deleted or evicted"):
        saved(bloom)
    assert not client.exists(KEYS.ring(2))
    make(client).open()
    ring, counts, bitmaps = read(saved(bloom))[2]
    assert (ring.block, counts, set(bitmaps[0])) == (2, {"0.0": 0}, {0})


# -- limits --


def test_a_filter_of_too_many_layers_is_refused(
    client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    bloom = make(client)
    bloom.open()
    monkeypatch.setattr("scrapy_bloom.bloom.extras.save.MAX_LAYERS", 3)
    with pytest.raises(ArchiveError, match="a file may hold 3 layers; this filter has 4"):
        saved(bloom)
    assert MAX_LAYERS > 16_384


# -- loading --


def comparable(client: Redis, key: str = KEY) -> dict[str, Any]:
    """Return what makes a filter, and its end; not the id, the nonces and the time of opening."""
    found: dict[str, Any] = {}
    for name, value in contents(client, f"{{{key}:*").items():
        short = name.decode().replace(f"{{{key}:", "{")
        kept = value
        if isinstance(value, dict):
            kept = {k: v for k, v in value.items() if k not in (b"v", b"opened", b"id")}
            if b"state" in kept:
                kept[b"state"] = re.sub(rb'"id":"[0-9a-f]{32}"', b"", kept[b"state"])
        found[short] = (kept, client.expiretime(name.decode()))
    return found


@pytest.mark.each_server(others="slow")
@pytest.mark.parametrize("options", KINDS)
def test_it_is_the_same_bit_for_bit_under_another_key(
    client: Redis, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(format_, "CHUNK_BYTES", 512)  # layers have many chunks
    bloom = make(client, capacity=600, **options)
    bloom.extend(URLS)
    if "window" in options:
        bloom.rotate()
        bloom.extend(f"new/{i}" for i in range(100))
    before = contents(client)
    data = saved(bloom)
    assert contents(client) == before
    result = put_file(client, data, key="else")
    bloom.copy("copy")
    for key in ("else", "copy"):
        assert {**comparable(client), **without_changed(client, key)} == comparable(client, key)
    there = BloomFilter(client, "else", run="a" if "run" in options else None)
    assert there.contains(URLS) == [True] * len(URLS)
    assert there.seeds == bloom.seeds
    assert there.add_many(["quite new", URLS[0]]) == [True, False]
    assert (result.count, result.memory) == (bloom.info().count, bloom.info().memory)


def without_changed(client: Redis, key: str) -> dict[str, Any]:
    """Return the rings of a loaded filter in runs: they live on from when they were loaded."""
    after, before = comparable(client, key), comparable(client)
    if '"3 runs"' not in str(client.hget(Keys(KEY).ring(0), "state")):
        return {}
    for name in before:
        (_, old_end), (_, new_end) = before[name], after[name]
        assert 0 <= new_end - old_end <= 60
    return after


def test_a_filter_that_was_deleted_is_loaded_again_as_another_one(
    client: Redis, tmp_path: Path
) -> None:
    """Clients that have it open notice."""
    full = make(client, window="3 days", period="1 day")
    full.extend(URLS)
    full.save(tmp_path / "file")
    before = full.header
    full.extend(f"later/{i}" for i in range(500))
    BloomFilter(client, KEY).delete()
    again = BloomFilter.load(client, KEY, tmp_path / "file")
    assert full.contains(URLS) == [True] * len(URLS)
    assert not any(full.contains(f"later/{i}" for i in range(500)))
    assert full.header == again.open()
    assert before is not None
    assert (again.open().id != before.id, again.seeds) == (True, before.seeds)


# -- time --


@pytest.fixture
def moved_client(moved: MovedServer) -> Iterator[Redis]:
    with moved.client() as client:
        yield client


def test_what_is_overdue_is_forgotten_at_the_next_use(
    moved: MovedServer, moved_client: Redis
) -> None:
    notes: list[str] = []
    bloom = make(moved_client, window="3 days", period="1 day")
    bloom.extend(URLS[:500])
    moved.move(86_400)
    bloom.extend(URLS[500:600])
    data = saved(bloom)
    for days, expected in ((1, 600), (2, 100), (3, 0), (30, 0)):
        moved.move(86_400 if days < 30 else 27 * 86_400)
        put_file(moved_client, data, key=f"after {days}")
        other = BloomFilter(
            moved_client, f"after {days}", notify=lambda event, _: notes.append(event)
        )
        assert sum(other.contains(URLS[:600])) == expected
        assert other.add_many(URLS[:600]).count(False) == expected
        assert other.contains(URLS[:600]) == [True] * 600
    assert LOST not in notes
    moved.move(500 * 86_400)
    assert contents(moved_client) == {}
    with pytest.raises(StorageError, match="all that it remembers is forgotten by now"):
        put_file(moved_client, data, key=KEY)
    assert contents(moved_client) == {}


def test_a_load_may_take_its_time_and_not_for_ever(moved: MovedServer, moved_client: Redis) -> None:
    bloom = make(moved_client)
    bloom.extend(URLS)
    data, expected = saved(bloom), comparable(moved_client)
    pause = UNFINISHED_SECONDS / 10

    def wait(calls: list[Call]) -> None:
        if calls[0].script.name == "allocate":
            moved.move(pause)

    put_file(moved_client, data, wait, "else")
    assert comparable(moved_client, "else") == expected
    pause = UNFINISHED_SECONDS / 3
    with pytest.raises(StorageError, match="gone again|or evicted while"):
        put_file(moved_client, data, wait, "other")
    assert not moved_client.keys("{other:*")


@pytest.mark.slow
def test_both_ways_take_memory_for_some_chunks_only(client: Redis, tmp_path: Path) -> None:
    bloom = make(client, capacity=10_000_000, error_rate=1e-5, blocks=16)
    bloom.extend(URLS)
    memory = bloom.info(0).memory
    for block in range(16):  # so that nothing can be deflated
        client.set(Keys(KEY).layer(block, "0.0"), random.Random(block).randbytes(memory))
    path = tmp_path / "filter"
    for key in ("first", "second"):
        tracemalloc.start()
        bloom.save(path)
        BloomFilter.load(client, key, path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert path.stat().st_size > 30 << 20
    assert peak < 6 << 20
    assert comparable(client, "second") == comparable(client)
