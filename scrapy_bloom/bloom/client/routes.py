"""Which node gets which call, and which calls are sent again. No I/O.

A server is a cluster of one node, which has all slots and never moves them. Each function here is a
generator: it yields waves of commands, and gets the replies to each wave.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import redis
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, NoScriptError, TryAgainError

from scrapy_bloom.bloom.protocol.scripts import Argument, Call

T = TypeVar("T")

SLOTS = 16_384
#: Waves of one dispatch without a pause at most: nodes that disagree could send a call in circles.
MAX_WAVES = 16
#: Before a call is sent again whose keys are on their way to another node, or to a cluster that is
#: down; and in all, if no other time is given.
PAUSE_SECONDS, PATIENCE_SECONDS = 0.05, 2.0


class Address(NamedTuple):
    """Where a node listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Command(NamedTuple):
    """A command, and whether its reply holds bytes, which a client must not decode."""

    words: tuple[Argument, ...]
    binary: bool = False


class Failure(NamedTuple):
    """What stands in the place of a reply.

    Args:
        error: what the node answered; or what the client raised, and then it is unknown whether the
            call was carried out.
        address: the node.
    """

    error: Exception
    address: Address


class Wave(NamedTuple):
    """Commands for several nodes at once, each node's in this order on one connection.

    Args:
        batches: the commands of each node.
        pause: seconds to wait before they are sent.
    """

    batches: Mapping[Address, list[Command]]
    pause: float = 0.0


#: The replies to a wave, node by node; errors are in their places.
Replies = Mapping[Address, list[Any]]
Waves = Generator[Wave, Replies, T]

#: Refusals that may end soon by themselves.
_PASSING = (TryAgainError, ClusterDownError)
_READ_SLOTS = Command(("CLUSTER", "SLOTS"))
_ASKING = Command(("ASKING",))


def slot_of(key: str) -> int:
    """Return the hash slot of a key."""
    return key_slot(key.encode())


#: The only node of a server that is no cluster: its client knows where that is.
SERVER = Address("", 0)


class Topology:
    """Which node owns which slot, as far as this client knows.

    Args:
        startup: nodes to ask first.
        remap: from the address that the cluster names to the one that the client connects to.

    Attributes:
        is_stale: whether it has to be read before the next calls.
        is_cluster: whether there may be other nodes.
    """

    is_cluster = True

    def __init__(
        self, startup: Iterable[Address], remap: Callable[[str, int], tuple[str, int]]
    ) -> None:
        self._startup = list(startup)
        self._remap = remap
        self._assign([None] * SLOTS)
        self._nodes: list[Address] = []
        self._failed: set[Address] = set()
        self.is_stale = True

    def owner(self, call: Call) -> Address | None:
        """Return the node that has the slot of a call's keys; None if there is none."""
        return self._owners[slot_of(call.keys[0])]

    def slots_of(
        self, addresses: Collection[Address], others: Collection[int] = ()
    ) -> frozenset[int]:
        """Return the slots that nodes have, and others; none for all slots."""
        found = {slot for slot, one in enumerate(self._owners) if one in addresses}.union(others)
        return frozenset(found) if len(found) < SLOTS else frozenset()

    def primaries(self) -> list[Address]:
        """Return the nodes that own slots."""
        return [*self._primaries]

    def candidates(self) -> list[Address]:
        """Return all nodes, those that failed the last time at the end."""
        return sorted(dict.fromkeys([*self._nodes, *self._startup]), key=self._failed.__contains__)

    def address(self, host: str | None, port: int, source: Address) -> Address:
        """Return a node's address as a node at another address names it."""
        return Address(*self._remap(host, port)) if host else Address(source.host, port)

    def move(self, slot: int, owner: Address) -> None:
        """Note a slot's owner, from a node that has just answered MOVED."""
        self._owners[slot] = owner
        if owner not in self._primaries:
            self._primaries.append(owner)
        self.is_stale = True

    def learn(self, raw: Any, source: Address) -> bool:
        """Take over a node's reply to CLUSTER SLOTS; return whether it was of use."""
        if not raw or isinstance(raw, Exception):
            return False
        owners: list[Address | None] = [None] * SLOTS
        nodes: list[Address] = []
        for first, last, *servers in raw:
            found = [
                self.address(host.decode() if isinstance(host, bytes) else host, port, source)
                for host, port, *_ in servers
            ]
            owners[first : last + 1] = [found[0]] * (last + 1 - first)
            nodes += found
        self._assign(owners)
        self._nodes, self.is_stale = nodes, False
        return True

    def _assign(self, owners: list[Address | None]) -> None:
        """Note the owners of all slots."""
        self._owners = owners
        #: Found once, because to look through all slots takes a millisecond.
        self._primaries = [*dict.fromkeys(filter(None, owners))]

    def note(self, address: Address, replies: list[Any]) -> None:
        """Note whether a node could be reached, and whether it has the slots it was taken to."""
        if any(map(is_unknown, replies)):
            self._failed.add(address)
            self.is_stale = True
        else:
            self._failed.discard(address)
        if any(isinstance(reply, ClusterDownError) for reply in replies):
            self.is_stale = True


