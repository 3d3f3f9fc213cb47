"""Replies of scripts: operations get hostile ones, of any shape, among good ones.

An input is JSON: the operation, the stored ring, and the replies to its calls, one after the other;
``null`` stands for a good one.
"""

import io
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from random import Random
from typing import Any

from support.saving import blocking

from fuzz.mutate import ODD, json_text
from fuzz.target import Target
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
        self._fields = _header_in(state)
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
        return self._good(call) if given is None else _raw(given)

    def _good(self, call: Call) -> Any:
        args: Any = call.args
        make: Callable[[Call, Any], list[Any]] = getattr(self, f"_{call.script.name}", _done)
        if call.keys[0].startswith("{new:"):
            make = _FREE.get(call.script.name, _done)
        return [_raw(value) for value in make(call, args)]

    def _header(self, *_: Any) -> list[Any]:
        pairs = [text for pair in self._fields.items() for text in pair]
        return ["header", self._version, self._of_block(0), str(NOW), *pairs]

    def _read(self, call: Call, _: Any) -> list[Any]:
        state = self._of_block(int(call.keys[0].rpartition("}")[0].rpartition(":")[2]))
        counts = [text for name in _layers(state) for text in (f"n:{name}", "7")]
        return ["ok", self._version, state, str(NOW), *counts, "claims", "2"]

    def _swap(self, call: Call, args: Any) -> list[Any]:
        self._version, self._state = args[1], args[2]
        self._by_block.clear()
        return ["ok", "", "", str(NOW)]

    def _add(self, _: Call, args: Any) -> list[Any]:
        return ["ok", "1" * (len(args[5]) // (4 * args[2] * args[4]))]

    _count = _contains = _claim = _discard = _add

    def _release(self, _: Call, args: Any) -> list[Any]:
        return ["ok", "1" * (len(args) - 4)]

    def _reassign(self, _: Call, args: Any) -> list[Any]:
        return ["ok", "", "", str(NOW), *(text for field in args[4:] for text in (field, "{}"))]

    def _scan(self, *_: Any) -> list[Any]:
        return ["ok", "0", "", str(NOW), FIELD, f"w0 n0 {NOW} 0 2", "aa", "damaged"]

    def _heartbeat(self, *_: Any) -> list[Any]:
        return ["ok", "1 n", "all", str(NOW), "w0 {}", str(NOW), " w0", str(NOW)]

    def _remove_workers(self, *_: Any) -> list[Any]:
        return ["ok", "", "", str(NOW)]

    def _walk(self, call: Call, _: Any) -> list[Any]:
        return ["ok", "0", "node", str(NOW), call.keys[0].replace(":ring", ":0.0"), ""]

    def _read_range(self, _: Call, args: Any) -> list[Any]:
        self._bytes -= args[3]
        return ["bytes", bytes(args[3] - 1) + b"\1"]

    def _drop(self, *_: Any) -> list[Any]:
        return ["ok", "1"]

    def _merge(self, *_: Any) -> list[Any]:
        return ["ok", ""]

    def _of_block(self, block: int) -> str:
        if block not in self._by_block:
            try:
                self._by_block[block] = json.dumps(json.loads(self._state) | {"block": block})
            except (ValueError, TypeError, RecursionError):
                self._by_block[block] = self._state
        return self._by_block[block]

    def progress(self, done: int, _: int) -> None:
        """Stop a file that grows large."""
        if done > MAX_BYTES:
            raise StoppedError


def _done(*_: Any) -> list[Any]:
    return ["ok", "", "", str(NOW)]


_FREE: dict[str, Callable[[Call, Any], list[Any]]] = {
    "header": lambda *_: ["missing", "", "", str(NOW)],
    "read": lambda *_: ["ok", "", "", str(NOW)],
}


def _header_in(state: str) -> Mapping[str, str]:
    try:
        fields = json.loads(state)["header"]
        return {name: value for name, value in fields.items() if isinstance(value, str)}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


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
    try:
        given = json.loads(data)
        name, state, replies = given["operation"], given["ring"], given["replies"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return
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


def _seeds() -> Iterator[bytes]:
    states = [_small(ring_codec.dump(ring)) for ring in rings()[:-1:7]]
    for number, name in enumerate(NAMES):
        yield _input(name, states[number % len(states)], [])
        yield _input(
            name, states[0], [None] * 3 + [["ok", "1"], ["lost", "v1", "", "1", "layers", "0.0"]]
        )
        yield _input(name, states[1], [["missing", "", "", str(NOW)]])
        yield _input(
            name, states[2], [None, None, ["stale", "v2", states[3], str(NOW)], ["ok", "222"]]
        )
        yield _input(name, states[0], [None, ["ok", "v1", states[0], "9" * 30]])
        yield _input(
            name, states[0].replace('"a.B"', '"\\ud800"'), [["missing", "v1", states[0], "1"]]
        )
    for odd in ODD:
        yield _input("add", states[0], [odd])


def _small(state: str) -> str:
    """Return a ring of a filter of two blocks: the more there are, the longer takes an input."""
    ring = json.loads(state) | {"block": 0}
    ring["header"]["blocks"] = "2"
    return json.dumps(ring)


def _input(name: str, state: str, replies: list[Any]) -> bytes:
    return json.dumps({"operation": name, "ring": state, "replies": replies}).encode()


def _mutate(data: bytes, dice: Random) -> bytes:
    """Change a reply, as a rule; or the operation, or anything."""
    kind = dice.randrange(6)
    if kind < 2:
        return json_text(data, dice)
    try:
        given = json.loads(data)
        replies = given["replies"]
        if kind == 2:
            given["operation"] = dice.choice(NAMES)
        else:
            replies.extend([None] * dice.randrange(3))
            replies.insert(dice.randrange(len(replies) + 1), _some_reply(given["ring"], dice))
        return json.dumps(given).encode()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return json_text(data, dice)


def _some_reply(state: str, dice: Random) -> Any:
    status = dice.choice(
        ["ok", "stale", "lost", "missing", "header", "bytes", "restarted", "", "x"]
    )
    now = dice.choice([str(NOW), "0", "-1", "9" * 20, "x", str(NOW + 10**8), "137438953472"])
    short = ["", "0", "1", "111", "222", "10?", "1" * 300, "-5", "filling", "\u0661"]
    return dice.choice(
        [
            [status, dice.choice(short)],
            [status, dice.choice(short), "filling"],
            [
                status,
                dice.choice(["v1", "v2", "", "unfinished:1"]),
                dice.choice([state, "", "{}"]),
                now,
            ],
            [status, "v1", state, now, "layers", "0.0 0.1", "n:0.0", dice.choice(short)],
            [
                status,
                dice.choice(short),
                "",
                now,
                FIELD,
                "w0 n0 1 0 2",
                "claims",
                dice.choice(short),
            ],
            [status, "v1", "", now, dice.choice(short)],
            dice.choice(ODD),
        ]
    )


TARGET = Target(
    run,
    _seeds,
    _mutate,
)
