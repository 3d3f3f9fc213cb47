"""The background thread's part of the ledger: it packs entries, and gives what is due."""

import secrets
from collections.abc import Sequence
from typing import Any, cast

import pytest
import redis
from support.clock import MovedServer

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model import ledger
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.protocol import claim_protocol
from scrapy_bloom.bloom.protocol.ledger_protocol import Kept
from scrapy_bloom.crawl.claims.ledger_task import LedgerTask
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.settings import DEFAULT

TAG, OWNER, KEYS = "12345678", "w-ours", Keys("k")


class Events:
    """Notes what the crawl's thread receives."""

    def __init__(self) -> None:
        self.given: list[Sequence[str]] = []
        self.ends = 0

    def due(self, requests: Sequence[str]) -> None:
        self.given.append(requests)

    def none_due(self) -> None:
        self.ends += 1


class Stand:
    """A task, and the filter whose ledger it keeps."""

    def __init__(self, server: MovedServer, client: redis.Redis) -> None:
        self.server, self.client, self.events = server, client, Events()
        self.bloom = BloomFilter(client, "k", blocks=1, capacity=10_000, window="6 months")
        self.filters = Filters({DEFAULT: self.bloom}, cast("Any", None))
        self.bloom.open()
        self.task = LedgerTask(TAG, self.events, lambda call: call(), secrets.token_hex)

    def crawl(self, count: int, first: int = 0) -> None:
        items = [number.to_bytes(20, "big") for number in range(first, first + count)]
        texts = [f'{{"url":"http://x/{n}","meta":{{"a":1,"bloom_claims":{{"b":2}}}}}}' for n in
                 range(first, first + count)]  # fmt: skip
        self.bloom.run(lambda s: claim_protocol.claim(s, items, texts, OWNER, str(first)))
        kept = Kept(TAG, {})
        self.bloom.run(lambda s: claim_protocol.confirm(s, items, [OWNER], kept=kept))

    def run(self) -> None:
        """Run the task until it has nothing to do."""
        while self.task.run(self.filters) == 0:
            pass

    def forget(self) -> None:
        for _ in range(6):
            self.server.move(10)
            self.bloom.rotate()

    def entries(self) -> int:
        return self.client.llen(KEYS.entries(0))

    def chunks(self) -> int:
        return self.client.hlen(KEYS.chunks(0))


@pytest.fixture
def stand(moved: MovedServer) -> Any:
    with moved.client() as client:
        yield Stand(moved, client)


def test_nothing_is_done_before_it_is_asked_for(stand: Stand) -> None:
    stand.crawl(ledger.CHUNK_ENTRIES)
    round_trips = stand.bloom.round_trips
    stand.run()
    assert stand.bloom.round_trips == round_trips
    assert stand.entries() == ledger.CHUNK_ENTRIES


def test_many_entries_are_packed_while_the_crawl_goes_on(stand: Stand) -> None:
    stand.crawl(2 * ledger.CHUNK_ENTRIES + 5)
    stand.task.look_for_entries()
    stand.run()
    assert (stand.entries(), stand.chunks()) == (5, 2)
    stand.task.look_for_entries()
    stand.run()
    assert (stand.entries(), stand.chunks()) == (5, 2)


def test_what_is_due_is_given_chunk_by_chunk(stand: Stand) -> None:
    stand.crawl(ledger.CHUNK_ENTRIES + 5)
    stand.forget()
    task, given = stand.task, stand.events.given
    task.want()
    stand.run()
    stand.run()
    assert len(given) == 1, "it waits until the crawl wants more"
    assert stand.chunks() == 2, "until its requests are claimed, a chunk stays"
    task.proposed()
    stand.run()
    assert (len(given), stand.chunks()) == (1, 1)
    task.want()
    stand.run()
    task.proposed()
    task.end(stand.filters)
    assert stand.chunks() == 0
    texts = sorted(text for part in given for text in part)
    assert len(texts) == ledger.CHUNK_ENTRIES + 5
    assert texts[0] == '{"url":"http://x/0","meta":{"a":1}}'
    task.want()
    stand.run()
    assert (len(given), stand.events.ends) == (2, 1)


def test_a_chunk_that_was_not_proposed_is_given_again(stand: Stand) -> None:
    """The server failed while its requests were looked up."""
    stand.crawl(5)
    stand.forget()
    for _ in range(2):
        stand.task.want()
        stand.run()
        stand.task.recovered()
    assert len(stand.events.given) == 2
    assert stand.chunks() == 1


def test_a_crawl_that_is_killed_leaves_its_chunk(stand: Stand) -> None:
    stand.crawl(5)
    stand.forget()
    stand.task.want()
    stand.run()
    stand.task.end(stand.filters)
    assert stand.chunks() == 1


def test_damaged_chunks_are_deleted(stand: Stand) -> None:
    stand.crawl(5)
    stand.forget()
    for number in range(3):
        stand.client.zadd(KEYS.ledger(0), {f"{TAG} x{number}": 1})
        stand.client.hset(KEYS.chunks(0), f"{TAG} x{number}", b"garbage")
    stand.task.want()
    stand.run()
    stand.task.proposed()
    stand.task.want()
    stand.run()
    assert len(stand.events.given) == 1
    assert stand.events.ends == 1
    assert not stand.client.exists(KEYS.ledger(0))
