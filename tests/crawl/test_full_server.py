"""Claims on a server with little memory: they are bounded, and end on a server that is full."""

import secrets

import pytest
import redis

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.errors import ServerFullError
from scrapy_bloom.bloom.protocol import claim_protocol, worker_protocol
from scrapy_bloom.bloom.protocol.cached_ring import Verdict

MINE, MINE_UNKEPT, UNKEPT, NEW = Verdict.MINE, Verdict.MINE_UNKEPT, Verdict.UNKEPT, Verdict.NEW

#: Bytes of a request.
REQUEST = "x" * 2_000


@pytest.fixture
def bloom(client: redis.Redis) -> BloomFilter:
    bloom = BloomFilter(client, "shop", blocks=4, capacity=10_000)
    bloom.open()
    return bloom


def take(bloom: BloomFilter, items: list[bytes], memory: int, request: str = REQUEST) -> str:
    nonce = secrets.token_hex(4)
    requests = [request] * len(items)
    return "".join(
        bloom.run(
            lambda session: claim_protocol.claim(
                session, items, requests, "me", nonce, memory=memory
            )
        )
    )


def used(client: redis.Redis) -> int:
    return sum(client.memory_usage(key, samples=0) or 0 for key in client.keys("*:claims"))


def test_claims_keep_their_requests_up_to_a_limit(bloom: BloomFilter, client: redis.Redis) -> None:
    items, limit = [b"%d" % number for number in range(2_000)], 1 << 20
    verdicts = "".join(
        take(bloom, items[start : start + 50], limit) for start in range(0, 2_000, 50)
    )
    assert set(verdicts) == {NEW, UNKEPT}
    # The rest are claims alone, of about 150 bytes. The estimate is from a few claims.
    assert 0.7 * limit < verdicts.count(NEW) * len(REQUEST) < 1.6 * limit
    assert used(client) < 1.6 * limit + 2_000 * 200
    again = take(bloom, items, limit)
    assert all(
        {NEW: MINE, UNKEPT: MINE_UNKEPT}[Verdict(a)] == b
        for a, b in zip(verdicts, again, strict=True)
    )


def test_there_is_room_again_when_claims_end(bloom: BloomFilter) -> None:
    limit = 200_000
    first = [b"%d" % number for number in range(1_000)]
    assert UNKEPT in take(bloom, first, limit)
    bloom.run(lambda session: claim_protocol.release(session, first))
    assert take(bloom, [b"next"], limit) == NEW


def test_on_a_full_server_claims_end_and_no_others_are_made(
    bloom: BloomFilter, client: redis.Redis
) -> None:
    items = [b"%d" % number for number in range(10)]
    take(bloom, items, 0)
    client.config_set("maxmemory", "1")
    try:
        another = BloomFilter(client, "shop")
        another.open()
        with pytest.raises(ServerFullError, match="out of memory"):
            take(another, [b"more"], 0)
        assert another.run(lambda session: claim_protocol.hold(session, items, "other", "n"))
        assert another.run(lambda session: claim_protocol.release(session, items, "other")) == 10
        found = another.run(lambda session: worker_protocol.heartbeat(session, "w1 {}", 60))
        assert found.entries["w1 {}"] == str(found.now + 60)
        another.run(lambda session: worker_protocol.remove_workers(session, {"w1 {}": ""}, "n"))
    finally:
        client.config_set("maxmemory", "0")
