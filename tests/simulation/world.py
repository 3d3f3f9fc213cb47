"""The world of a simulated run: one clock, one server, and tasks that take turns by a seed.

A task is a greenlet: the product runs in it as it is, and gives way where it would wait:
for a reply, an event or a moment. Each process has one for its event loop (``loop.py``), and one
for each batch of commands under way. Which task continues is chosen at random, and only one runs at
a time, so that the same seed makes the same run. The server is a real one, with a clock that stands
still until the world moves it. It carries out each command when the world says so.
"""

import asyncio
import hashlib
import random
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import greenlet
import redis
from support.clock import MOVED_TO, MovedServer

from scrapy_bloom.bloom.protocol import scripts

#: Asks the server for the id of its process: the world answers, because the process never changes.
ASKS_ID = "redis.pcall('INFO', 'server', 'replication')"
#: The key of that id.
PROCESS = "simulated:process"
_NAMES = "|".join(file.stem for file in (Path(scripts.__file__).parent / "lua").glob("*.lua"))
#: How each part of a script begins: with its name. The last part is the script's own.
NAME = re.compile(rf"^-- ({_NAMES}): ", re.MULTILINE)
#: In commands that move shared work: the group that claims are made the owner's of, or its list.
SHARED = re.compile(r"^g[0-9a-f]{16}(\.|$)|:shares:")
#: The URL in a request that is stored with its claim.
URL = re.compile(r'"url":"([^"]+)"')
#: How the fields of claims begin whose requests aren't looked up.
ONCE = b"once:".hex().encode()
#: What the trace says when all keys are deleted.
FLUSH = "SERVER: all keys are deleted"
#: Steps after which a run counts as endless.
MAX_STEPS = 50_000
#: Lines of the trace that tell how a page broke the rule, at most, and those that tell nothing.
STORY, NOISE = 10, re.compile(r" STARTS | NoScriptError")
#: Seconds that a batch is on its way to the server.
LATENCIES = (0.0, 0.0, 0.0, 0.001, 0.01, 0.3)

Words = Sequence[Any]


class KilledError(greenlet.GreenletExit, SystemExit):  # type: ignore[misc]
    """Ends a task of a process that was killed; asyncio passes on what is a ``SystemExit``."""


class Claim(NamedTuple):
    """A claim on the server.

    Attributes:
        owner: whose it is, without the arguments of its spider.
        attempts: how often its page has failed.
        request: that is stored; "" without one.
    """

    owner: str
    attempts: int
    request: str


@dataclass(eq=False)
class Task:
    """A greenlet, and what it waits for.

    Attributes:
        run: its greenlet.
        process: that it is a part of.
        is_network: whether it is a batch of commands under way.
        until: when it continues at the latest.
        is_ready: whether it may continue now.
        loop: that it runs.
    """

    run: greenlet.greenlet
    process: Any = None
    is_network: bool = False
    until: float = float("inf")
    is_ready: Callable[[], object] = bool
    loop: Any = None


#: How often things go wrong, as probabilities; without a name, never:
#: - lost_request: a batch of commands never reaches the server.
#: - lost_reply: it is carried out, and the client hears nothing.
#: - late: it is carried out some time after the client has given up.
#: - partial: only its first commands are carried out.
#: - kill: at any step, a process is killed.
#: - stop: at any step, a process gets a SIGINT.
#: - forget: at any step, the server is replaced by a replica that lags behind.
#: - evict: at any step, the server evicts a key of the filter, but no claims.
#: - evict_claims: at any step, the server evicts the claims of a block, of workers that live.
#: - flush: at any step, all keys are deleted, and scrapy-redis's queue with them.
#: - empty: the same, by a restart of the server.
#: - stall: a task that could continue waits, although time passes.
#: - jump: at any step, the clocks of server and processes go forward by minutes.
#: - restart: at any step, the server is started again, with all its data and no scripts.
#: - fill: at any step, the server has no memory left for some time.
#: - lost_share: a batch that gives or receives shared work is carried out, without a reply.
#: - kill_sharer: when such a batch has been carried out, its process is killed.
Faults = Mapping[str, float]