class OneServer(Topology):
    """The topology of a server that is no cluster."""

    is_cluster = False

    def __init__(self) -> None:
        super().__init__([], lambda host, port: (host, port))
        self._assign([SERVER] * SLOTS)
        self.is_stale = False

    def note(self, address: Address, replies: list[Any]) -> None:
        """There is nothing to find out."""


#: Of all such servers: a thousand filters need no thousand lists of slots.
ONE_SERVER = OneServer()


def is_unknown(reply: Any) -> bool:
    """Whether there is no reply: what was sent may have been carried out or not."""
    return isinstance(reply, Exception) and not isinstance(reply, redis.ResponseError)


def is_refusal(reply: Any) -> bool:
    """Whether a node has answered that it does not carry the command out."""
    return isinstance(reply, Failure) and isinstance(reply.error, redis.ResponseError)


def read_topology(topology: Topology) -> Waves[None]:
    """Ask one node after the other for the owners of all slots, until one answers.

    Raises:
        redis.RedisError: none does.
        OSError: none does.
    """
    error: Exception = ClusterDownError("no node knows the owner of any slot")
    for address in topology.candidates():
        replies = yield Wave({address: [_READ_SLOTS]})
        topology.note(address, replies[address])
        (raw,) = replies[address]
        if topology.learn(raw, address):
            return
        error = raw if isinstance(raw, Exception) else error
    raise error


@dataclass
class _Attempt:
    """A call on its way to a node."""

    place: int
    call: Call
    address: Address
    is_asking: bool = False
    by_text: bool = False
    #: Where the call is in its node's batch.
    index: int = 0

    def join(self, batch: list[Command], loaded: set[tuple[Address, str]]) -> None:
        """Add the call to its node's batch, the first of a script that is unknown there as text."""
        script = (self.address, self.call.script.sha)
        by_text = self.by_text and script not in loaded
        if by_text:
            loaded.add(script)
        if self.is_asking:
            batch.append(_ASKING)
        self.index = len(batch)
        batch.append(Command(self.call.command(by_text=by_text), self.call.binary))

    def redirect(self, reply: Any, topology: Topology) -> bool:
        """Change where and how the call is sent; return whether it has to be sent again.

        Only after replies that say that nothing was carried out.
        """
        if isinstance(reply, NoScriptError):
            self.by_text = True
        elif not topology.is_cluster:
            return False
        elif isinstance(reply, AskError):  # or MovedError, which is one
            address = topology.address(reply.host, reply.port, self.address)
            self.is_asking = not isinstance(reply, MovedError)
            if not self.is_asking:
                topology.move(reply.slot_id, address)
            self.address = address
        elif isinstance(reply, _PASSING):
            # Back to the owner: the keys may be all there now, or all on the other node; or a
            # replica may have taken over from another node.
            self.address, self.is_asking = topology.owner(self.call) or self.address, False
        else:
            return False
        return True


