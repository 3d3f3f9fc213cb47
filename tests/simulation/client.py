"""A Redis client, events and threads in a simulated world."""

from collections.abc import Callable, Sequence
from typing import Any, Self

import redis
from redis.exceptions import RedisError

from scrapy_bloom.bloom.client.cluster_nodes import ClusterNodes
from scrapy_bloom.bloom.client.cluster_routes import Address, Command, Replies, Topology, Wave
from simulation.world import Task, World


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

    def execute_command(self, *args: Any, **options: Any) -> Any:
        (reply,) = self._world.send(self._name, [(args, options)], self._timeout)
        if isinstance(reply, RedisError):
            raise reply
        return reply

    def pipeline(self, *_: Any, **__: Any) -> Any:
        return SimulatedPipeline(self._world, self._name, self._timeout)

    def send_to(self, node: int, commands: Sequence[Command]) -> list[Any]:
        """Send commands to a node of a cluster; return the replies, with errors in their places."""
        batch: list[Any] = [(command.words, {}) for command in commands]
        return self._world.send(self._name, batch, self._timeout, node)

    def close(self) -> None:
        """Leave the connection open: it is the world's."""


class SimulatedPipeline(SimulatedClient):
    """Collects commands, and sends them as one batch."""

    def __init__(self, world: World, name: str, timeout: float) -> None:
        # Not the client's own, which takes long and would do nothing here.
        self._world, self._name, self._timeout = world, name, timeout
        self._commands: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute_command(self, *args: Any, **options: Any) -> Any:
        self._commands.append((args, options))

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        assert not raise_on_error
        commands, self._commands = self._commands, []
        return self._world.send(self._name, commands, self._timeout)


class SimulatedCluster(SimulatedClient):
    """A client for a cluster, of which only the name and the time-out count."""


class SimulatedNodes(ClusterNodes):
    """Sends waves through the world.

    Args:
        client: whose nodes they are.
        before_wave: is called before each wave.
    """

    def __init__(self, client: Any, before_wave: Callable[[], None]) -> None:
        self._client, self._before_wave = client, before_wave
        self.topology = Topology([Address("node", 0)], lambda host, port: (host, port))

    def _exchange(self, wave: Wave) -> Replies:
        self._before_wave()
        replies = {}
        for address, commands in wave.batches.items():
            try:
                replies[address] = self._client.send_to(address.port, commands)
            except (redis.ConnectionError, redis.TimeoutError) as error:
                replies[address] = [error] * len(commands)
        return replies


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
