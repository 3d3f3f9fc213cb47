"""One pipeline for each node of a cluster, all nodes at once, and what nodes answer to it."""

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
from support.calls import script_calls
from support.loops import in_loop
from support.outages import stalled
from support.polling import PATIENCE, until_it_works
from support.proxy import Fault, Kind, Proxy
from support.servers import Server
from support.slots import SlotMove, slots_on

from scrapy_bloom import AsyncBloomFilter, BloomFilter, StorageError
from scrapy_bloom.bloom.client.async_driver import AsyncDriver
from scrapy_bloom.bloom.client.routes import Failure, is_refusal
from scrapy_bloom.bloom.errors import NotReadyError

URLS = [f"https://example.com/{i}" for i in range(640)]
#: Links of a page; seconds that a reply may take, where one is lost.
PAGE, SHORT = 64, 2.0


def async_client(port: int, **options: Any) -> Any:
    retry = AsyncRetry(NoBackoff(), 0)
    return redis.asyncio.RedisCluster(host="127.0.0.1", port=port, retry=retry, **options)


class Either:
    """A filter with or without asyncio, used in the same way.

    Attributes:
        sent: the lists of calls that the driver sent.
        results: what it got for each of them, replies and failures.
    """

    def __init__(self, bloom: Any, run: Callable[[Any], Any]) -> None:
        self.bloom, self._run = bloom, run
        self.driver = bloom._driver
        self.sent: list[list[Any]] = []
        self.results: list[list[Any]] = []
        self._failure_of_calls = self.driver.failure_of_calls
        self.driver.failure_of_calls = self._note

    def _note(self, calls: Any, results: Any) -> Any:
        self.sent.append(calls)
        self.results.append(results)
        return self._failure_of_calls(calls, results)

    def add_many(self, urls: list[str]) -> list[bool]:
        new: list[bool] = self._run(lambda: self.bloom.add_many(urls))
        return new

    def open(self) -> None:
        """Open the filter as crawls do: on a busy machine, they may not connect in time."""
        until_it_works(lambda: self._run(self.bloom.open), NotReadyError)

    def waves(self, urls: list[str]) -> int:
        """Add URLs and return how many waves it took."""
        before: int = self.driver.round_trips
        self.add_many(urls)
        return int(self.driver.round_trips) - before


Make = Callable[..., Any]


@pytest.fixture(params=["sync", "asyncio"])
def make(request: pytest.FixtureRequest, cluster: redis.RedisCluster, nodes: list[Server]) -> Make:
    """Return a context manager that makes a filter on a client of its own."""
    port = nodes[0].port

    @contextmanager
    def sync(client: dict[str, Any], options: dict[str, Any]) -> Iterator[Either]:
        given = {"retry": Retry(NoBackoff(), 0), "socket_timeout": PATIENCE, **client}
        with closing(redis.RedisCluster(host="127.0.0.1", port=port, **given)) as own:
            yield Either(BloomFilter(own, "shop", **options), lambda call: call())

    @contextmanager
    def asynchronous(client: dict[str, Any], options: dict[str, Any]) -> Iterator[Either]:
        async def run(call: Callable[[], Any]) -> Any:
            return await call()

        own = async_client(port, **client)
        with asyncio.Runner() as runner:
            try:
                yield Either(
                    AsyncBloomFilter(own, "shop", **options), lambda call: runner.run(run(call))
                )
            finally:
                runner.run(own.aclose())

    kind = sync if request.param == "sync" else asynchronous
    usual = {"capacity": 10_000, "timeout": PATIENCE}
    return lambda client={}, **options: kind(client, usual | options)


def test_a_page_is_one_wave(make: Make) -> None:
    with make(blocks=64) as bloom:
        bloom.open()
        pages = [URLS[start : start + PAGE] for start in range(0, len(URLS), PAGE)]
        # The first is that in which the nodes get the script.
        assert bloom.waves(pages[0]) <= 2
        assert [bloom.waves(page) for page in pages] == [1] * len(pages)


def test_a_slot_that_is_being_moved(make: Make, nodes: list[Server]) -> None:
    """ASK while all keys are there already, TRYAGAIN while some are."""
    with make() as bloom:
        assert bloom.add_many(URLS) == [True] * len(URLS)
        move = SlotMove(nodes, "{shop:3}")
        first, *others = move.keys()
        assert others
        move.move(first)
        later = threading.Timer(0.2, lambda: move.move(*others))
        later.start()
        # Refused until the others are there too; the calls of other blocks are not sent again.
        assert bloom.add_many(URLS) == [False] * len(URLS)
        later.join()
        assert bloom.waves(URLS) == 2
        assert sum(bloom.add_many([f"new/{link}" for link in range(PAGE)])) >= PAGE - 1
        move.finish()
        assert bloom.add_many(URLS) == [False] * len(URLS)


def verdicts(results: list[Any]) -> str:
    """Return the verdicts in the replies that have come."""
    replies = [reply for reply in results if not isinstance(reply, Failure)]
    return b"".join(reply[1] for reply in replies).decode()


@pytest.mark.parametrize("kind", [Kind.DROP_REPLY, Kind.RESET_REPLY, Kind.HALF])
def test_a_lost_reply_of_one_node(make: Make, nodes: list[Server], kind: Kind) -> None:
    with Proxy(nodes[1].port) as proxy:

        def remap(address: tuple[str, int]) -> tuple[str, int]:
            return (address[0], proxy.port) if address[1] == nodes[1].port else address

        client = {"address_remap": remap, "socket_timeout": SHORT}
        with make(client, timeout=2 * PATIENCE) as bloom:
            bloom.open()
            bloom.add_many(URLS[:PAGE])
            before = [script_calls(node.client()) for node in nodes]
            proxy.fault = Fault(kind, times=1)
            bloom.results.clear()
            # Few enough for one packet a node.
            page = URLS[PAGE : 3 * PAGE]
            with pytest.raises(StorageError, match=f"the node 127.0.0.1:{proxy.port} of "):
                bloom.add_many(page)
            (results,) = bloom.results
            failures = [reply for reply in results if isinstance(reply, Failure)]
            assert {failure.address.port for failure in failures} == {proxy.port}
            assert not any(map(is_refusal, failures))
            assert 0 < len(failures) < len(results)
            # New, all of them: none was sent again and answered "seen".
            assert set(verdicts(results)) == {"1"}
            assert len(verdicts(results)) > 0.3 * len(page)
            # The nodes have carried each call out once.
            after = [script_calls(node.client()) for node in nodes]
            assert sum(after) - sum(before) == len(bloom.sent[-1])
            assert bloom.add_many(page) == [False] * len(page)


@in_loop
async def test_a_command_to_all_nodes_names_the_slots_of_a_silent_one(nodes: list[Server]) -> None:
    gone = slots_on(nodes[1])
    async with async_client(nodes[0].port) as client:
        driver = AsyncDriver(client, "Redis", SHORT)
        assert await driver.server_id()
        with stalled(nodes[1]), pytest.raises(StorageError) as caught:
            await driver.server_id()
    assert caught.value.slots == gone
