"""Saving filters on real servers: while they are in use, rotate, grow, and lose what they have."""

import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from redis import Redis
from support.archives import read
from support.examples import examples
from support.saving import KEYS, URLS, make, saved, watched
from support.servers import Server, contents

from scrapy_bloom import BloomFilter, StorageError
from scrapy_bloom.bloom.errors import ArchiveError
from scrapy_bloom.bloom.extras import file as format_
from scrapy_bloom.bloom.extras.algebra import read_block, try_block
from scrapy_bloom.bloom.extras.file import MAX_LAYERS, ArchiveWriter
from scrapy_bloom.bloom.extras.save import save
from scrapy_bloom.bloom.protocol.ring_store import MAX_ROUNDS
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
                for key in sorted(client.keys(b"*[0-9].[0-9]"))[:1]:
                    client.delete(key)

        data = saved(bloom, happen)
        assert [ring.block for ring, _, _ in read(data)] == [0, 1, 2, 3]
        still = [
            url for url, seen in zip(URLS[:600], other.contains(URLS[:600]), strict=True) if seen
        ]
        if "lose" not in events:  # else what is lost is noticed by whoever asks
            copy = BloomFilter.load(client, "copy", io.BytesIO(data))
            assert copy.contains(still) == [True] * len(still)


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
