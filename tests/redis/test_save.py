"""Saving filters on real servers: while they are in use, rotate, grow, and lose what they have."""

import io
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from redis import Redis
from support.archives import Content, read
from support.examples import examples
from support.saving import KEYS, KINDS, URLS, make, saved, stored
from support.servers import Server, contents

from scrapy_bloom import StorageError
from scrapy_bloom.bloom.errors import ArchiveError
from scrapy_bloom.bloom.extras import file as format_
from scrapy_bloom.bloom.extras.file import MAX_LAYERS, ArchiveWriter
from scrapy_bloom.bloom.extras.save import save
from scrapy_bloom.bloom.model import ring_codec
from scrapy_bloom.bloom.protocol.ring_store import MAX_ROUNDS
from scrapy_bloom.bloom.protocol.scripts import Call


def urls_in(content: Content) -> int:
    return sum(sum(counts.values()) for _, counts, _ in content)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of these tests have many chunks, too."""
    monkeypatch.setattr(format_, "CHUNK_BYTES", 512)


# -- what is there --


@pytest.mark.each_server
@pytest.mark.parametrize("options", KINDS)
@pytest.mark.usefixtures("small_chunks")
def test_what_is_stored_is_in_the_file_and_nothing_is_changed(
    client: Redis, options: dict[str, Any]
) -> None:
    bloom = make(client, **options)
    bloom.extend(URLS)
    if "window" in options:
        bloom.rotate()
        bloom.extend(URLS[:100] + [f"new/{i}" for i in range(100)])
    before = contents(client)
    data = saved(bloom)
    assert contents(client) == before
    assert read(data) == stored(client)
    assert urls_in(read(data)) >= len(URLS)


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


def put_back(client: Redis, content: Content) -> None:
    """Put what was read from a file into the place of what is there."""
    for ring, counts, bitmaps in content:
        client.delete(*(KEYS.layer(ring.block, layer.name) for layer in ring.layers))
        fields: dict[Any, Any] = {"v": "x", "state": ring_codec.dump(ring)}
        fields |= {f"n:{name}": count for name, count in counts.items()}
        client.hset(KEYS.ring(ring.block), mapping=fields)
        for layer, data in zip(ring.layers, bitmaps, strict=True):
            client.set(KEYS.layer(ring.block, layer.name), data)


@pytest.mark.usefixtures("small_chunks")
def test_a_filter_that_never_keeps_still_is_given_up(client: Redis) -> None:
    bloom = make(client)
    bloom.extend(URLS)
    other = make(client)

    def clear(calls: list[Call]) -> None:
        if calls[0].script.name == "read_range":
            other.clear()

    with pytest.raises(StorageError, match=f"was different each of {MAX_ROUNDS} times"):
        saved(bloom, clear)


def test_a_filter_that_is_deleted_meanwhile_is_an_error(client: Redis) -> None:
    bloom = make(client)
    bloom.extend(URLS)
    calls_seen: list[object] = []

    def delete(calls: list[Call]) -> None:
        calls_seen.append(calls)
        if len(calls_seen) == 6:
            client.flushall()

    with pytest.raises(StorageError, match="of the filter 'shop' was deleted or evicted"):
        saved(bloom, delete)
    assert contents(client) == {}


@example(["lose"] * 40)
@given(st.lists(st.sampled_from(["extend", "rotate", "clear", "lose", "nothing"]), max_size=40))
@examples(25)
def test_whatever_happens_meanwhile_what_is_still_seen_is_in_the_file(
    any_server: Server, events: list[str]
) -> None:
    with any_server.client() as client, pytest.MonkeyPatch.context() as patch:
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
                for key in sorted(client.keys(b"*[0-9].[0-9]"))[:1]:
                    client.delete(key)

        content = read(saved(bloom, happen))
        assert [ring.block for ring, _, _ in content] == [0, 1, 2, 3]
        still = [
            url for url, seen in zip(URLS[:600], other.contains(URLS[:600]), strict=True) if seen
        ]
        if "lose" not in events:  # else what is lost is noticed by whoever asks
            put_back(client, content)
            assert other.contains(still) == [True] * len(still)


@pytest.fixture(scope="module")
def any_server(any_binary: str) -> Any:
    with Server(any_binary) as server:
        yield server


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


def test_a_filter_that_has_lost_a_block_is_saved_when_it_was_opened_again(
    client: Redis,
) -> None:
    bloom = make(client, window="3 days", period="1 day")
    bloom.extend(URLS)
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
