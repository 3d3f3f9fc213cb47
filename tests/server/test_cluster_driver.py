"""What the nodes of a cluster answer: slots that move, lost replies, and nodes that fail."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry
from support.both import PATIENCE
from support.calls import script_calls
from support.polling import until_it_works
from support.proxy import Fault, Kind, Proxy
from support.replicas import start_replicated_cluster
from support.servers import Server
from support.slots import SlotMove

from scrapy_bloom.bloom import AsyncBloomFilter, BloomFilter
from scrapy_bloom.bloom.errors import NotReadyError, StorageError

URLS = [f"https://example.com/{i}" for i in range(640)]
#: Links of a page; seconds that a reply may take, where one is lost.
PAGE, SHORT = 64, 2.0
OPTIONS: dict[str, Any] = {"capacity": 10_000, "blocks": 16}


class Either:
    """A filter with or without asyncio, used in the same way."""

    def __init__(self, bloom: Any, run: Callable[[Any], Any]) -> None:
        self.bloom, self._run = bloom, run

    def add_many(self, urls: list[str]) -> list[bool]:
        new: list[bool] = self._run(lambda: self.bloom.add_many(urls))
        return new

    def open(self) -> None:
        """Open the filter: on a busy machine, it may not connect in time."""
        until_it_works(lambda: self._run(self.bloom.open), NotReadyError)

    def round_trips(self, urls: list[str]) -> int:
        """Add URLs and return how many round trips it took."""
        before: int = self.bloom.transport.round_trips
        self.add_many(urls)
        return int(self.bloom.transport.round_trips) - before


Make = Callable[..., Any]


@contextmanager
def blocking(port: int, seconds: float = PATIENCE, **client: Any) -> Iterator[Either]:
    given = {"retry": Retry(NoBackoff(), 0), "socket_timeout": seconds, **client}
    with closing(redis.RedisCluster(host="127.0.0.1", port=port, **given)) as own:
        yield Either(BloomFilter(own, "shop", **OPTIONS), lambda call: call())


@contextmanager
def awaited(port: int, seconds: float = PATIENCE, **client: Any) -> Iterator[Either]:
    async def run(call: Callable[[], Any]) -> Any:
        return await call()

    given = {"retry": AsyncRetry(NoBackoff(), 0), "socket_timeout": None, **client}
    own = redis.asyncio.RedisCluster(host="127.0.0.1", port=port, reinitialize_steps=0, **given)
    with asyncio.Runner() as runner:
        bloom = AsyncBloomFilter(own, "shop", seconds, **OPTIONS)
        try:
            yield Either(bloom, lambda call: runner.run(run(call)))
        finally:
            runner.run(own.aclose())


@pytest.fixture(params=[blocking, awaited])
def make(request: pytest.FixtureRequest) -> Any:
    """Return a context manager that makes a filter on a client of its own."""
    return request.param


def test_a_page_of_links_takes_one_round_trip(
    make: Make, cluster: redis.RedisCluster, nodes: list[Server]
) -> None:
    with make(nodes[0].port) as bloom:
        bloom.open()
        bloom.add_many(URLS)
        pages = [URLS[start : start + PAGE] for start in range(0, len(URLS), PAGE)]
        assert [bloom.round_trips(page) for page in pages] == [1] * len(pages)


def test_a_slot_that_is_being_moved(
    make: Make, cluster: redis.RedisCluster, nodes: list[Server]
) -> None:
    """ASK while all keys are there already, TRYAGAIN while some are, MOVED at the end."""
    with make(nodes[0].port) as bloom:
        assert bloom.add_many(URLS) == [True] * len(URLS)
        move = SlotMove(nodes, "{shop:3}")
        first, *others = move.keys()
        assert others
        move.move(first)
        later = threading.Timer(0.2, lambda: move.move(*others))
        later.start()
        # Refused until the others are there, too.
        assert bloom.add_many(URLS) == [False] * len(URLS)
        later.join()
        assert sum(bloom.add_many([f"new/{link}" for link in range(PAGE)])) >= PAGE - 1
        move.finish()
        assert bloom.add_many(URLS) == [False] * len(URLS)


def test_scripts_that_one_node_does_not_know(
    make: Make, cluster: redis.RedisCluster, nodes: list[Server]
) -> None:
    with make(nodes[0].port) as bloom:
        assert bloom.add_many(URLS[:PAGE]) == [True] * PAGE
        for node in nodes:
            with node.client() as client:
                client.script_flush()
            assert bloom.add_many(URLS[:PAGE]) == [False] * PAGE


@pytest.mark.parametrize("kind", [Kind.DROP_REPLY, Kind.RESET_REPLY, Kind.HALF])
def test_a_lost_reply_of_one_node_is_not_asked_for_again(
    make: Make, cluster: redis.RedisCluster, nodes: list[Server], kind: Kind
) -> None:
    with Proxy(nodes[1].port) as proxy:

        def remap(address: tuple[str, int]) -> tuple[str, int]:
            return (address[0], proxy.port) if address[1] == nodes[1].port else address

        with make(nodes[0].port, SHORT, address_remap=remap) as bloom:
            bloom.open()
            until_it_works(lambda: bloom.add_many(URLS), NotReadyError)
            before = [script_calls(node.client()) for node in nodes]
            proxy.fault = Fault(kind, times=1)
            page = [f"new/{link}" for link in range(2 * PAGE)]
            with pytest.raises(StorageError):
                bloom.add_many(page)
            assert proxy.struck == 1
            # The nodes have carried each call out once.
            after = [script_calls(node.client()) for node in nodes]
            assert 0 < sum(after) - sum(before) <= OPTIONS["blocks"]
            until_it_works(lambda: bloom.add_many(page), NotReadyError)
            assert bloom.add_many(page) == [False] * len(page)


def test_a_replica_that_takes_over_is_found(make: Make, any_binary: str) -> None:
    with (
        start_replicated_cluster(any_binary) as cluster,
        make(cluster.nodes[0].port, SHORT) as bloom,
    ):
        bloom.open()
        assert bloom.add_many(URLS) == [True] * len(URLS)
        cluster.shards[1].replica()  # it has them
        cluster.primaries()[1].kill()
        with pytest.raises(StorageError):
            bloom.add_many(URLS)
        cluster.primaries()  # its replica takes over
        seen = until_it_works(lambda: bloom.add_many(URLS), StorageError)
        assert seen == [False] * len(URLS)
