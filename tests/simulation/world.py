"""The world of a simulated run: one clock, one server, and tasks that take turns by a seed.

A task is a greenlet: the product runs in it as it is, and gives way where it would wait:
for a reply, an event or a moment. Which task goes on is chosen at random, and only one runs at a
time, so that the same seed makes the same run. The server is a real one, with a clock that stands
still until the world moves it. It carries out each command when the world says so.
"""

import hashlib
import random
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import greenlet
import redis
from support.clock import MOVED_TO, FrozenServer

from scrapy_bloom.bloom.client.routes import SLOTS, slot_of

#: Asks the server for the id of its process: the world answers, because the process never changes.
ASKS_ID = "redis.pcall('INFO', 'server')"
#: The keys of that id, one for each node of a cluster.
PROCESS = "simulated:process:"
#: How that script finds its node: the number of the block in the name of its first key.
BLOCK = "string.match(KEYS[1], ':(%d+)}')"
#: Blocks of a filter at most.
BLOCKS = 16
#: Returns all keys, how long they last, and what they hold.
REPLICATE = """
local found = {}
local keys = redis.call('KEYS', '*')
table.sort(keys)
for i, key in ipairs(keys) do
  found[i] = {key, redis.call('PTTL', key), redis.call('DUMP', key)}
end
return found
"""
#: How a script begins: with its name.
NAMES = re.compile(r"^-- (\w+): ", re.MULTILINE)
#: Steps after which a run counts as endless.
MAX_STEPS = 20_000

Command = tuple[tuple[Any, ...], dict[str, Any]]


class EndlessError(AssertionError):
    """A run does not end."""


@dataclass(eq=False)
class Task:
    """A greenlet, and what it waits for.

    Attributes:
        name: for the trace.
        until: when it goes on at the latest.
        is_ready: whether it may go on now.
    """

    name: str
    run: greenlet.greenlet
    until: float = float("inf")
    is_ready: Callable[[], bool] = bool


@dataclass
class Faults:
    """How often things go wrong, as probabilities.

    Attributes:
        lost_request: a batch of commands never reaches the server.
        lost_reply: it is carried out, and the client hears nothing.
        late: it is carried out some time after the client has given up.
        partial: only its first commands are carried out.
        kill: at any step, a process is killed.
        stop: at any step, a process gets a SIGINT.
        forget: at any step, the server is replaced by a replica that lags behind.
        evict: at any step, the server evicts a key of the filter, but no claims.
        stall: a task that could go on waits, although time passes.
        jump: at any step, the clocks of server and processes go forward by minutes.
        down: at any step, a node of a cluster fails for some time; it may be replaced by a replica
            that lags behind.
    """

    lost_request: float = 0.0
    lost_reply: float = 0.0
    late: float = 0.0
    partial: float = 0.0
    kill: float = 0.0
    stop: float = 0.0
    forget: float = 0.0
    evict: float = 0.0
    stall: float = 0.0
    jump: float = 0.0
    down: float = 0.0


