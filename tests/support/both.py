"""A blocking and an asyncio client of one address, each with a filter under the same key."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from secrets import token_hex
from typing import Any

from scrapy_bloom.bloom import AsyncBloomFilter, BloomFilter
from scrapy_bloom.bloom.client.connect import Connection, connect

#: Seconds that are enough on a busy machine.
PATIENCE = 10.0


class Both:
    """The filters; they are not open yet."""

    def __init__(self, connection: Connection, timeout: float) -> None:
        self.connection = connection
        options: dict[str, Any] = {"label": connection.label, "capacity": 1_000, "blocks": 1}
        self.bloom = BloomFilter(connection.client, "k", **options)
        self.other = AsyncBloomFilter(connection.open_async(), "k", timeout, **options)


Steps = Callable[[Both], Awaitable[object]]


async def add_blocking(both: Both) -> None:
    item = token_hex(8)
    assert [both.bloom.add(item), both.bloom.add(item)] == [True, False]


async def add_in_the_loop(both: Both) -> None:
    item = token_hex(8)
    assert [await both.other.add(item), await both.other.add(item)] == [True, False]


async def add_by_both(both: Both) -> None:
    """What one has added the other has seen."""
    one, two = token_hex(8), token_hex(8)
    assert [both.bloom.add(one), await both.other.add(one)] == [True, False]
    assert [await both.other.add(two), both.bloom.add(two)] == [True, False]


def use(url: str, steps: Steps = add_by_both, timeout: float = PATIENCE, **params: Any) -> None:
    """Await a test's steps with clients of an address, in one event loop."""

    async def run() -> None:
        with closing(connect(url, timeout=timeout, **params)) as connection:
            both = Both(connection, timeout)
            try:
                await steps(both)
            finally:
                await both.other.transport.close()

    asyncio.run(run())
