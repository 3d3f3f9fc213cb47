"""One pipeline for each node of a cluster, all nodes at once, and what nodes answer to it."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry
from support.loops import in_loop
from support.outages import stalled
from support.polling import PATIENCE, until_it_works
from support.proxy import Fault, Kind, Proxy
from support.servers import Server, wait_for_cluster
from support.slots import SlotMove, slots_on

from scrapy_bloom import AsyncBloomFilter, BloomFilter, StorageError
from scrapy_bloom.bloom.client import routes
from scrapy_bloom.bloom.client.async_driver import AsyncDriver
from scrapy_bloom.bloom.client.routes import Failure, is_refusal
from scrapy_bloom.bloom.errors import NotReadyError

URLS = [f"https://example.com/{i}" for i in range(640)]
#: Links of a page.
PAGE = 64
#: Seconds that a reply may take, where one is lost.
TIMEOUT = 0.5


@asynccontextmanager
async def async_client(port: int, **options: Any) -> Any:
    own = redis.asyncio.RedisCluster(
        host="127.0.0.1", port=port, retry=AsyncRetry(NoBackoff(), 0), **options
    )
    try:
        yield own
    finally:
        await getattr(own, "aclose", own.close)()


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

    def server_id(self) -> str:
        ids: str = self._run(self.driver.server_id)
        return ids

    def waves(self, urls: list[str]) -> int:
        """Add URLs and return how many waves it took."""
        before: int = self.driver.round_trips
        self.add_many(urls)
        return int(self.driver.round_trips) - before


Make = Callable[..., Any]


@pytest.fixture(params=["sync", "asyncio"])
def make(request: pytest.FixtureRequest, cluster: redis.RedisCluster, nodes: list[Server]) -> Make:
    """Return a context manager that makes a filter on a client of its own."""

    @contextmanager
    def sync(servers: list[Server], options: dict[str, Any]) -> Iterator[Either]:
        own = redis.RedisCluster(
            host="127.0.0.1",
            port=servers[0].port,
            retry=Retry(NoBackoff(), 0),
            **{"socket_timeout": PATIENCE, **options.pop("client", {})},
        )
        with closing(own):
            yield Either(BloomFilter(own, "shop", **options), lambda call: call())

    @contextmanager
    def asynchronous(servers: list[Server], options: dict[str, Any]) -> Iterator[Either]:
        loop = asyncio.new_event_loop()

        async def run(call: Callable[[], Any]) -> Any:
            return await call()

        own = async_client(servers[0].port, **options.pop("client", {}))
        client = loop.run_until_complete(own.__aenter__())
        try:
            bloom = AsyncBloomFilter(client, "shop", **{"timeout": PATIENCE, **options})
            yield Either(bloom, lambda call: loop.run_until_complete(run(call)))
        finally:
            loop.run_until_complete(own.__aexit__(None, None, None))
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()

    kind = sync if request.param == "sync" else asynchronous
    return lambda servers=nodes, **options: kind(servers, {"capacity": 10_000, **options})


@pytest.mark.parametrize("blocks", [16, 64])
def test_a_page_is_one_wave(make: Make, blocks: int) -> None:
    with make(blocks=blocks) as bloom:
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


def test_a_slot_that_stays_half_moved_is_explained(
    make: Make, nodes: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine, many short pauses leave less of the time-out than they should.
    monkeypatch.setattr(routes, "PAUSE_SECONDS", 0.3)
    with make() as bloom:
        bloom.add_many(URLS)
    with make(timeout=2.0) as bloom:
        bloom.open()
        move = SlotMove(nodes, "{shop:3}")
        try:
            move.move(move.keys()[0])
            source = f"the node 127.0.0.1:{move.source.port}"
            with pytest.raises(StorageError, match=f"{source} of .* is moving a slot"):
                bloom.add_many(URLS)
        finally:
            move.finish()


def script_calls(nodes: list[Server]) -> Counter[int]:
    """Return how many calls of scripts each node has carried out."""
    calls: Counter[int] = Counter()
    for node in nodes:
        with node.client() as admin:
            stats = admin.info("commandstats")
            calls[node.port] = sum(
                int(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"])
                for name in ("eval", "evalsha")
            )
    return calls


def verdicts(results: list[Any]) -> str:
    """Return the verdicts in the replies that have come."""
    replies = [reply for reply in results if not isinstance(reply, Failure)]
    return b"".join(reply[1] for reply in replies).decode()


@pytest.mark.parametrize("kind", [Kind.DROP_REPLY, Kind.RESET_REPLY, Kind.HALF])
def test_a_lost_reply_of_one_node(make: Make, nodes: list[Server], kind: Kind) -> None:
    with Proxy(nodes[1].port) as proxy:

        def remap(address: tuple[str, int]) -> tuple[str, int]:
            return (address[0], proxy.port) if address[1] == nodes[1].port else address

        client = {"address_remap": remap, "socket_timeout": TIMEOUT}
        with make(client=client, timeout=2 * PATIENCE) as bloom:
            bloom.open()
            bloom.add_many(URLS[:PAGE])
            before = script_calls(nodes)
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
            assert sum(script_calls(nodes).values()) - sum(before.values()) == len(bloom.sent[-1])
            assert bloom.add_many(page) == [False] * len(page)


def test_a_node_that_was_killed_and_nodes_that_were_all_restarted(
    make: Make, own_nodes: list[Server]
) -> None:
    nodes = own_nodes
    with make(nodes) as bloom:
        bloom.open()
        assert bloom.add_many(URLS[:PAGE]) == [True] * PAGE
        ids = bloom.server_id().split(",")
        assert len(ids) == 3
        nodes[1].kill()
        for _ in range(3):
            with pytest.raises(StorageError, match=f"the node 127.0.0.1:{nodes[1].port} of "):
                bloom.add_many(URLS)
            results = bloom.results[-1]
            failures = [reply for reply in results if isinstance(reply, Failure)]
            assert {failure.address.port for failure in failures} == {nodes[1].port}
            assert verdicts(results)
        with pytest.raises(StorageError, match=f"the node 127.0.0.1:{nodes[1].port} of "):
            bloom.server_id()
        nodes[1].start()
        wait_for_cluster(nodes)
        new = bloom.add_many(URLS)
        assert 0 < sum(new) < len(URLS)
        assert bloom.add_many(URLS) == [False] * len(URLS)
        assert len(set(bloom.server_id().split(",")) & set(ids)) == 2
        for node in nodes:
            node.kill()
        with pytest.raises(StorageError):
            bloom.add_many(URLS[:PAGE])
        for node in nodes:
            node.start()
        wait_for_cluster(nodes)
        SlotMove(nodes, "{shop:0}").finish()
        bloom.open()
        bloom.add_many(URLS)
        assert bloom.add_many(URLS) == [False] * len(URLS)


@in_loop
async def test_a_command_to_all_nodes_names_the_slots_of_a_silent_one(nodes: list[Server]) -> None:
    gone = slots_on(nodes[1])
    async with async_client(nodes[0].port) as client:
        driver = AsyncDriver(client, "Redis", TIMEOUT)
        assert await driver.server_id()
        with stalled(nodes[1]), pytest.raises(StorageError) as caught:
            await driver.server_id()
    assert caught.value.slots == gone
