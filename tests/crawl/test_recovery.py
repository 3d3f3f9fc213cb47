"""After an outage, the claims of other workers are theirs until these had the time to come back.

What else recovery does is shown by the simulator.
"""

import asyncio
from functools import partial

import pytest
from support.loops import eventually, in_loop
from support.servers import Server
from support.workers import Worker

from scrapy_bloom import BloomFilter, StorageError
from scrapy_bloom.bloom.protocol import claim_protocol, worker_protocol
from scrapy_bloom.crawl import workers
from scrapy_bloom.crawl.engine_hooks import EngineAdapter
from scrapy_bloom.crawl.workers import Process

GHOST = workers.Worker(workers.worker_id("shop"), 0, 1.0, Process("far", 7, "elsewhere", 99))


def haunt(server: Server) -> None:
    """Claim a page for a worker that sends one heartbeat and no more."""
    with server.client() as client:
        bloom = BloomFilter(client, "shop:bloom", on_difference="keep")
        bloom.run(partial(worker_protocol.heartbeat, member=GHOST.member, life=1, nonce="n"))
        claim = partial(claim_protocol.claim, items=[b"left"], requests=["{}"], owner=GHOST.id)
        bloom.run(partial(claim, nonce="n"))


def is_left(server: Server) -> bool:
    """Whether that page is claimed by it still."""
    with server.client() as client:
        claims = [one for key in client.scan_iter("*:claims") for one in client.hvals(key)]
    return any(one.startswith(GHOST.id.encode()) for one in claims)


@in_loop
async def test_after_an_outage_the_others_get_time_to_come_back(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EngineAdapter, "has_room", lambda _: True)
    settings = {"BLOOM_REMEMBER": "crawled", "BLOOM_HEARTBEAT": 1}
    async with Worker(own_server.url, **settings) as one:
        one.server.fail(StorageError("it was away"))
        haunt(own_server)
        await one.found_again()
        await asyncio.sleep(3)
        assert is_left(own_server), "by a worker that does not know whether it was cut off too"
        async with Worker(own_server.url, **settings):
            await eventually(lambda: not is_left(own_server), "it is taken over")
