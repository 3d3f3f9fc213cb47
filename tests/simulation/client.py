"""A Redis client, events and threads in a simulated world."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import redis

from scrapy_bloom.bloom.client.driver import Driver
from scrapy_bloom.bloom.client.routes import Replies, Wave
from simulation.world import Task, World

exchange_really = Driver._exchange


class SimulatedClient(redis.Redis):
    """Sends commands through the world.

    Args:
        world: the world.
        name: of the process.
        timeout: seconds that a reply may take.
    """

    def __init__(self, world: World, name: str, timeout: float) -> None:
        super().__init__(connection_pool=world.client.connection_pool)
        self._world, self._name, self._timeout = world, name, timeout

    def exchange(self, wave: Wave) -> Replies:
        """Send a wave, node by node; return the replies, with errors in their places."""
        replies = {}
        for address, commands in wave.batches.items():
            batch: list[Any] = [(command.words, {}) for command in commands]
            try:
                sent = self._world.send(self._name, batch, self._timeout, address.port)
                replies[address] = sent
            except (redis.ConnectionError, redis.TimeoutError) as error:
                replies[address] = [error] * len(commands)
        return replies

    def close(self) -> None:
        """Leave the connection open: it is the world's."""


class SimulatedCluster(SimulatedClient):
    """A client for a cluster: its nodes have numbers, which are their ports."""

    nodes_manager = SimpleNamespace(
        startup_nodes={"first": SimpleNamespace(host="node", port=0)},
        remap_host_port=lambda host, port: (host, port),
    )


def exchange(driver: Driver, wave: Wave) -> Replies:
    """Send a wave through the world, in the place of ``Driver._exchange``."""
    if not isinstance(driver.client, SimulatedClient):
        return exchange_really(driver, wave)  # the oracle's
    driver.round_trips += 1
    if wave.pause:
        driver.client._world.wait(wave.pause)
    return driver.client.exchange(wave)


class SimulatedEvent:
    """``threading.Event`` in the world's time."""

    def __init__(self, world: World) -> None:
        self._world, self._is_set = world, False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float = float("inf")) -> bool:
        return self._is_set or self._world.wait(timeout, self.is_set)


class SimulatedThread:
    """``threading.Thread``, as a task of the world's."""

    def __init__(self, world: World, name: str, target: Callable[[], None]) -> None:
        self._world = world
        self.task: Task = world.spawn(name, target)

    def join(self, timeout: float) -> None:
        self._world.wait(timeout, lambda: not self._world.is_running(self.task))
