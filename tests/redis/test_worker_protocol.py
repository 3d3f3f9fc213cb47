"""Heartbeats, and whose turn it is to look at all claims, on a real server."""

from functools import partial
from typing import Any

import pytest
from redis import Redis

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.protocol import worker_protocol
from scrapy_bloom.bloom.protocol.worker_protocol import (
    MAX_NAMED,
    MAX_WORKERS,
    ONLY_DEAD,
    WorkerEntries,
)

KEYS = Keys("k")
LIFE = 60


@pytest.fixture
def bloom(client: Redis) -> BloomFilter:
    bloom = BloomFilter(client, "k", blocks=1, capacity=1_000)
    bloom.open()
    return bloom


def beat(bloom: BloomFilter, member: str = "", life: int = LIFE, **options: Any) -> WorkerEntries:
    return bloom.run(partial(worker_protocol.heartbeat, member=member, life=life, **options))


def remove(bloom: BloomFilter, entries: dict[str, str], nonce: str) -> None:
    bloom.run(lambda session: worker_protocol.remove_workers(session, entries, nonce))


def test_a_heartbeat_notes_until_when_a_worker_is_alive(bloom: BloomFilter, client: Redis) -> None:
    assert beat(bloom).entries == {}
    found = beat(bloom, "one {}", nonce="n1")
    assert abs(found.now - client.time()[0]) <= 1
    assert found.entries == {"one {}": str(found.now + LIFE)}
    again = beat(bloom, "two []", 0, nonce="n2")
    assert again.entries == {**found.entries, "two []": "0"}
    assert (again.total, again.is_all, again.is_partial) == (2, True, False)


def test_the_version_changes_when_a_worker_comes_or_goes_and_not_with_heartbeats(
    bloom: BloomFilter,
) -> None:
    """Nobody is removed who has changed since."""
    versions = [
        beat(bloom, "one {}", nonce="n1").version,
        beat(bloom, "one {}", nonce="n2").version,
        beat(bloom, "two {}", nonce="n3").version,
        beat(bloom, "two {}", 0, nonce="n4").version,  # it stops: the reply shows that in any case
    ]
    assert versions == ["n1", "n1", "n3", "n3"]
    remove(bloom, {"two {}": "7", "three {}": ""}, "n5")
    assert beat(bloom).entries.keys() == {"one {}", "two {}"}
    assert beat(bloom).version == "n3"
    remove(bloom, {"two {}": "0"}, "n6")
    assert beat(bloom).entries.keys() == {"one {}"}
    assert beat(bloom).version == "n6"
    remove(bloom, {"one {}": ""}, "n7")
    assert beat(bloom).entries == {}


def test_a_reply_leaves_out_the_living_if_no_worker_came_or_went(bloom: BloomFilter) -> None:
    beat(bloom, "one {}", nonce="n1")
    beat(bloom, "stopped {}", 0, nonce="n2")
    known = beat(bloom, "one {}", nonce="n3").version
    for version in (known, ONLY_DEAD):
        found = beat(bloom, "one {}", known=version)
        assert (found.is_all, found.entries) == (False, {"stopped {}": "0"})
    assert beat(bloom, "two {}", nonce="n4", known=known).entries.keys() == {
        *("one {}", "two {}", "stopped {}")
    }
    assert beat(bloom, "three {}", nonce="n5", known=ONLY_DEAD).entries == {"stopped {}": "0"}


def test_without_what_is_noted_of_the_set_of_workers_all_are_read(
    bloom: BloomFilter, client: Redis
) -> None:
    known = beat(bloom, "one {}", nonce="n1").version
    assert 0 < client.ttl(KEYS.workers_version()) <= 3_600
    client.delete(KEYS.workers_version())
    assert beat(bloom, known=known).is_all
    found = beat(bloom, "one {}", nonce="n2", known=known)
    assert (found.is_all, found.version) == (True, "n2")
    # The silent are dead, and named at any rate.
    client.zadd(KEYS.heartbeats(), {"one {}": client.time()[0]})
    assert beat(bloom, known="n2").entries.keys() == {"one {}"}
    assert beat(bloom, "one {}", known="n2").entries == {}


def test_those_are_named_that_may_soon_be_dead(bloom: BloomFilter, client: Redis) -> None:
    now = client.time()[0]
    members = {"dead {}": now - 1, "first {}": now + 10, "w2 {}": now + 20, "late {}": now + 99}
    client.zadd(KEYS.heartbeats(), members)
    for by in ("+30", str(now + 30)):
        assert beat(bloom, by=by, known=ONLY_DEAD).soon == {"first": now + 10, "w2": now + 20}
    assert beat(bloom, by="0").soon == {}
    client.zadd(KEYS.heartbeats(), {f"w{number} {{}}": now + 30 for number in range(999)})
    assert len(beat(bloom, by="+40").soon) == MAX_NAMED


def test_of_too_many_workers_some_are_returned(bloom: BloomFilter, client: Redis) -> None:
    client.zadd(KEYS.heartbeats(), {f"w{number} {{}}": 1 for number in range(MAX_WORKERS + 1)})
    for known in ("", ONLY_DEAD):
        found = beat(bloom, known=known)
        assert (found.is_partial, len(found.entries)) == (True, MAX_WORKERS)


def test_entries_that_are_too_long_go(bloom: BloomFilter, client: Redis) -> None:
    client.zadd(KEYS.heartbeats(), {"w " + "x" * 5_000: 1, "x" * 5_000: 10**10})
    assert beat(bloom, by=str(10**11)).entries == {}
    assert client.zcard(KEYS.heartbeats()) == 2
    assert beat(bloom, "one {}").entries.keys() == {"one {}"}
    assert client.zcard(KEYS.heartbeats()) == 1