class World:
    """Chooses what happens next.

    Args:
        server: is empty, with a frozen clock.
        seed: of all choices.
        faults: what goes wrong.

    Attributes:
        now: seconds since the run began.
        rng: makes all choices.
        trace: what happened, a line each.
        struck: faults that happened, and "share" for each batch that gave or received work.
        found: what does not hold, as far as it was found on the way.
        broken: what breaks a rule, and the pages that it is about.
        begins: is called with the commands of each batch that is about to be carried out.
        looks: is called when it was: whose it is, its commands, replies.
        hands_out: is called before each download: whose it is, and the URL.
        evicted: fields of claims that the server has evicted, and the URLs in their requests.
        flushed: the same of claims that were there when all keys were deleted.
        doomed: processes that are killed at the next step.
        is_ending: whether tasks are being ended, of which nothing happens any more.
        client: of the server.
        place: in half of all runs, all processes are on one machine, and see at once that another
            has ended.
        names: field of a claim -> name of its URL, for the trace.
    """

    def __init__(self, server: MovedServer, seed: int, faults: Faults) -> None:
        self.rng = random.Random(seed)
        self.faults, self.now = faults, 0.0
        self.place = self.rng.choice(["-", "machine"])
        self.trace: list[str] = []
        self.struck: list[str] = []
        self.found: list[str] = []
        self.broken: list[str] = []
        self.begins: Callable[[Sequence[Words]], object] = lambda _: None
        self.looks: Callable[[str, Sequence[Words], Sequence[Any]], object] = lambda *_: None
        self.hands_out: Callable[[str, str], object] = lambda *_: None
        self.evicted: set[str] = set()
        self.flushed: set[str] = set()
        self.doomed: list[Any] = []
        #: Name of a client -> the shares that it has given last.
        self._given: dict[str, set[bytes]] = {}
        self.names: dict[str, str] = {}
        self._server, self.client = server, server.client()
        # Its own methods take most of a run's time otherwise.
        self._connection = self.client.connection_pool.make_connection()
        self._begin = int(MOVED_TO.timestamp())
        self._tasks: list[Task] = []
        self._current: Task | None = None
        #: Batches that are carried out after their client has given up: from when on, and whose.
        self._late: list[tuple[float, str, Sequence[Words]]] = []
        #: SHA-1 of a script -> its name, and SHA-1 of the script that asks for the world's id.
        self._scripts: dict[str, tuple[str, str]] = {}
        #: Of the server's process: as many digits each time, because scripts look for it in a text.
        self._run_id = f"{0:040}"
        #: Until when the server has no memory.
        self._full = 0.0
        #: The keys of the replica that takes over when the server "forgets".
        self._replica: list[tuple[bytes, int, Any]] = []
        #: The second that the server's clock shows.
        self._clock = -1
        self._steps = 0
        self.is_ending = False
        self._main = greenlet.getcurrent()
        self.client.flushall()
        self._begin_process()

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
        if not self.is_ending:
            self.trace.append(f"{self.now:9.2f}  {what}")

    def violate(self, what: str, *names: str) -> None:
        """Note that a page breaks a rule: the run ends before the next step."""
        self.broken = self.broken or [what, *names]

    def story(self) -> list[str]:
        """Return the last lines of the trace about the pages that break a rule."""
        if not self.broken:
            return []
        names = "|".join(map(re.escape, self.broken[1:]))
        about = re.compile(rf"(?<!\S)({names})(?=[ ,*]|$)")
        lines = (line for line in self.trace if not NOISE.search(line))
        return [line for line in lines if about.search(line[9:].partition(" ->")[0])][-STORY:]

    def strikes(self, fault: str) -> bool:
        """Whether a fault happens now; it is noted."""
        happens = self.rng.random() < self.faults.get(fault, 0.0)
        self.struck += [fault] * happens
        return happens

    def token(self, size: int) -> str:
        """Return so many random bytes as hexadecimal text."""
        if self.is_ending:
            raise KilledError
        return f"{self.rng.getrandbits(8 * size):0{2 * size}x}"

    # -- tasks --

    def spawn(
        self, target: Callable[[], object], process: Any = None, *, is_network: bool = False
    ) -> Task:
        """Begin a task of a process: it runs when it is chosen."""
        run = greenlet.greenlet(target, self._main)
        task = Task(run, process, is_network, is_ready=lambda: True)
        self._tasks.append(task)
        return task

    def wait(self, seconds: float, is_ready: Callable[[], object] = bool) -> bool:
        """Let other tasks continue until a condition holds, or so many seconds have passed.

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
        """Let other tasks continue, which may run event loops in this thread, too."""
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

    def runs(self, process: Any) -> bool:
        """Whether any part of a process runs, or anything that it has sent is under way."""
        return any(task.process is process for task in self._tasks)

    def lives(self, name: str) -> bool:
        """Whether a process of this name runs; what it has sent does not count."""
        return any(task.process.name == name for task in self._tasks if not task.is_network)

    def run(self, until: Callable[[], bool], between: Callable[[], object] = bool) -> None:
        """Let tasks take turns until a condition holds.

        Args:
            until: the condition.
            between: is called before each step.

        Raises:
            AssertionError: it takes too long, or the rule is broken.
        """
        while not until():
            assert not self.broken, self.broken[0]
            self._steps += 1
            if self._steps > MAX_STEPS:
                raise AssertionError("the run does not end")
            between()
            self._carry_out_late()
            now = self.now
            ready = [task for task in self._tasks if task.until <= now or task.is_ready()]
            if not ready:
                self._pass_time()
            elif self.strikes("stall"):
                self.now += self.rng.choice([0.05, 1.0, 6.0])
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
        moments = [moment for moment, *_ in self._late] + [task.until for task in self._tasks]
        later = [moment for moment in moments if self.now < moment < float("inf")]
        if not later:
            raise AssertionError("every task waits for ever")
        self.now = min(later)

    # -- the server --

    def send(self, name: str, commands: Sequence[Words]) -> list[Any]:
        """Carry out a client's commands as one batch, unless a fault happens.

        A command is never carried out twice, because TCP delivers nothing twice.

        Raises:
            TimeoutError: the client waits for replies in vain.
            ConnectionError: the connection is lost.
        """
        self.wait(self.rng.choice(LATENCIES))
        what = f"{name}: {self._describe(commands)}"
        if self.strikes("lost_request"):
            self.log(f"{what}: LOST")
        elif self.strikes("late"):
            self.log(f"{what}: LATE")
            moment = self.now + self.rng.choice([0.0, 0.5, 8.0, 60.0])
            self._late.append((moment, name, [*commands]))
        elif self.strikes("partial"):
            count = self.rng.randrange(len(commands))
            self.log(f"{what}: the first {count}")
            self._carry_out(name, commands, count)
        else:
            self._check_shares(name, commands)
            replies = self._carry_out(name, commands, len(commands))
            what += f" -> {' '.join(filter(None, map(_show, replies)))}"
            shares = _shares(commands, replies)
            self.struck += ["share"] * shares
            if shares and self.strikes("kill_sharer"):
                self.doomed.append(self.process)
            if not (self.strikes("lost_reply") or (shares and self.strikes("lost_share"))):
                self.log(what)
                self.wait(0, lambda: True)
                return replies
            self.log(f"{what}: no reply")
        if self.rng.random() < 0.5:
            raise redis.TimeoutError("Timeout reading from socket")
        raise redis.ConnectionError("Connection reset by peer")

    def _check_shares(self, name: str, commands: Sequence[Words]) -> None:
        """Find a worker that gives again before its last shares are received."""
        for key, *texts in (rest for command, *rest in commands if command == "RPUSH"):
            if self._given.get(name, set()) & {*self.execute("LRANGE", key, 0, -1)}:
                self.found.append(f"{name} gives before its shares are received")
            self._given[name] = {text.encode() for text in texts}

    def _carry_out_late(self) -> None:
        for entry in [entry for entry in self._late if entry[0] <= self.now]:
            self._late.remove(entry)
            _, name, commands = entry
            self.log(f"late: {name}: {self._describe(commands)}")
            self._carry_out(name, commands, len(commands))

    def _carry_out(self, name: str, commands: Sequence[Words], count: int) -> list[Any]:
        """Carry out so many commands in one round trip; return replies, with errors among them."""
        if self.time != self._clock:
            self._clock = self.time
            # In the middle of a second: the clock may be off by a millisecond.
            self._server.freeze_at(self._clock + 0.5, self._shown)
        if is_full := self._full > self.now:
            self.execute("CONFIG", "SET", "maxmemory", 1)
        self.begins(commands)
        answers = [self._answer(words) for words in commands[:count]]
        sent = [answer for answer in answers if isinstance(answer, tuple)]
        self._connection.send_packed_command(self._connection.pack_commands(sent))
        replies = [self._reply() if isinstance(one, tuple) else one for one in answers]
        if is_full:
            self.execute("CONFIG", "SET", "maxmemory", 0)
        self.looks(name, commands, replies)
        return replies

    def _shown(self) -> float:
        """Return what the server's clock shows."""
        seconds, microseconds = self.execute("TIME")
        return int(seconds) + int(microseconds) / 1e6

    def execute(self, *arguments: Any) -> Any:
        """Carry out a command immediately, and return what the server replies."""
        self._connection.send_command(*arguments)
        return self._connection.read_response()

    def claims(self) -> dict[tuple[bytes, str], Claim]:
        """Return the claims that there are, by their keys and fields."""
        found: dict[tuple[bytes, str], Claim] = {}
        for key in self.execute("KEYS", "*:claims:*"):
            for field, claim in self.execute("HGETALL", key).items():
                owner, _, _, attempts, request = claim.decode().split(" ", 4)
                own = Claim(owner.partition(".")[0], int(attempts), request)
                found[key, field.decode()] = own
        return found

    def _reply(self) -> Any:
        try:
            return self._connection.read_response()
        except redis.ResponseError as error:
            return error

    def _answer(self, words: Words) -> Any:
        """Return the reply to a command; a tuple of the words that the server gets in its place."""
        name, *rest = words
        if name == "INFO":
            policy = {"run_id": self._run_id, "maxmemory_policy": "noeviction", "maxmemory": 0}
            return {**policy, "redis_version": "7.0.0"}
        if name == "WAIT":
            return self.rng.randrange(2)  # replicas, without the time that they take
        if name == "EVAL":
            name, rest[0] = "EVALSHA", self._load(rest[0])
        if name == "EVALSHA":
            if rest[0] not in self._scripts:
                return redis.exceptions.NoScriptError("No matching script")
            rest[0] = self._scripts[rest[0]][1]
        return (name, *rest)

    def _load(self, text: str) -> str:
        """Load a script; return its SHA-1."""
        sha = hashlib.sha1(text.encode()).hexdigest()
        if sha not in self._scripts:
            here = text.replace(ASKS_ID, f"'run_id:' .. redis.call('GET', '{PROCESS}')")
            assert "INFO" not in here, "a script asks for the server's id in another way"
            loaded = self.execute("SCRIPT", "LOAD", here).decode()
            self._scripts[sha] = NAME.findall(text)[-1], loaded
        return sha

    def _describe(self, commands: Sequence[Words]) -> str:
        """Return the names of commands and scripts, with the URLs that they are on."""
        return ", ".join(map(self._describe_one, commands))

    def _describe_one(self, command: Words) -> str:
        urls = [self.names[one] for one in command if isinstance(one, str) and one in self.names]
        return " ".join((self.script_of(command) or str(command[0]), *urls))

    def script_of(self, command: Words) -> str:
        """Return the name of the script that a command runs; "" if it runs none that is known."""
        if command[0] == "EVAL":
            return str(NAME.findall(command[1])[-1])
        return self._scripts.get(command[1], ("",))[0] if command[0] == "EVALSHA" else ""

    # -- what happens to it --

    def replicate(self) -> None:
        """Let the replica catch up."""
        keys = sorted(self.execute("KEYS", "{*"))
        self._replica = [(key, self.client.pttl(key), self.client.dump(key)) for key in keys]

    def forget(self) -> None:
        """Let a replica take the place of the server."""
        self.log(f"SERVER: a replica with {len(self._replica)} keys takes over")
        for key in self.execute("KEYS", "{*"):
            self.execute("DEL", key)
        for key, expiry, value in self._replica:
            self.client.restore(key, max(0, expiry), value)
        self._begin_process()

    def restart(self) -> None:
        """Start the server again, with its data: it has another process, and no scripts."""
        self.replicate()
        self.forget()
        self._scripts.clear()

    def fill(self) -> None:
        """Let the server have no memory for some time: it refuses to write."""
        self._full = self.now + self.rng.choice([0.3, 3.0, 20.0])
        self.log(f"SERVER: out of memory until {self._full:.2f}")

    def evict(self) -> None:
        """Delete a key, but no claims: these would be lost with their pages."""
        kept = (b":claims:", b":workers:")
        keys = [key for key in self.execute("KEYS", "{*") if not any(one in key for one in kept)]
        if keys:
            key = self.rng.choice(sorted(keys))
            self.log(f"SERVER: evicts {key.decode()}")
            self.execute("DEL", key)

    def evict_claims(self, key: bytes) -> None:
        """Delete the claims of a block."""
        for field, claim in self.execute("HGETALL", key).items():
            self.evicted |= {field.decode(), *URL.findall(claim.decode())}
        self.log(f"SERVER: evicts {key.decode()}")
        self.execute("DEL", key)

    def flush(self) -> None:
        """Delete all keys."""
        self.log(FLUSH)
        for key in self.execute("KEYS", "*:claims:*"):
            for name, claim in self.client.hgetall(key).items():
                self.flushed |= {name.decode(), *URL.findall(claim.decode())}
                if name[:10] == ONCE:  # it's no duplicate by the server: only its process knows it
                    self.evicted |= {*URL.findall(claim.decode())}
        for key in self.execute("KEYS", "*"):
            if key != PROCESS.encode():
                self.execute("DEL", key)

    def empty(self) -> None:
        """Start the server again, without its data."""
        self.flush()
        self._scripts.clear()
        self._begin_process()

    def _begin_process(self) -> None:
        self._run_id = f"{int(self._run_id) + 1:040}"
        self.execute("SET", PROCESS, self._run_id)

    def close(self) -> None:
        """Drop all tasks, and the connection."""
        self.end(self._tasks)
        self._connection.disconnect()
        self.client.close()


def _shares(commands: Sequence[Words], replies: list[Any]) -> bool:
    """Whether commands have given or received shared work."""
    return any(
        reply
        and reply != [b"ok", b""]
        and words[0] not in ("LLEN", "EXPIRE")
        and any(SHARED.search(str(one)) for one in words)
        for words, reply in zip(commands, replies, strict=True)
    )


def _show(reply: Any) -> str:
    """Return the verdicts in a script's reply."""
    is_script = isinstance(reply, list) and len(reply) > 1 and isinstance(reply[0], bytes)
    if not is_script:
        return type(reply).__name__ if isinstance(reply, Exception) else ""
    return " ".join(part.decode() for part in reply[:2] if len(part) < 20)
