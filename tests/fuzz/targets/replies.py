"""Replies of scripts: operations get hostile ones, of any shape, among good ones.

An input is JSON: the operation, the stored ring, and the replies to its calls, one after the other;
``null`` stands for a good one.
"""

import io
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any, cast

from support.saving import blocking

from fuzz.mutate import ODD, change, json_by
from fuzz.target import Target, object_in, texts_in
from fuzz.targets.archives import saved
from fuzz.targets.rings import NOW, rings
from scrapy_bloom.bloom.base import complete
from scrapy_bloom.bloom.errors import BloomError
from scrapy_bloom.bloom.extras import algebra
from scrapy_bloom.bloom.extras.file import ArchiveReader, ArchiveWriter
from scrapy_bloom.bloom.extras.install import Run, load
from scrapy_bloom.bloom.extras.save import save
from scrapy_bloom.bloom.filter import verdict_on_one
from scrapy_bloom.bloom.methods import FilterMethods
from scrapy_bloom.bloom.model import ring_codec
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.protocol import claim_protocol as claims
from scrapy_bloom.bloom.protocol import deletion
from scrapy_bloom.bloom.protocol import worker_protocol as workers
from scrapy_bloom.bloom.protocol.cached_ring import to_resp
from scrapy_bloom.bloom.protocol.info import probe
from scrapy_bloom.bloom.protocol.membership import add
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.scripts import Call, Reply
from scrapy_bloom.bloom.protocol.session import FilterSession

ITEMS = [b"one", b"two", b"three"]
FIELD = field_of(ITEMS[0])
#: Lists within lists of a reply.
MAX_DEPTH = 100
#: Calls of an operation, and bytes of bitmaps, at most: a server may make one go on for long.
MAX_CALLS, MAX_BYTES = 400, 4 << 20


class StoppedError(Exception):
    """An operation has gone on for long enough."""


class Offline(FilterMethods):
    """A filter whose operations are driven here."""

    is_async = False

    def _use(self, client: Any) -> None:
        pass

    async def _drive(self, operation: Any, *, on_all_blocks: bool = False) -> Any:
        raise NotImplementedError


