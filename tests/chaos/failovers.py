"""Faults of servers that replace each other: primaries, replicas, sentinels."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol, cast

import redis
from support.outages import stalled
from support.polling import PATIENCE, until_it_works
from support.proxy import Fault, Kind
from support.slots import SlotMove

from chaos import faults
from scrapy_bloom.bloom.model.keys import Keys

if TYPE_CHECKING:
    from chaos.stands import ClusterStand, ReplicatedStand, SentinelStand, Stand

#: Seconds that a replica lags behind at most. After a whole one it would count as failed.
LONGEST_LAG = 0.8
#: Of the filter: its key, its blocks, and how many of those move at once.
KEY, BLOCKS, MOVED = "chaos", 16, 3


class OnStand(faults.Victims, Protocol):
    """Victims on a stand, which aims at one server and its proxy."""

    @property
    def stand(self) -> "Stand": ...


Inflict = Callable[[OnStand, float], AbstractContextManager[None]]


@contextmanager
def failover(victims: OnStand, level: float) -> Iterator[None]:
    """Kill a primary; it comes back as a replica of the server that has replaced it."""
    stand = _in_step(victims)
    stand.server.kill()
    with _coming_back(stand):
        yield


@contextmanager
def failover_lag(victims: OnStand, level: float) -> Iterator[None]:
    """Kill a primary whose last writes have not reached its replica."""
    stand = _in_step(victims)
    _kill_ahead_of_replica(stand, level)
    with _coming_back(stand):
        yield


@contextmanager
def failover_kill(victims: OnStand, level: float) -> Iterator[None]:
    """Kill a primary whose last writes have not reached its replica, and a crawler with it."""
    number = int(level * 1_000) % len(victims.crew)
    stand = _in_step(victims)
    _kill_ahead_of_replica(stand, level)
    killed = victims.crew.kill(number)
    with _coming_back(stand):
        yield
    if killed:
        victims.crew.start(number)


def _kill_ahead_of_replica(stand: "ReplicatedStand", level: float) -> None:
    with stalled(stand.shard.replica().server):
        with stand.server.client(socket_timeout=PATIENCE) as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "replica")
        time.sleep(level * LONGEST_LAG)
        stand.server.kill()


@contextmanager
def _coming_back(stand: "ReplicatedStand") -> Iterator[None]:
    stand.await_replacement()
    yield
    stand.server.start()
    stand.follow()


@contextmanager
def failover_stall(victims: OnStand, level: float) -> Iterator[None]:
    """Stall a primary until it is replaced; then it goes on, and learns of that later."""
    stand = _in_step(victims)
    with stalled(stand.server):
        stand.await_replacement()
        yield


@contextmanager
def failover_command(victims: OnStand, level: float) -> Iterator[None]:
    """Let a primary and its replica change places; they agree on that first."""
    stand = _in_step(victims)
    until_it_works(stand.command_failover, redis.ResponseError)  # Sentinel may refuse at first
    stand.await_replacement()
    yield


@contextmanager
def failover_force(victims: OnStand, level: float) -> Iterator[None]:
    """Let a replica take the place of its primary, without the primary or without an election."""
    stand = cast("ClusterStand", _in_step(victims))
    stand.command_failover("FORCE" if level < 0.5 else "TAKEOVER")
    stand.await_replacement()
    yield


@contextmanager
def slots_move(victims: OnStand, level: float) -> Iterator[None]:
    """Move blocks to other nodes; for as long as the fault lasts, half of their keys are moved."""
    stand = cast("ClusterStand", victims.stand)
    stand.settle()
    first = int(level * 1_000) % BLOCKS
    blocks = [(first + 5 * number) % BLOCKS for number in range(MOVED)]
    with ExitStack() as moves:
        for block in blocks:
            move = SlotMove(stand.primaries, Keys(KEY).ring(block))
            moves.callback(move.finish)
            keys = move.keys()
            if half := keys[: len(keys) // 2]:
                move.move(*half)
        yield


@contextmanager
def cut_off(victims: OnStand, level: float) -> Iterator[None]:
    """Let nothing through to a primary, and under Sentinel to no sentinel, for a while."""
    with faults.network(victims, Fault(Kind.HANG)):
        yield


@contextmanager
def sentinel_kill(victims: OnStand, level: float) -> Iterator[None]:
    """Kill one of the sentinels."""
    stand = cast("SentinelStand", victims.stand)
    sentinel = stand.sentinels[int(level * 1_000) % len(stand.sentinels)]
    sentinel.kill()
    yield
    sentinel.start()


def _in_step(victims: OnStand) -> "ReplicatedStand":
    """Return the stand when the replica of the aimed shard is in step with its primary."""
    stand = cast("ReplicatedStand", victims.stand)
    stand.shard.replica()
    stand.aim_at(stand.shard)  # they may have changed places since
    return stand


INFLICT: dict[str, Inflict] = {
    **faults.INFLICT,
    "failover": failover,
    "failover_lag": failover_lag,
    "failover_kill": failover_kill,
    "failover_stall": failover_stall,
    "failover_command": failover_command,
    "failover_force": failover_force,
    "cut_off": cut_off,
    "slots_move": slots_move,
    "sentinel_kill": sentinel_kill,
}