def dispatch(
    topology: Topology, calls: Sequence[Call], patience: float = PATIENCE_SECONDS
) -> Waves[list[Any]]:
    """Send calls to the owners of their slots; return replies, or ``Failure`` in their places.

    A call is sent again only if it was refused with MOVED, ASK, TRYAGAIN, CLUSTERDOWN or NOSCRIPT.

    Args:
        topology: which node owns which slot.
        calls: are sent.
        patience: seconds of all pauses.

    Raises:
        redis.RedisError: no node is known that owns a slot. None of the calls was sent.
        OSError: as above.
    """
    if topology.is_stale:
        yield from read_topology(topology)
    attempts = []
    for place, call in enumerate(calls):
        owner = topology.owner(call)
        if owner is None:
            topology.is_stale = True
            raise ClusterDownError("CLUSTERDOWN Hash slot not served")
        attempts.append(_Attempt(place, call, owner))
    results: list[Any] = [None] * len(calls)
    pause, waves = 0.0, 0
    while attempts and waves < MAX_WAVES and patience > 0:
        patience -= pause
        waves = 0 if pause else waves + 1
        replies = yield from _wave(topology, attempts, pause)
        refused, pause = [], 0.0
        for attempt, reply in zip(attempts, replies, strict=True):
            results[attempt.place] = _or_failure(reply, attempt.address)
            if attempt.redirect(reply, topology):
                refused.append(attempt)
                if isinstance(reply, _PASSING):
                    pause = PAUSE_SECONDS
        if any(isinstance(one, Failure) and is_unknown(one.error) for one in results):
            # The others are down because of the node that failed: its calls fail in any case.
            refused = [one for one in refused if not _is_down(results[one.place])]
        attempts = refused
    return results


def _is_down(result: Any) -> bool:
    return isinstance(result, Failure) and isinstance(result.error, ClusterDownError)


def _wave(topology: Topology, attempts: list[_Attempt], pause: float) -> Waves[list[Any]]:
    """Send each attempt's call once; return the replies in their order."""
    batches: dict[Address, list[Command]] = {}
    loaded: set[tuple[Address, str]] = set()
    for attempt in attempts:
        attempt.join(batches.setdefault(attempt.address, []), loaded)
    # After MOVED: from the node that owns a slot now, and in the wave that is due in any case.
    source = attempts[0].address if topology.is_stale else None
    if source:
        batches[source].append(_READ_SLOTS)
    answers = yield Wave(batches, pause)
    for address, replies in answers.items():
        topology.note(address, replies)
    if source:
        topology.learn(answers[source][-1], source)
    return [answers[attempt.address][attempt.index] for attempt in attempts]


def dispatch_and_wait(
    topology: Topology, calls: Sequence[Call], wait: Command
) -> Waves[tuple[list[Any], list[Any]]]:
    """Do as ``dispatch``, with WAIT behind the calls of each node; return its replies as well.

    Raises:
        redis.RedisError: as ``dispatch`` does.
        OSError: as ``dispatch`` does.
    """
    if topology.is_stale:
        yield from read_topology(topology)
    waves, waited = dispatch(topology, calls), dict[Address, Any]()
    try:
        wave = next(waves)
        while True:
            batches = {address: [*batch, wait] for address, batch in wave.batches.items()}
            answers = yield Wave(batches, wave.pause)
            # The last one of a node: after NOSCRIPT there was no write that it could wait for.
            waited |= {a: _or_failure(replies[-1], a) for a, replies in answers.items()}
            wave = waves.send({address: replies[:-1] for address, replies in answers.items()})
    except StopIteration as stop:
        return stop.value, [*waited.values()]


def ask_primaries(topology: Topology, command: Command) -> Waves[list[Any]]:
    """Send a command to all nodes that own slots; return replies, or ``Failure`` in their places.

    Raises:
        redis.RedisError: no node is known that owns a slot.
        OSError: as above.
    """
    if topology.is_stale:
        yield from read_topology(topology)
    answers = yield Wave({address: [command] for address in topology.primaries()})
    results: list[Any] = []
    for address, replies in answers.items():
        topology.note(address, replies)
        results += [_or_failure(reply, address) for reply in replies]
    return results


def _or_failure(reply: Any, address: Address) -> Any:
    return Failure(reply, address) if isinstance(reply, Exception) else reply