class World:
    """Chooses what happens next.

    Args:
        server: is empty, with a frozen clock.
        seed: of all choices.
        faults: what goes wrong.
        without: numbers of the faults that do not happen, although they would.
        nodes: primaries of the cluster that the server stands for; 1 for no cluster.

    Attributes:
        now: seconds since the run began.
        rng: makes all choices.
        trace: what happened, a line each.
        struck: faults that happened, and those that were left out.
        client: of the server.
    """

    def __init__(
        self,
        server: FrozenServer,
        seed: int,
        faults: Faults,
        without: Collection[int] = (),
        nodes: int = 1,
    ) -> None:
        self.rng = random.Random(seed)
        self.faults, self.now = faults, 0.0
        self.trace: list[str] = []
        self.struck: list[str] = []
        self._without = without
        self._server, self.client = server, server.client()
        # Its own methods take most of a run's time otherwise.
        self._connection = self.client.connection_pool.make_connection()
        self._begin = MOVED_TO.timestamp()
        self._tasks: list[Task] = []
        self._current: Task | None = None
        #: Batches that are carried out after their client has given up: from when, and the rest.
        self._late: list[tuple[float, list[Command], int]] = []
        #: SHA-1 of a script -> its name, and SHA-1 of the script that knows the server's process.
        self._scripts: dict[str, tuple[str, str]] = {}
        self.nodes = nodes
        self._processes = [1] * nodes
        #: Until when a node is down.
        self._down = [0.0] * nodes
        #: The keys of the replicas that take over when the server, or a node, "forgets".
        self._replica: list[list[Any]] = []
        #: Field of a claim -> name of its URL, for the trace.
        self.names: dict[str, str] = {}
        #: The clock that the server goes by.
        self._clock = -1.0
        self._steps = 0
        self._is_ending = False
        self._main = greenlet.getcurrent()
        self.client.flushall()
        for node in range(nodes):
            self._name_process(node)

    @property
    def time(self) -> int:
        """Unix time in whole seconds."""
        return int(self._begin + self.now)

    @property
    def current(self) -> str:
        """Name of the task that runs."""
        return self._current.name if self._current else "world"

    def log(self, what: str) -> None:
        """Note what happened."""
        if self._is_ending:
            return
        self.trace.append(f"{self.now:9.2f}  {what}")

    def strikes(self, fault: str) -> bool:
        """Whether a fault happens now; it is noted."""
        probability: float = getattr(self.faults, fault)
        happens = self.rng.random() < probability
        if happens:
            self.struck.append(fault)
        return happens and len(self.struck) - 1 not in self._without

    def token(self, size: int) -> str:
        """Return so many random bytes as hexadecimal text."""
        if self._is_ending:
            raise greenlet.GreenletExit
        return f"{self.rng.getrandbits(8 * size):0{2 * size}x}"

    # -- tasks --

    def spawn(self, name: str, target: Callable[[], object]) -> Task:
        """Begin a task: it runs when it is chosen."""
        task = Task(name, greenlet.greenlet(target), is_ready=lambda: True)
        self._tasks.append(task)
        return task

    def wait(self, seconds: float, is_ready: Callable[[], bool] = bool) -> bool:
        """Let other tasks go on until a condition holds, or so many seconds have passed."""
        if self._is_ending:
            raise greenlet.GreenletExit  # it was killed: nothing of it happens any more
        task = self._current
        assert task is not None
        task.until, task.is_ready = self.now + max(0.0, seconds), is_ready
        self._main.switch()
        return bool(is_ready())

    def end(self, tasks: Sequence[Task]) -> None:
        """End tasks where they are."""
        self._tasks = [task for task in self._tasks if task not in tasks]
        self._is_ending = True
        for task in tasks:
            if task.run:  # it has begun, and not ended
                task.run.throw()  # now: the garbage collector would do it at any time
        self._is_ending = False

    def is_running(self, task: Task) -> bool:
        """Whether a task has neither ended nor been dropped."""
        return task in self._tasks

    def run(self, until: Callable[[], bool], between: Callable[[], object] = bool) -> None:
        """Let tasks take turns until a condition holds.

        Args:
            until: the condition.
            between: is called before each step.

        Raises:
            EndlessError: it takes too long.
        """
        while not until():
            self._steps += 1
            if self._steps > MAX_STEPS:
                raise EndlessError("the run does not end")
            between()
            self._carry_out_late()
            ready = [t for t in self._tasks if t.is_ready() or t.until <= self.now]
            if not ready:
                self._pass_time()
            elif self.strikes("stall"):
                self.advance(self.rng.choice([0.05, 1.0, 6.0]))
            else:
                self._resume(self.rng.choice(ready))

    def _resume(self, task: Task) -> None:
        self._current = task
        try:
            task.run.switch()
        finally:
            self._current = None
            if task.run.dead:
                self._tasks.remove(task)

    def _pass_time(self) -> None:
        if not self._tasks:
            return
        moments = [task.until for task in self._tasks] + [moment for moment, *_ in self._late]
        later = [moment for moment in moments if self.now < moment < float("inf")]
        if not later:
            raise EndlessError("every task waits for ever")
        self.advance(min(later) - self.now)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    # -- the server --

    def send(
        self, name: str, commands: Sequence[Command], timeout: float, node: int = 0
    ) -> list[Any]:
        """Carry out a client's commands as one batch, unless a fault happens.

        Args:
            name: of the process.
            commands: arguments and options of each.
            timeout: seconds after which the client gives up.
            node: of the cluster.

        Raises:
            redis.TimeoutError: no reply came.
            redis.ConnectionError: the node is down.
        """
        self.wait(0, lambda: True)
        what = f"{name}: {self._describe(commands)}"
        if self.nodes > 1:
            what += f" on node {node}"
        if self._down[node] > self.now:
            self.log(f"{what}: DOWN")
            self.wait(0.01)
            raise redis.ConnectionError("Connection refused.")
        if self.strikes("lost_request"):
            self.log(f"{what}: LOST")
        elif self.strikes("late"):
            self.log(f"{what}: LATE")
            self._late.append(
                (self.now + self.rng.choice([0.0, 0.5, 8.0, 60.0]), [*commands], node)
            )
        elif self.strikes("partial"):
            count = self.rng.randrange(len(commands))
            self.log(f"{what}: the first {count}, no reply")
            self._carry_out(commands[:count], node)
        else:
            replies = self._carry_out(commands, node)
            what += f" -> {' '.join(filter(None, map(_show, replies)))}"
            if not self.strikes("lost_reply"):
                self.log(what)
                self.wait(0, lambda: True)
                return replies
            self.log(f"{what}: no reply")
        self.wait(timeout)
        raise redis.TimeoutError("Timeout reading from socket")

    def _carry_out_late(self) -> None:
        due = [entry for entry in self._late if entry[0] <= self.now]
        for entry in due:
            self._late.remove(entry)
            self.log(f"late: {self._describe(entry[1])}")
            self._carry_out(*entry[1:])

    def _carry_out(self, commands: Sequence[Command], node: int) -> list[Any]:
        if self._clock != self.now:
            self._clock = self.now
            self._server.freeze_at(self._begin + self.now, self._shown)
        return [self._execute(arguments, node) for arguments, _ in commands]

    def _shown(self) -> float:
        """Return what the server's clock shows."""
        seconds, microseconds = self.execute("TIME")
        return int(seconds) + int(microseconds) / 1e6

    def execute(self, *arguments: Any) -> Any:
        """Carry out a command at once, and return what the server replies."""
        self._connection.send_command(*arguments)
        return self._connection.read_response()

    def _execute(self, arguments: tuple[Any, ...], node: int) -> Any:
        name, *rest = arguments
        try:
            if name == "INFO" and rest == ["server"]:
                return b"run_id:" + self.execute("GET", f"{PROCESS}{node}")
            if name == "CLUSTER":
                return [
                    [SLOTS * one // self.nodes, SLOTS * (one + 1) // self.nodes - 1, ["node", one]]
                    for one in range(self.nodes)
                ]
            if name == "WAIT":
                return self.rng.randrange(2)  # replicas, without the time that they take
            if name in ("EVAL", "SCRIPT LOAD"):
                sha = self._load(rest[0])
                if name == "SCRIPT LOAD":
                    return sha
                name, rest[0] = "EVALSHA", sha
            if name == "EVALSHA":
                if rest[0] not in self._scripts:
                    raise redis.exceptions.NoScriptError("No matching script")
                rest[0] = self._scripts[rest[0]][1]
            return self.execute(name, *rest)
        except redis.ResponseError as error:
            return error

    def _load(self, text: str) -> str:
        """Load a script; return its SHA-1."""
        sha = hashlib.sha1(text.encode()).hexdigest()
        if sha not in self._scripts:
            names: list[str] = NAMES.findall(text)
            name = next(found for found in names if not found.startswith("prelude"))
            nodes = ",".join(str(self._node_of(f"{{k:{block}}}:")) for block in range(BLOCKS))
            key = f"'{PROCESS}' .. ({{{nodes}}})[{BLOCK} + 1]"
            here = text.replace(ASKS_ID, f"'run_id:' .. redis.call('GET', {key})")
            self._scripts[sha] = name, self.execute("SCRIPT", "LOAD", here).decode()
        return sha

    def _describe(self, commands: Sequence[Command]) -> str:
        """Return the names of commands and scripts, with the URLs that they are on."""
        parts = [(part, len([*same])) for part, same in groupby(map(self._describe_one, commands))]
        return ", ".join(part if times == 1 else f"{times} x {part}" for part, times in parts)

    def _describe_one(self, command: Command) -> str:
        name, *rest = command[0]
        is_known = name == "EVALSHA" and rest[0] in self._scripts
        script = self._scripts[rest[0]][0] if is_known else str(name)
        urls = [self.names[one] for one in rest if isinstance(one, str) and one in self.names]
        return " ".join((script, *urls))

    def replicate(self) -> None:
        """Let the replica catch up."""
        self._replica = self.execute("EVAL", REPLICATE, 0)

    def forget(self, node: int | None = None) -> None:
        """Let a replica take the place of the server, or of a node, of any if none is given."""
        node = (self.rng.randrange(self.nodes) if self.nodes > 1 else 0) if node is None else node
        replica = [entry for entry in self._replica if self._node_of(entry[0].decode()) == node]
        self._processes[node] += 1
        self.log(f"SERVER: a replica of node {node} with {len(replica)} keys takes over")
        for key in self.execute("KEYS", "*"):
            if self._node_of(key.decode()) == node:
                self.execute("DEL", key)
        for key, expiry, value in replica:
            self.client.restore(key, max(0, expiry), value)
        self._name_process(node)

    def fail_node(self) -> None:
        """Let a node be down for some time, and maybe be replaced by its replica."""
        node = self.rng.randrange(self.nodes)
        self._down[node] = self.now + self.rng.choice([0.3, 3.0, 20.0])
        self.log(f"SERVER: node {node} is down until {self._down[node]:.2f}")
        if self.rng.random() < 0.5:
            self.forget(node)

    def _name_process(self, node: int) -> None:
        self.client.set(f"{PROCESS}{node}", f"process{node}x{self._processes[node]}")

    def _node_of(self, key: str) -> int:
        """Return the node that has a key of the filter; -1 for other keys."""
        return slot_of(key) * self.nodes // SLOTS if key.startswith("{") else -1

    def evict(self) -> None:
        """Delete a key, but no claims: these would be lost with their pages."""
        kept = (b":claims", b":heartbeats")
        keys = sorted(key for key in self.execute("KEYS", "{*") if not key.endswith(kept))
        if keys:
            key = self.rng.choice(keys)
            self.log(f"SERVER: evicts {key.decode()}")
            self.execute("DEL", key)

    def close(self) -> None:
        """Drop all tasks, and the connection."""
        self.end(self._tasks)
        self._connection.disconnect()
        self.client.close()


def _show(reply: Any) -> str:
    """Return the verdicts in a script's reply."""
    is_script = isinstance(reply, list) and len(reply) > 1 and isinstance(reply[0], bytes)
    if not is_script:
        return type(reply).__name__ if isinstance(reply, Exception) else ""
    return " ".join(part.decode() for part in reply[:2] if len(part) < 20)
