"""Loading filters on real servers: bit for bit, whole or not at all, whatever happens meanwhile."""

import io
import random
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from support.clock import MovedServer
from support.saving import KEY, KINDS, URLS, Between, blocking, make, saved, watched
from support.servers import contents

from scrapy_bloom import BloomFilter, StorageError
from scrapy_bloom.bloom.base import complete
from scrapy_bloom.bloom.client.driver import Driver
from scrapy_bloom.bloom.extras import file
from scrapy_bloom.bloom.extras.file import ArchiveReader
from scrapy_bloom.bloom.extras.install import UNFINISHED_SECONDS, load
from scrapy_bloom.bloom.extras.save import Saved
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.protocol.ring_store import LOST
from scrapy_bloom.bloom.protocol.scripts import Call


def loaded(
    client: Any, data: bytes, key: str = KEY, between: Between = lambda _: None, **options: Any
) -> Saved:
    """Load a file."""
    run = Driver(client).run
    watching = blocking(lambda steps: run(watched(steps, between)))
    return complete(load(watching, Keys(key), ArchiveReader(io.BytesIO(data)), **options))


def comparable(client: Redis, key: str = KEY) -> dict[str, Any]:
    """Return what makes a filter, and its end; not the id, the nonces and the time of opening."""
    found: dict[str, Any] = {}
    for name, value in contents(client, f"{{{key}:*").items():
        short = name.decode().replace(f"{{{key}:", "{")
        if isinstance(value, dict):
            fields = {k: v for k, v in value.items() if k not in (b"v", b"opened", b"id")}
            if b"state" in fields:
                fields[b"state"] = re.sub(rb'"id":"[0-9a-f]{32}"', b"", fields[b"state"])
            found[short] = (fields, client.expiretime(name.decode()))
        else:
            found[short] = (value, client.expiretime(name.decode()))
    return found


# -- round trips --


@pytest.mark.each_server(others="slow")
@pytest.mark.parametrize("options", KINDS)
def test_it_is_the_same_bit_for_bit_under_another_key(
    client: Redis, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "CHUNK_BYTES", 512)  # layers have many chunks
    bloom = make(client, capacity=600, **options)
    bloom.extend(URLS)
    if "window" in options:
        bloom.rotate()
        bloom.extend(f"new/{i}" for i in range(100))
    before = contents(client)
    data = saved(bloom)
    assert contents(client) == before
    result = loaded(client, data, "else")
    assert {**comparable(client), **without_changed(client)} == comparable(client, "else")
    there = BloomFilter(client, "else", run="a" if "run" in options else None)
    assert there.contains(URLS) == [True] * len(URLS)
    assert there.seeds == bloom.seeds
    assert there.add_many(["quite new", URLS[0]]) == [True, False]
    assert (result.count, result.memory) == (bloom.info().count, bloom.info().memory)


def without_changed(client: Redis) -> dict[str, Any]:
    """Return the rings of a loaded filter in runs: they live on from when they were loaded."""
    after, before = comparable(client, "else"), comparable(client)
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
        loaded(moved_client, data, f"after {days}")
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
        loaded(moved_client, data)
    assert contents(moved_client) == {}


def test_a_load_may_take_its_time_and_not_for_ever(moved: MovedServer, moved_client: Redis) -> None:
    bloom = make(moved_client)
    bloom.extend(URLS)
    data, expected = saved(bloom), comparable(moved_client)
    pause = UNFINISHED_SECONDS / 10

    def wait(calls: list[Call]) -> None:
        if calls[0].script.name == "allocate":
            moved.move(pause)

    loaded(moved_client, data, "else", wait)
    assert comparable(moved_client, "else") == expected
    pause = UNFINISHED_SECONDS / 3
    with pytest.raises(StorageError, match="or evicted while"):
        loaded(moved_client, data, "other", wait)
    assert not moved_client.keys("{other:*")


# -- limits --


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
