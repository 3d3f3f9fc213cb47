"""Clients of a server or a cluster in a simulated world, that block and that do not."""

import asyncio
from types import SimpleNamespace
from typing import Any

import redis
import redis.asyncio

from scrapy_bloom.bloom.client.async_driver import AsyncDriver
from scrapy_bloom.bloom.client.driver import Driver
from scrapy_bloom.bloom.client.routes import Address, Command, Replies, Wave
from simulation.world import World

exchange_really = Driver._exchange
#: Of a cluster: its nodes have numbers, which are their ports.
NODES = SimpleNamespace(
    startup_nodes={"first": SimpleNamespace(host="node", port=0)},
    remap_host_port=lambda host, port: (host, port),
)
#: To make one takes as long as a hundred commands.
UNUSED = redis.asyncio.ConnectionPool()


class SimulatedClient(redis.Redis):
    """Sends commands through the world.

    Args:
        world: the world.
        name: of the process.
        timeout: seconds that a reply may take.
    """

    def __init__(self, world: World, name: str, timeout: float) -> None:
        super().__init__(connection_pool=world.client.connection_pool)
        self.world, self.name, self.timeout = world, name, timeout
        if world.nodes > 1:
            self.nodes_manager = NODES

    def exchange(self, wave: Wave) -> Replies:
        """Send a wave, node by node; return the replies, with errors in their places."""
        replies = {}
        for address, commands in wave.batches.items():
            words = [command.words for command in commands]
            replies[address], error = self.world.send(self.name, words, address.port)
            if isinstance(error, redis.TimeoutError):
                self.world.wait(self.timeout)
            replies[address] += [error] * (len(commands) - len(replies[address]))
        return replies

    def close(self) -> None:
        """Leave the connection open: it is the world's."""


class AsyncSimulatedClient(redis.asyncio.Redis):
    """Sends commands through the world, and does not block.

    Args:
        world: the world.
        name: of the process.
    """

    def __init__(self, world: World, name: str) -> None:
        super().__init__(connection_pool=UNUSED)
        self.world, self.name = world, name
        if world.nodes > 1:
            self.nodes_manager = NODES

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """There is nothing to close."""

    async def initialize(self) -> "AsyncSimulatedClient":
        """There is nothing to connect."""
        return self


def exchange(driver: Driver, wave: Wave) -> Replies:
    """Send a wave through the world, in the place of ``Driver._exchange``."""
    if not isinstance(driver.client, SimulatedClient):
        return exchange_really(driver, wave)  # the oracle's
    driver.round_trips += 1
    if wave.pause:
        driver.client.world.wait(wave.pause)
    return driver.client.exchange(wave)


async def talk(
    driver: AsyncDriver, address: Address, commands: list[Command], replies: list[Any]
) -> None:
    """Send a node's batch through the world, in the place of ``AsyncDriver._talk``.

    A task of the world is the way to the server and back. It is there if the caller is cancelled,
    or its process killed: what is under way may still be carried out. Of two batches, any may be
    the first, because each has a connection of its own.
    """
    client: AsyncSimulatedClient = driver.client
    world, loop = client.world, asyncio.get_running_loop()
    done = loop.create_future()

    def send() -> None:
        words = [command.words for command in commands]
        received, error = world.send(client.name, words, address.port)
        if done.done() or loop.is_closed():
            return
        replies.extend(received)
        if not isinstance(error, redis.TimeoutError):  # else the driver gives up at some time
            replies.extend([error] * (len(commands) - len(replies)))
            done.set_result(None)

    world.spawn(send, world.process, is_network=True)
    try:
        await done
    except asyncio.CancelledError:
        driver._silent = address
        raise
