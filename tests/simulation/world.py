"""The world of a simulated run: one clock, one server, and tasks that take turns by a seed.

A task is a greenlet: the product runs in it as it is, and gives way where it would wait:
for a reply, an event or a moment. Each process has one for its event loop (``loop.py``), and one
for each batch of commands under way. Which task goes on is chosen at random, and only one runs at a
time, so that the same seed makes the same run. The server is a real one, with a clock that stands
still until the world moves it. It carries out each command when the world says so.
"""

import asyncio
import hashlib
import json
import random
import re
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import greenlet
import redis
from support.clock import MOVED_TO, FrozenServer

from scrapy_bloom.bloom.client.routes import SLOTS, slot_of
from scrapy_bloom.bloom.protocol import scripts

#: Asks the server for the id of its process: the world answers, because the process never changes.
ASKS_ID = "redis.pcall('INFO', 'server')"
#: Asks the server for its time, which may be off by a millisecond when this machine is busy.
ASKS_TIME = "redis.call('TIME')"
#: The key of what it gets.
TIME = "simulated:time"
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
_FILES = (Path(scripts.__file__).parent / "lua").glob("*.lua")
_NAMES = "|".join(file.stem for file in _FILES if not file.stem.startswith("prelude"))
#: How a script begins, after the preludes that it needs: with its name.
NAME = re.compile(rf"^-- ({_NAMES}): ", re.MULTILINE)
#: Seconds by which the server's clock may be late: it is not moved more often, because each move
#: takes a millisecond.
CLOCK_SECONDS = 1.0
#: Steps after which a run counts as endless.
MAX_STEPS = 50_000

#: Seconds that a batch is on its way to the server.
LATENCIES = (0.0, 0.0, 0.0, 0.001, 0.01, 0.3)

Words = Sequence[Any]


class EndlessError(AssertionError):
    """A run does not end."""


class KilledError(greenlet.GreenletExit, SystemExit):  # type: ignore[misc]
    """Ends a task of a process that was killed; asyncio passes on what is a ``SystemExit``."""


