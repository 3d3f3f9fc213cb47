"""One client's view of a filter: its header and rings, kept up to date. No I/O.

Each operation is a generator that yields a list of script calls, which may be sent together, and
receives the list of their replies; ``driver.py`` sends them. So synchronous and asynchronous
clients share one implementation.
"""

import random
import secrets
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import TypeVar

from scrapy_bloom.errors import FilterMismatchError, StorageError
from scrapy_bloom.hashing import Hasher, draw_seeds, offset_packer
from scrapy_bloom.keys import Keys
from scrapy_bloom.ring import Config, Header, Layer, Ring
from scrapy_bloom.scripts import Call, Reply, load
from scrapy_bloom.sizing import DEFAULT_BLOCKS, plan

S = TypeVar("S")
T = TypeVar("T")
#: An operation: yields calls, receives their replies, returns its result.
Steps = Generator[list[Call], list[Reply], T]

#: Rounds after which an operation gives up on a filter that is different each time it looks.
MAX_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asks of the filter; None is "as stored, else the default".

    Args:
        capacity: URLs a generation takes.
        error_rate: bound on the false-positive rate.
        blocks: number of blocks.
        seeds: the seeds themselves.
        num_hashes: how many seeds to draw.
        fingerprinter: import path of the class that makes the fingerprints.
    """

    capacity: int | None = None
    error_rate: float | None = None
    blocks: int | None = None
    seeds: tuple[int, ...] | None = None
    num_hashes: int | None = None
    fingerprinter: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """A ring as this client last saw it, and what calls on it have in common.

    Args:
        v: nonce under which Redis has the ring.
        ring: the ring.
        keys: Redis keys of the ring and of its active layer.
    """

    v: str
    ring: Ring
    keys: tuple[str, str]


class View:
    """One client's view of one filter, and the operations on it.

    Args:
        keys: the filter's keys.
        wanted: what the user asks for.
        default: capacity and error rate of a filter that is created without them.
    """

    def __init__(self, keys: Keys, wanted: Wanted, default: Config) -> None:
        self.keys = keys
        self.wanted = wanted
        self.default = default
        self.header: Header | None = None
        #: How items are placed under that header.
        self.hasher: Hasher
        self.packer: Struct
        self.held: dict[int, Held] = {}
        #: Blocks whose ring or bitmap was found missing in a filter that was open.
        self.lost_blocks = 0

    @property
    def complete(self) -> bool:
        """Whether the header and the rings of all blocks are held."""
        return self.header is not None and len(self.held) == self.header.blocks

    def open(self, *, writable: bool = False) -> Steps[Header]:
        """Read the filter's header and the rings not held yet; create or replace what is missing.

        Args:
            writable: make sure that the server accepts writes.

        Raises:
            FilterMismatchError: the stored filter is another one than was asked for.
            StorageError: what is stored cannot be read.
            ConfigurationError: the filter that was asked for is impossible.
        """
        for _ in range(MAX_ROUNDS):
            header = yield from self._load_header(writable)
            missing = yield from self._load_rings(header)
            # Another filter's ring is a leftover, unless the filter was created anew meanwhile.
            if any(reply.state for _, reply in missing):
                again = yield from self._load_header(writable=False)
                if again != header:
                    continue
            for block, reply in missing:
                yield from self._create_ring(header, block, reply)
            if self.complete:
                return header
        raise self.unstable()

    def clear(self) -> Steps[None]:
        """Forget everything, one block at a time; other clients notice at their next call."""
        counts = yield from self.read()
        config = self.wanted_config(self.held[0].ring.config)
        for block in random.sample(sorted(counts), len(counts)):  # as in open: share the work
            yield from self._clear_block(block, config)

    def read(self) -> Steps[dict[int, list[int]]]:
        """Bring all rings up to date; return per block the URLs recorded in each of its layers."""
        for _ in range(MAX_ROUNDS):
            if not self.complete:
                yield from self.open()
            known = {block: held.v for block, held in self.held.items()}
            replies = yield [self._read_call(block) for block in known]
            answers = dict(zip(known, replies, strict=True))
            changed = [block for block in known if answers[block].v != known[block]]
            if not changed:
                return {block: self._counts(block, answers[block]) for block in sorted(known)}
            for block in changed:
                yield from self.refresh(block, known[block], answers[block])
        raise self.unstable()

    # -- header and rings --

    def _load_header(self, writable: bool) -> Steps[Header]:
        keys = (self.keys.header(), self.keys.ring(0))
        for _ in range(MAX_ROUNDS):
            (reply,) = yield [Call(load("header"), keys, ("1" if writable else "0",))]
            if reply.status == "header":
                header = self._parse(Header.from_fields, reply.fields, self.keys.header())
                self._adopt(header)
                return header
            # Restored if it is known or left in any ring: seeds drawn anew would forget everything.
            header = self.header or (yield from self._surviving_header(reply)) or self._new_header()
            fields = [part for pair in header.to_fields().items() for part in pair]
            yield [Call(load("create"), keys, (reply.v, *fields))]
        raise self.unstable()

    def _surviving_header(self, first: Reply) -> Steps[Header | None]:
        replies = [first]
        if not first.state:
            blocks = range(max(self.wanted.blocks or 0, DEFAULT_BLOCKS))
            replies = yield [self._read_call(block) for block in blocks]
        for block, reply in enumerate(replies):
            if reply.state:
                return self._parse(Ring.from_json, reply.state, self.keys.ring(block)).header
        return None

    def _new_header(self) -> Header:
        config, wanted = self.wanted_config(self.default), self.wanted
        count = len(wanted.seeds) if wanted.seeds else wanted.num_hashes
        sized = plan(config.capacity, config.error_rate, blocks=wanted.blocks, num_hashes=count)
        seeds = wanted.seeds or draw_seeds(sized.num_hashes)
        return Header(secrets.token_hex(16), sized.blocks, seeds, wanted.fingerprinter)

    def _adopt(self, header: Header) -> None:
        """Take a stored header as the filter's, unless the user asked for another filter."""
        wanted = self.wanted
        if wanted.blocks not in (None, header.blocks):
            raise self._mismatch("BLOOM_BLOCKS", f"{header.blocks} blocks", wanted.blocks)
        if wanted.num_hashes not in (None, len(header.seeds)):
            raise self._mismatch("BLOOM_SEEDS", f"{len(header.seeds)} seeds", wanted.num_hashes)
        if wanted.seeds not in (None, header.seeds):
            asked = f"a list of {len(wanted.seeds or ())}"  # not the seeds: they are secret
            raise self._mismatch("BLOOM_SEEDS", f"{len(header.seeds)} other seeds", asked)
        if header != self.header:
            self.header = header
            self.hasher = Hasher(header.seeds, header.blocks)
            self.packer = offset_packer(len(header.seeds))
            self.held.clear()

    def _load_rings(self, header: Header) -> Steps[list[tuple[int, Reply]]]:
        """Hold the rings that are there; return the other blocks, and what is there instead."""
        blocks = [block for block in range(header.blocks) if block not in self.held]
        if not blocks:
            return []
        replies = yield [self._read_call(block) for block in blocks]
        found = zip(blocks, replies, strict=True)
        missing = [(block, reply) for block, reply in found if not self._hold(block, reply)]
        # In random order, so that workers that start together share the work; block 0 first, so
        # that all blocks are created with its configuration.
        random.shuffle(missing)
        return sorted(missing, key=lambda pair: pair[0] > 0)

    def _create_ring(self, header: Header, block: int, reply: Reply) -> Steps[None]:
        held = self.held.get(0) or next(iter(self.held.values()), None)
        config = held.ring.config if held else self.wanted_config(self.default)
        if not reply.state:
            yield from self._swap(block, reply.v, Ring.fresh(header, config, reply.now))
            return
        # The ring of another filter that was here: it counts as lost, and its bitmaps go.
        other = self._parse(Ring.from_json, reply.state, self.keys.ring(block))
        ring = replace(other, header=header).cleared(reply.now, config)
        yield from self._swap(block, reply.v, ring, other.layers)

    def _clear_block(self, block: int, config: Config) -> Steps[None]:
        for _ in range(MAX_ROUNDS):
            (reply,) = yield [self._read_call(block)]
            if self._hold(block, reply):
                old = self.held[block].ring
                ring = old.cleared(reply.now, config)
                if (yield from self._swap(block, reply.v, ring, old.layers)):
                    return
            elif block >= (yield from self.open()).blocks:
                return  # the filter was created anew meanwhile, with fewer blocks
        raise self.unstable()

    def _swap(self, block: int, v: str, ring: Ring, old: Sequence[Layer] = ()) -> Steps[bool]:
        """Compare and set: put ``ring`` in the place of the one under nonce ``v``.

        Returns whether it worked; if not, the ring of whoever was faster is held, if it is usable.
        """
        sizes = {layer.name: 0 for layer in old if layer not in ring.layers}
        sizes |= {layer.name: layer.memory for layer in ring.layers if layer not in old}
        keys = (self.keys.ring(block), *(self.keys.layer(block, name) for name in sizes))
        pairs = [part for pair in sizes.items() for part in pair]
        new_v = secrets.token_hex(8)
        (reply,) = yield [Call(load("swap"), keys, (v, new_v, ring.to_json(), *pairs))]
        if reply.status == "ok":
            self._put(block, new_v, ring)
            return True
        self._hold(block, reply)
        return False

    def _hold(self, block: int, reply: Reply) -> bool:
        """Hold the ring in a reply; not one that is missing or belongs to another filter."""
        self.held.pop(block, None)
        if not reply.state:
            return False
        ring = self._parse(Ring.from_json, reply.state, self.keys.ring(block))
        if self.header is None or ring.header.id != self.header.id:
            return False
        self._put(block, reply.v, ring)
        return True

    def _put(self, block: int, v: str, ring: Ring) -> None:
        keys = (self.keys.ring(block), self.keys.layer(block, ring.active.name))
        self.held[block] = Held(v, ring, keys)

    def refresh(self, block: int, v: str, reply: Reply) -> Steps[None]:
        """Bring the view of a block up to date after a script refused ring ``v``."""
        held = self.held.get(block)
        if held is None or held.v != v:
            return  # another reply of the same round has seen to it
        if reply.status == "lost":
            self.lost_blocks += 1
            ring = held.ring.cleared(reply.now)
            yield from self._swap(block, v, ring, held.ring.layers)
        elif not self._hold(block, reply):
            # The ring is gone, or the filter was deleted and created anew: look at the header.
            self.lost_blocks += 1
            yield from self.open()

    def _read_call(self, block: int) -> Call:
        return Call(load("read"), (self.keys.ring(block),), ())

    def _counts(self, block: int, reply: Reply) -> list[int]:
        layers = self.held[block].ring.layers
        texts = [reply.fields.get(f"n:{layer.name}", "0") for layer in layers]
        return [self._parse(int, text, self.keys.ring(block)) for text in texts]

    # -- what the user asked for, and errors --

    def wanted_config(self, stored: Config) -> Config:
        """Return what the user gave, the rest as stored."""
        return Config(
            self.wanted.capacity or stored.capacity, self.wanted.error_rate or stored.error_rate
        )

    def _parse(self, parse: Callable[[S], T], text: S, key: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise StorageError(
                f"cannot use the Redis key {key!r}: {error}. Delete the filter's keys to start "
                "anew, set another BLOOM_KEY, or use the version of scrapy-bloom that wrote it"
            ) from None

    def _mismatch(self, setting: str, stored: str, asked: object) -> FilterMismatchError:
        return FilterMismatchError(
            f"the filter {self.keys.prefix!r} is stored with {stored}, but {setting} is {asked}: "
            f"remove {setting} to use the filter as it is, or set another BLOOM_KEY for a new one"
        )

    def unstable(self) -> StorageError:
        """Return the error for a filter that does not keep still."""
        return StorageError(
            f"the filter {self.keys.prefix!r} was different each of {MAX_ROUNDS} times it was "
            "read: does something else write or delete its keys?"
        )