class Server:
    """Replies as a server does, unless the input has another reply.

    Each key has the same filter, but the key ``new``, which is free.

    Args:
        state: the ring of each block.
        replies: of the input.
    """

    def __init__(self, state: str, replies: list[Any]) -> None:
        self._state, self._version = state, "v1"
        self._replies = iter(replies)
        self._left, self._bytes = MAX_CALLS, MAX_BYTES
        self._fields = texts_in(object_in(state).get("header"))
        self._by_block: dict[int, str] = {}

    def run(self, operation: Operation[Any]) -> Any:
        """Drive an operation, as a driver does."""
        try:
            calls = next(operation)
            while True:
                calls = operation.send([Reply.parse(self._reply(call)) for call in calls])
        except StopIteration as stop:
            return stop.value

    def _reply(self, call: Call) -> Any:
        to_resp(*call.command())  # it can be sent
        self._left -= 1
        if not self._left or self._bytes < 0:
            raise StoppedError
        given = next(self._replies, None)
        return _raw(self._good(call) if given is None else given)

    def _good(self, call: Call) -> list[Any]:
        name, key, args = call.script.name, call.keys[0], cast("Any", call.args)
        reply: list[Any] = _GOOD.get(name, _DONE)
        if key.startswith("{new:"):
            return ["missing", *_DONE[1:]] if name == "header" else _DONE
        match name:
            case "header":
                pairs = [text for pair in self._fields.items() for text in pair]
                reply = ["header", self._version, self._of_block(0), str(NOW), *pairs]
            case "read":
                state = self._of_block(int(key.rpartition("}")[0].rpartition(":")[2]))
                counts = [text for layer in _layers(state) for text in (f"n:{layer}", "7")]
                reply = ["ok", self._version, state, str(NOW), *counts, "claims", "2"]
            case "swap":
                self._version, self._state = args[1], args[2]
                self._by_block.clear()
            case "add" | "count" | "contains" | "claim" | "discard":
                reply = ["ok", "1" * (len(args[5]) // (4 * args[2] * args[4]))]
            case "exists":
                reply = ["ok", "1" * len(call.keys)]
            case "release":
                reply = ["ok", "1" * (len(args) - 4)]
            case "reassign":
                reply = [*_DONE, *(text for field in args[4:] for text in (field, "{}"))]
            case "walk":
                reply = ["ok", "0", "node", str(NOW), key.replace(":ring", ":0.0"), ""]
            case "read_range":
                self._bytes -= args[3]
                reply = ["bytes", bytes(args[3] - 1) + b"\1"]
        return reply

    def _of_block(self, block: int) -> str:
        if block not in self._by_block:
            state = object_in(self._state)
            self._by_block[block] = json.dumps(state | {"block": block}) if state else self._state
        return self._by_block[block]

    def progress(self, done: int, _: int) -> None:
        """Stop a file that grows large."""
        if done > MAX_BYTES:
            raise StoppedError


_DONE = ["ok", "", "", str(NOW)]
#: Replies that depend on nothing.
_GOOD: dict[str, list[Any]] = {
    "scan": ["ok", "0", "", str(NOW), FIELD, f"w0 n0 {NOW} 0 2", "aa", "damaged"],
    "heartbeat": ["ok", "1 n", "all", str(NOW), "w0 {}", str(NOW), " w0", str(NOW)],
    "drop": ["ok", "1"],
    "merge": ["ok", ""],
}


def _layers(state: str) -> list[str]:
    try:
        return [layer.name for layer in ring_codec.parse(state).layers]
    except ValueError:
        return []


def _raw(value: Any, depth: int = 0) -> Any:
    """Return JSON as redis-py returns a reply: bytes, ints, None, lists."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, dict):
        value = [item for pair in value.items() for item in pair]
    if isinstance(value, list):
        # Clients refuse replies that are nested more deeply.
        return [_raw(item, depth + 1) for item in value] if depth < MAX_DEPTH else []
    return str(value).encode() if isinstance(value, float) else value


# -- operations --


def _one(bloom: Offline) -> Operation[object]:
    """Add one item as a crawl does."""
    session = bloom.session
    yield from session.open()
    block, hashes = session.hasher.hashes(ITEMS[0])
    held = session.held.get(block)
    if held is None:
        return None
    packed = held.pack(hashes)
    assert held.add_one(packed)
    assert held.claim_one(packed, ("w", "n", 0, 0, FIELD, "", "{}"))
    (reply,) = yield [held.add(packed)]
    return verdict_on_one(session, held, reply)


def _protocol(function: Callable[..., Operation[Any]], *args: Any, **kwargs: Any) -> Any:
    return lambda bloom: function(bloom.session, *args, **kwargs)


def _clear(session: FilterSession) -> Operation[None]:
    yield from session.clear()
    yield from session.rotate()


OPERATIONS: dict[str, Callable[[Any], Operation[Any]]] = {
    "open": lambda bloom: bloom.session.open(writable=True),
    "add": _protocol(add, ITEMS),
    "count": _protocol(add, ITEMS, if_absent=False),
    "one": _one,
    "contains": lambda bloom: bloom._contains(ITEMS),
    "discard": lambda bloom: bloom._discard(ITEMS[0]),
    "find": lambda bloom: bloom._find(ITEMS),
    "info": lambda bloom: bloom.session.read(),
    "rotate": lambda bloom: bloom.session.rotate(),
    "clear": _protocol(_clear),
    "delete": lambda bloom: deletion.delete(bloom.session),
    "keys": lambda bloom: deletion.all_keys(bloom.session),
    "look": lambda bloom: bloom.session.look(),
    "measure": _protocol(probe, 5),
    "claim": _protocol(claims.claim, ITEMS, ["{}"] * 3, "w1", "n1", memory=1_000),
    "confirm": _protocol(claims.confirm, ITEMS, ["w1"] * 3, server="id"),
    "release": _protocol(claims.release, ITEMS, "w1"),
    "fail": _protocol(claims.release, ITEMS, "w1", claims.RetryPolicy("-w", 60, 3)),
    "make_due": _protocol(claims.make_due, ITEMS, "-w", "n2"),
    "hold": _protocol(claims.hold, ITEMS, "w1", "n2"),
    "scan": _protocol(claims.scan, {0: "0"}, 10),
    "windows": _protocol(deletion.note_windows, ["a"]),
    "heartbeat": _protocol(workers.heartbeat, "w1 {}", 60),
    "remove_workers": _protocol(workers.remove_workers, {"w1 {}": ""}, "n"),
    "reassign": _protocol(
        claims.reassign, 0, [claims.StoredClaim(FIELD, "w0", "n0", NOW, 0, 2)], "w1", "n2"
    ),
    "approx_len": _protocol(algebra.approx_len),
}
#: Of several filters, which are on one server.
MULTIPLE: dict[str, Callable[[list[algebra.Part], Run], Coroutine[Any, Any, Any]]] = {
    "overlap": lambda two, _: algebra.overlap(*two),
    "union": lambda two, run: algebra.union(two, run, Keys("new")),
    "intersection": lambda two, run: algebra.intersection(two, run, Keys("new")),
    "copy": lambda two, run: algebra.copy(two[:1], run, Keys("new")),
    "update": lambda two, _: algebra.update(*two),
    "load": lambda _, run: load(run, Keys("new"), ArchiveReader(io.BytesIO(saved(0)))),
}


def run(data: bytes) -> None:
    """Run an operation on these replies."""
    given = object_in(data)
    name, state, replies = (given.get(field) for field in ("operation", "ring", "replies"))
    if not (isinstance(name, str) and isinstance(state, str) and isinstance(replies, list)):
        return
    server = Server(state, replies)
    with suppress(BloomError, StoppedError):
        _start(name, server)


def _start(name: str, server: Server) -> None:
    if name in OPERATIONS:
        server.run(OPERATIONS[name](Offline(None, "f", run="monday")))
    elif name == "save":
        writer = ArchiveWriter(io.BytesIO())
        server.run(save(Keys("f"), writer, server.progress))
    elif name in MULTIPLE:
        run = blocking(server.run)
        two = [algebra.Part(Offline(None, key).session, run) for key in ("f", "g")]
        complete(MULTIPLE[name](two, run))


NAMES = (*OPERATIONS, *MULTIPLE, "save")


@cache
def states() -> list[str]:
    """Return rings of filters of two blocks: the more there are, the longer takes an input."""
    two = [replace(ring, header=replace(ring.header, blocks=2), block=0) for ring in rings()[:-1:7]]
    return [ring_codec.dump(ring) for ring in two]


def _hostile(dice: Random) -> Any:
    """Return a reply of any status and any shape."""
    if dice.random() < 0.1:
        return dice.choice(ODD)
    state = dice.choice([*states(), "", "{}"])
    now = dice.choice([str(NOW), str(NOW + 10**8), str(1 << 37), "0", "-1", "9" * 20, "x"])
    short = dice.choice(["", "0", "1", "111", "222", "10?", "1" * 300, "-5", "filling", "\u0661"])
    version = dice.choice(["v1", "v1", "v2", "", "unfinished:1"])
    status = dice.choice(["ok"] * 4 + ["stale", "lost", "missing", "header", "restarted", "x"])
    rest = dice.choice(
        [
            [short],
            [short, "filling"],
            [version, state, now],
            [version, state, now, "layers", "0.0 0.1", "n:0.0", short],
            [short, "", now, FIELD, "w0 n0 1 0 2", "claims", short],
        ]
    )
    return [status, *rest]


def _seeds() -> Iterator[bytes]:
    unsent = states()[0].replace('"a.B"', '"\\ud800"')
    dice = Random(1)
    for name in NAMES:
        for state in states():
            yield _input(name, state, [])
            yield _input(name, state, [None] * dice.randrange(5) + [_hostile(dice)])
        yield _input(name, unsent, [["missing", "", "", str(NOW)]])
        yield _input(name, unsent, [["missing", "v1", unsent, "1"]])


def _input(name: str, state: str, replies: list[Any]) -> bytes:
    return json.dumps({"operation": name, "ring": state, "replies": replies}).encode()


def _change(given: Any, dice: Random) -> Any:
    """Put in a reply, as a rule; or change the operation, or anything."""
    kind = dice.randrange(10)
    replies = given.get("replies") if isinstance(given, dict) else None
    if kind < 3 or not isinstance(replies, list):
        return change(given, dice)
    if kind < 5:
        return given | {"operation": dice.choice(NAMES)}
    place = dice.randrange(len(replies) + 1)
    replies[place:place] = [*[None] * dice.randrange(4), _hostile(dice)]
    return given


TARGET = Target(run, _seeds, json_by(_change))