@dataclass(eq=False)
class Task:
    """A greenlet, and what it waits for.

    Attributes:
        run: its greenlet.
        process: that it is a part of.
        is_network: whether it is a batch of commands under way.
        until: when it goes on at the latest.
        is_ready: whether it may go on now.
        held: until when it gets no processor, whatever it waits for.
        loop: that it runs.
    """

    run: greenlet.greenlet
    process: Any = None
    is_network: bool = False
    until: float = float("inf")
    is_ready: Callable[[], object] = bool
    held: float = 0.0
    loop: Any = None


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
        block: a callback blocks its process for minutes, heartbeats and all.
        cancel: a page's task is cancelled, with its callback or a lookup of its links.
        down: at any step, a node of a cluster fails for some time; it may be replaced by a replica
            that lags behind.
        restart: at any step, the server is started again, with all its data and no scripts.
        full: at any step, the server has no memory left for some time.
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
    block: float = 0.0
    cancel: float = 0.0
    down: float = 0.0
    restart: float = 0.0
    full: float = 0.0


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
        found: what does not hold, as far as it was found on the way.
        is_ending: whether tasks are being ended, of which nothing happens any more.
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
        self.found: list[str] = []
        self._without = without
        self._server, self.client = server, server.client()
        # Its own methods take most of a run's time otherwise.
        self._connection = self.client.connection_pool.make_connection()
        self._begin = MOVED_TO.timestamp()
        self._tasks: list[Task] = []
        self._current: Task | None = None
        #: Batches that are carried out after their client has given up: from when, and the rest.
        self._late: list[tuple[float, list[Words], int]] = []
        #: SHA-1 of a script -> its name, and SHA-1 of the script that knows the server's process.
        self._scripts: dict[str, tuple[str, str]] = {}
        self.nodes = nodes
        self._processes = [1] * nodes
        #: Until when a node is down.
        self._down = [0.0] * nodes
        #: Until when the server has no memory.
        self._full = 0.0
        #: The keys of the replicas that take over when the server, or a node, "forgets".
        self._replica: list[list[Any]] = []
        #: Field of a claim -> name of its URL, for the trace.
        self.names: dict[str, str] = {}
        #: The clock that the server goes by.
        self._clock = -1.0
        self._steps = 0
        self.is_ending = False
        self._main = greenlet.getcurrent()
        self.client.flushall()
        for node in range(nodes):
            self._name_process(node)

    @property
    def time(self) -> int:
        """Unix time in whole seconds."""
        return int(self._begin + self.now)

    @property
    def process(self) -> Any:
        """The process whose task runs."""
        assert self._current is not None
        return self._current.process

    def log(self, what: str) -> None:
        """Note what happened."""
        if self.is_ending:
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
        if self.is_ending:
            raise KilledError
        return f"{self.rng.getrandbits(8 * size):0{2 * size}x}"

    # -- tasks --

    def spawn(
        self,
        target: Callable[[], object],
        process: Any = None,
        *,
        is_network: bool = False,
    ) -> Task:
        """Begin a task of a process: it runs when it is chosen."""
        run = greenlet.greenlet(target, self._main)
        task = Task(run, process, is_network, is_ready=lambda: True)
        self._tasks.append(task)
        return task

    def wait(self, seconds: float, is_ready: Callable[[], object] = bool) -> bool:
        """Let other tasks go on until a condition holds, or so many seconds have passed.

        It blocks the event loop that calls it, if one does.
        """
        if self.is_ending:
            raise KilledError  # nothing of it happens any more
        task = self._current
        assert task is not None
        task.until, task.is_ready = self.now + max(0.0, seconds), is_ready
        loop = asyncio._get_running_loop()
        if loop is None:
            self._main.switch()
        else:
            self._switch(loop)
        return bool(is_ready())

    def _switch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let other tasks go on, which may run event loops in this thread, too."""
        running, hooks = asyncio.current_task(loop), sys.get_asyncgen_hooks()
        if running is not None:
            asyncio.tasks._leave_task(loop, running)
        asyncio._set_running_loop(None)
        try:
            self._main.switch()
        finally:
            asyncio._set_running_loop(loop)
            if running is not None:
                asyncio.tasks._enter_task(loop, running)
            sys.set_asyncgen_hooks(*hooks)

    def end(self, tasks: Sequence[Task]) -> None:
        """End tasks where they are, and their event loops."""
        self._tasks = [task for task in self._tasks if task not in tasks]
        self.is_ending = True
        for task in tasks:
            if task.run:  # it has begun, and not ended
                task.run.throw(KilledError)  # now: the garbage collector would do it at any time
        for task in tasks:
            if task.loop is not None:
                task.loop.drop()
        self.is_ending = False

    def kill(self, process: Any) -> None:
        """End all tasks of a process. What it has sent may still be carried out."""
        own = [task for task in self._tasks if task.process is process]
        self.end([task for task in own if not task.is_network or self.rng.random() < 0.5])

    def hold(self, process: Any, seconds: float) -> None:
        """Block the task that runs, and all others of its process, for so many seconds."""
        for task in self._tasks:
            if task.process is process and not task.is_network:
                task.held = self.now + seconds
        self.wait(seconds)

    def runs(self, process: Any) -> bool:
        """Whether any part of a process runs, or anything that it has sent is under way."""
        return any(task.process is process for task in self._tasks)

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
            now = self.now
            ready = [t for t in self._tasks if t.held <= now and (t.until <= now or t.is_ready())]
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
                if task.loop is not None:
                    # The process is over, and its threads, which are daemons.
                    self.end([t for t in self._tasks if t.process is task.process])

    def _pass_time(self) -> None:
        if not self._tasks:
            return
        moments = [moment for moment, *_ in self._late]
        for task in self._tasks:
            moments += task.until, task.held
        later = [moment for moment in moments if self.now < moment < float("inf")]
        if not later:
            raise EndlessError("every task waits for ever")
        self.now = min(later)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    # -- the server --

    def send(
        self, name: str, commands: Sequence[Words], node: int = 0
    ) -> tuple[list[Any], Exception | None]:
        """Carry out a client's commands as one batch, unless a fault happens.

        A command is never carried out twice, because TCP delivers nothing twice.

        Args:
            name: of the process.
            commands: words of each.
            node: of the cluster.

        Returns:
            The replies that come, and why no more of them do: ``TimeoutError`` if the client waits
            for them in vain.
        """
        self.wait(self.rng.choice(LATENCIES))
        what = f"{name}: {self._describe(commands)}"
        if self.nodes > 1:
            what += f" on node {node}"
        if self._down[node] > self.now:
            self.log(f"{what}: DOWN")
            self.wait(0.01)
            return [], redis.ConnectionError("Connection refused.")
        replies: list[Any] = []
        if self.strikes("lost_request"):
            self.log(f"{what}: LOST")
        elif self.strikes("late"):
            self.log(f"{what}: LATE")
            self._late.append(
                (self.now + self.rng.choice([0.0, 0.5, 8.0, 60.0]), [*commands], node)
            )
        elif self.strikes("partial"):
            count = self.rng.randrange(len(commands))
            self.log(f"{what}: the first {count}")
            replies = self._carry_out(commands[:count], node)
        else:
            replies = self._carry_out(commands, node)
            what += f" -> {' '.join(filter(None, map(_show, replies)))}"
            if not self.strikes("lost_reply"):
                self.log(what)
                self.wait(0, lambda: True)
                return replies, None
            self.log(f"{what}: no reply")
            replies.pop()
        replies = replies[: self.rng.randint(0, len(replies))]
        if self.rng.random() < 0.5:
            return replies, redis.TimeoutError("Timeout reading from socket")
        self.log(f"{name}: connection lost after {len(replies)} replies")
        return replies, redis.ConnectionError("Connection reset by peer")

    def _carry_out_late(self) -> None:
        due = [entry for entry in self._late if entry[0] <= self.now]
        for entry in due:
            self._late.remove(entry)
            self.log(f"late: {self._describe(entry[1])}")
            self._carry_out(*entry[1:])

    def _carry_out(self, commands: Sequence[Words], node: int) -> list[Any]:
        if self.now - self._clock >= CLOCK_SECONDS:
            self._clock = self.now
            self._server.freeze_at(self._begin + self.now, self._shown)
            seconds, rest = divmod(round((self._begin + self.now) * 1e6), 1_000_000)
            self.execute("SET", TIME, json.dumps([str(seconds), str(rest)]))
        if self._full <= self.now:
            return self._execute(commands, node)
        self.execute("CONFIG", "SET", "maxmemory", 1)
        try:
            return self._execute(commands, node)
        finally:
            self.execute("CONFIG", "SET", "maxmemory", 0)

    def _shown(self) -> float:
        """Return what the server's clock shows."""
        seconds, microseconds = self.execute("TIME")
        return int(seconds) + int(microseconds) / 1e6

    def execute(self, *arguments: Any) -> Any:
        """Carry out a command at once, and return what the server replies."""
        self._connection.send_command(*arguments)
        return self._connection.read_response()

    def _execute(self, commands: Sequence[Words], node: int) -> list[Any]:
        """Carry out a node's commands in one round trip; return replies, with errors among them."""
        answers = [self._answer(words, node) for words in commands]
        sent = [answer for answer in answers if isinstance(answer, tuple)]
        self._connection.send_packed_command(self._connection.pack_commands(sent))
        return [self._reply() if isinstance(answer, tuple) else answer for answer in answers]

    def _reply(self) -> Any:
        try:
            return self._connection.read_response()
        except redis.ResponseError as error:
            return error

    def _answer(self, words: Words, node: int) -> Any:
        """Return the reply to a command; a tuple of the words that the server gets in its place."""
        name, *rest = words
        if name == "INFO" and rest == ["server"]:
            return f"run_id:{self._run_id(node)}".encode()
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
                return redis.exceptions.NoScriptError("No matching script")
            rest[0] = self._scripts[rest[0]][1]
        return (name, *rest)

    def _load(self, text: str) -> str:
        """Load a script; return its SHA-1."""
        sha = hashlib.sha1(text.encode()).hexdigest()
        if sha not in self._scripts:
            nodes = ",".join(str(self._node_of(f"{{k:{block}}}:")) for block in range(BLOCKS))
            key = f"'{PROCESS}' .. ({{{nodes}}})[{BLOCK} + 1]"
            here = text.replace(ASKS_ID, f"'run_id:' .. redis.call('GET', {key})")
            here = here.replace(ASKS_TIME, f"cjson.decode(redis.call('GET', '{TIME}'))")
            self._scripts[sha] = _name_of(text), self.execute("SCRIPT", "LOAD", here).decode()
        return sha

    def _describe(self, commands: Sequence[Words]) -> str:
        """Return the names of commands and scripts, with the URLs that they are on."""
        parts = [(part, len([*same])) for part, same in groupby(map(self._describe_one, commands))]
        return ", ".join(part if times == 1 else f"{times} x {part}" for part, times in parts)

    def _describe_one(self, command: Words) -> str:
        name, *rest = command
        script = str(name)
        if name == "EVALSHA" and rest[0] in self._scripts:
            script = self._scripts[rest[0]][0]
        elif name == "EVAL":
            script = _name_of(rest[0])
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

    def restart(self) -> None:
        """Start the server again, with its data: it has another process, and no scripts."""
        self.replicate()
        self.forget()
        self._scripts.clear()

    def fill(self) -> None:
        """Let the server have no memory for some time: it refuses to write."""
        self._full = self.now + self.rng.choice([0.3, 3.0, 20.0])
        self.log(f"SERVER: out of memory until {self._full:.2f}")

    def fail_node(self) -> None:
        """Let a node be down for some time, and maybe be replaced by its replica."""
        node = self.rng.randrange(self.nodes)
        self._down[node] = self.now + self.rng.choice([0.3, 3.0, 20.0])
        self.log(f"SERVER: node {node} is down until {self._down[node]:.2f}")
        if self.rng.random() < 0.5:
            self.forget(node)

    def _name_process(self, node: int) -> None:
        self.client.set(f"{PROCESS}{node}", self._run_id(node))

    def _run_id(self, node: int) -> str:
        return f"process{node}x{self._processes[node]}"

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


def _name_of(script: str) -> str:
    found = NAME.search(script)
    return found[1] if found else "EVAL"
