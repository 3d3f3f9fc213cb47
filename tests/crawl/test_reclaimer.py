"""After an outage, the claims of other workers are theirs until these had the time to come back.

What else the reclaimer does is shown by the simulator.
"""

import time
from collections.abc import Collection
from functools import partial
from unittest import mock

import redis

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.client.connection import Connection
from scrapy_bloom.bloom.protocol import claim_protocol, worker_protocol
from scrapy_bloom.crawl.claims import workers
from scrapy_bloom.crawl.claims.claim_sweep import Reclaimed
from scrapy_bloom.crawl.claims.reclaimer import Reclaimer
from scrapy_bloom.crawl.claims.workers import Process, Worker
from scrapy_bloom.crawl.filters import Filters

FAR = Process("far", 7, "another machine", 99)


class Events:
    """Notes which claims are taken over."""

    def __init__(self) -> None:
        self.taken: dict[str, str] = {}
        self.wanted = self.looked = mock.Mock()

    def found(self, found: Reclaimed) -> None:
        self.taken |= found.requests

    def dropped(self, window: str, fields: Collection[str], begun: float) -> None:
        raise AssertionError


def test_after_an_outage_the_others_get_time_to_come_back(client: redis.Redis) -> None:
    bloom, events = BloomFilter(client, "k", blocks=4, capacity=1_000), Events()
    bloom.open()
    filters = Filters({"default": bloom}, Connection(client, ""))
    me, ghost = (Worker(workers.worker_id("shop"), 0, 1.0, FAR) for _ in range(2))
    reclaimer = Reclaimer(me, "shop", events, lambda event: event())
    reclaimer.run(filters)
    claim = partial(claim_protocol.claim, items=[b"left"], requests=["{}"], owner=ghost.id)
    bloom.run(partial(claim, nonce="n"))
    bloom.run(lambda session: worker_protocol.heartbeat(session, ghost.member, 1, nonce="n"))
    time.sleep(1.1)
    reclaimer.recovered()
    run(reclaimer, filters)
    assert not events.taken
    run(Reclaimer(me, "shop", events, lambda event: event()), filters)
    assert events.taken, "by a worker that does not know that the server was away"


def run(reclaimer: Reclaimer, filters: Filters) -> None:
    for _ in range(40):
        reclaimer.go_on()
        reclaimer.run(filters)
