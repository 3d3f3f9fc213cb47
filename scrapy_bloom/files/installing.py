"""A filter that is put in the place of whatever is there. No I/O with the server.

When all its bitmaps are written beside it, an unfinished header is put in, with which nobody can
open a filter; then the rings with their bitmaps; then the header. So whatever ends it before its
time, nobody takes a part for the whole.

Of several that do so at once, the last to put in its unfinished header goes on. The others notice:
a ring is put in only in the place of one that was read before the unfinished header was last seen
to be the own one, and the header only in its place. So none of theirs comes after one of the last.

The unfinished header keeps the one before, and is told when rings begin to be put in. Until then,
the one before is put back if this ends.
"""

import re
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

from scrapy_bloom.core import state
from scrapy_bloom.core.header import FORMAT, UNFINISHED, Header, is_unfinished
from scrapy_bloom.core.keys import Keys
from scrapy_bloom.core.ring import SLACK, Ring
from scrapy_bloom.core.rings import MAX_ROUNDS, Steps
from scrapy_bloom.core.scripts import Argument, Call, Reply, load
from scrapy_bloom.core.sizing import MAX_BLOCKS
from scrapy_bloom.errors import BloomError, ConfigurationError, StorageError, shown
from scrapy_bloom.files.staging import Staging
from scrapy_bloom.sets.together import Together, on

T = TypeVar("T")

#: Rings that are put in in a round trip.
BATCH = 16
#: The field of a ring that counts the items of a layer.
COUNTED = re.compile(r"n:([0-9]{1,20}\.[0-9]{1,3})")
#: Instead of the header that is expected: any, or none.
ANY, NONE = "*", ""


@dataclass(frozen=True, slots=True)
class There:
    """What is in a block that is to be replaced.

    Args:
        v: nonce of its ring, "" if there is none.
        keys: bitmaps and records that it has, as far as is known.
        id: id of its filter; "" if there is no ring, None if it cannot be read.
    """

    v: str
    keys: Sequence[str]
    id: str | None


class Installing(Staging):
    """One filter that is put into its place: to be run by ``or_discard``.

    Args:
        keys: the keys it is to have.
        header: its header.
        replace: whether it may take the place of what is there.

    Attributes:
        unreadable: blocks of what was there that could not be read. Of their bitmaps, those that
            nothing was counted in may be left.
    """

    def __init__(self, keys: Keys, header: Header, *, replace: bool = False) -> None:
        super().__init__(keys)
        self.unreadable = 0
        self._new = header
        self._replace = replace
        #: Nonce of the rings that are put in.
        self._v = secrets.token_hex(8)
        #: Blocks that are replaced or put in.
        self._span = header.blocks
        #: Whether an unfinished header was sent, and when it expires, 0 for never.
        self._announced, self._end = False, 0
        #: Whether rings may have been put in.
        self._begun = False
        #: What the rings have replaced: the key of the ring, and that of a bitmap or a record.
        self._left: list[tuple[str, str]] = []

    def look(self) -> Steps[Mapping[str, str]]:
        """Return the fields of the header that is there; none if there is no header.

        Raises:
            ConfigurationError: something is there, and it may not be replaced.
        """
        reply = yield from self._read_header("")
        self._now = self._renewed = reply.now
        self._span = max(self._span, _blocks(reply.fields))
        replies = yield [self._read_call(block) for block in range(self._span)]
        if not self._replace and (reply.fields or any(each.v for each in replies)):
            raise self._taken(reply.fields)
        return reply.fields

    def put_in(self) -> Steps[None]:
        """Put in what was written; nobody can open it before it is whole.

        Raises:
            ConfigurationError: something is there by now, and it may not be replaced.
            StorageError: another one was put in meanwhile, or the server is short of memory.
        """
        yield from self.flush()
        rings = [self._current(block.ring) for block in self._blocks.values()]
        self._end = self._end_of(rings)
        replaced = yield from self._announce()
        yield from self._put_rings(rings, replaced)
        yield from self._clear(range(self._new.blocks, self._span), self._token)
        if (yield from self._put_header(f"={self._token}")) is None:
            raise self._superseded()
        self._announced = False

    def tidy(self) -> Steps[None]:
        """Delete what was replaced. If this fails, it goes by itself in a minute."""
        for ring_key, key in self._left:
            yield [Call(load("drop"), (ring_key, key), (self._v,))]

    def discard(self) -> Steps[None]:
        """Delete what was written. If this fails, it expires or refuses to be opened."""
        # First what is staged: an install that is still under way finds nothing to put in.
        for block in self._blocks.values():
            with suppress(BloomError):
                yield from self._unstage(block)
        if self._announced:
            yield from self._take_back()

    # -- the header --

    def _announce(self) -> Steps[str]:
        """Put the unfinished header in; return the id of what was there, the own if nothing was."""
        self._announced = True
        before = yield from self._put_header(ANY if self._replace else NONE, token=self._token)
        if before is None:
            self._announced = False
            raise self._taken({})
        if _blocks(before) > self._span:
            self._span = _blocks(before)
            yield from self._put_header(f"={self._token}", token=self._token)
        return before.get("id", self._new.id)

    def _begin(self) -> Steps[None]:
        """Have the header say that rings are put in, if it is still the own one."""
        if (yield from self._put_header(f"={self._token}", token=self._token, begun="1")) is None:
            raise self._superseded()
        self._begun = True

    def _put_header(self, expected: str, **further: str) -> Steps[Mapping[str, str] | None]:
        """Put a header in the place of the expected one: unfinished, if it has further fields.

        Returns the fields of the one before; None if another one is there.
        """
        header = self._new
        if further:
            # With all blocks there are, for whoever replaces or deletes what is left of it.
            header = replace(header, format=UNFINISHED, blocks=self._span)
        fields = header.to_fields() | further
        answer = yield from self._create(expected, *chain.from_iterable(fields.items()))
        if answer.status == "ok":
            return answer.fields
        # A client that sends a command again finds that it was carried out.
        there = (yield from self._read_header("")).fields
        done = all(there.get(name) == fields[name] for name in ("id", "format", *further))
        return {} if done else None

    def _create(self, expected: str, *fields: str) -> Steps[Reply]:
        keys = (self.keys.header(), self.keys.ring(0))
        (answer,) = yield [Call(load("create"), keys, (expected, self._end, *fields))]
        return answer

    # -- the rings --

    def _current(self, ring: Ring) -> Ring:
        """Return a ring as it is put in: runs do not pass while a file lies about."""
        schedule = ring.config.schedule
        return replace(ring, changed=self._now) if schedule and schedule.counts_runs else ring

    def _end_of(self, rings: Iterable[Ring]) -> int:
        """Return when the header expires, 0 for never."""
        expiries = [ring.expiry for ring in rings]
        last = max(expiries) if all(expiries) else 0
        if 0 < last <= self._now:
            raise self._over("it ends, and all that it remembers is forgotten by now")
        return last and last + SLACK

    def _put_rings(self, rings: Collection[Ring], replaced: str) -> Steps[None]:
        """Put rings in the place of whatever is there.

        Args:
            rings: the rings.
            replaced: id of the filter that is replaced, the own one if there was none.
        """
        todo = {ring.block: ring for ring in rings}
        for _ in range(MAX_ROUNDS):
            # In this order: see above.
            there = yield from self._read_blocks(todo)
            yield from self._begin()
            # A client that sends a command again is answered "stale", and finds its own ring.
            todo = {block: ring for block, ring in todo.items() if there[block].v != self._v}
            for batch in _batches(list(todo.values())):
                answers = yield [self._install(r, there[r.block], replaced) for r in batch]
                for ring, answer in zip(batch, answers, strict=True):
                    if answer.status == "lost":
                        raise self._gone()
                    if answer.status == "ok":
                        self._note(ring, there[ring.block])
                        del todo[ring.block]
            if not todo:
                return
        raise self.unstable()

    def _read_blocks(self, blocks: Collection[int]) -> Steps[dict[int, There]]:
        replies = yield [self._read_call(block) for block in blocks]
        pairs = zip(blocks, replies, strict=True)
        return {block: self._there(block, reply) for block, reply in pairs}

    def _there(self, block: int, reply: Reply) -> There:
        try:
            ring = state.parse(reply.state) if reply.v else None
        except ValueError:
            # What was counted tells what there was.
            names = [found[1] for found in map(COUNTED.fullmatch, reply.fields) if found]
            return There(reply.v, [self.keys.layer(block, name) for name in names], None)
        if ring is None:
            return There(reply.v, (), "")
        own = replace(ring, block=block)
        return There(reply.v, self._kept(own), ring.header.id)

    def _install(self, ring: Ring, there: There, replaced: str) -> Call:
        block, number = self._blocks[ring.block], ring.block
        staged, own = self._names(ring)
        keys = [self.keys.ring(number), self.keys.staged(number, self._token, "free")]
        keys += [self.keys.claims(number), *staged, *own]
        keys += [key for key in there.keys if key not in own]
        # Of a ring that cannot be read, the header tells whose claims those are.
        is_same = (there.id or replaced) == self._new.id
        arguments: list[Argument] = [there.v, self._v, state.dump(ring), ring.expiry, int(is_same)]
        for generation in ring.generations:
            time = ring.expires(generation)
            for layer in generation.layers:
                arguments += [layer.name, layer.memory, block.counts[layer.name], time]
        return Call(load("install"), tuple(keys), tuple(arguments))

    def _names(self, ring: Ring) -> tuple[list[str], list[str]]:
        """Return the keys of a ring's bitmaps as they are written, and as they are put in."""
        block = self._blocks[ring.block]
        staged = [self._staged(block, layer) for layer in ring.layers]
        return staged, [self.keys.layer(ring.block, layer.name) for layer in ring.layers]

    def _note(self, ring: Ring, there: There) -> None:
        """Note what is left of a ring whose place was taken."""
        staged, own = self._names(ring)
        moved = dict(zip(own, staged, strict=True))
        key = self.keys.ring(ring.block)
        self._left += [(key, moved.get(name, name)) for name in there.keys]
        self.unreadable += there.id is None

    # -- what goes --

    def _take_back(self) -> Steps[None]:
        """Put back the header before, or, if rings may have been put in, delete those.

        What was put in its place since stays.
        """
        if not self._begun:
            yield [Call(load("restore"), (self.keys.header(),), (self._token,))]
            return
        token = secrets.token_hex(8)  # from now on, the header is not put in by what is on its way
        if (yield from self._put_header(f"={self._token}", token=token)) is not None:
            yield from self._clear(range(self._span), token)
            yield from self._create(f"={token}")
            return
        reply = yield from self._read_header("")
        if (reply.fields.get("id"), reply.fields.get("format")) != (self._new.id, str(FORMAT)):
            for block in self._blocks.values():
                yield from self._drop(block.ring.block, self._v, self._kept(block.ring))

    def _clear(self, blocks: Iterable[int], token: str) -> Steps[None]:
        """Delete whatever is in blocks while the unfinished header has a token."""
        todo = list(blocks)
        for _ in range(MAX_ROUNDS):
            if not todo:
                return
            # In this order, as rings are put in.
            there = yield from self._read_blocks(todo)
            header = yield from self._read_header("")
            if header.fields.get("token") != token:
                raise self._superseded()
            for block, found in there.items():
                if (yield from self._drop(block, found.v, found.keys)):
                    todo.remove(block)
        raise self.unstable()

    def _drop(self, block: int, v: str, keys: Iterable[str]) -> Steps[bool]:
        """Delete a block, if its ring has the nonce; whether it had."""
        ring_key = self.keys.ring(block)
        more = [self.keys.claims(block), *([self.keys.workers()] if block == 0 else ())]
        for key in (*keys, *more, ring_key):
            (done,) = yield [Call(load("drop"), (ring_key, key), (v,))]
            if done.verdicts != "1":
                return False
        return True

    # -- trouble --

    def _over(self, problem: str) -> BloomError:
        return StorageError(f"the filter cannot be written: {problem}")

    def _taken(self, fields: Mapping[str, str]) -> ConfigurationError:
        key, how = shown(self.keys.prefix), "replace=True; scrapy bloom import --replace"
        if is_unfinished(fields):
            return ConfigurationError(
                f"a filter is just being put under the key {key}, or that was interrupted: choose "
                f"another key, or, if it stays so, replace what is left ({how}) or delete() it"
            )
        return ConfigurationError(
            f"there is a filter under the key {key} already: choose another key, or replace it "
            f"({how})"
        )

    def _superseded(self) -> StorageError:
        return StorageError(
            f"another filter was put under the key {shown(self.keys.prefix)} at the same time, or "
            "it was deleted: nothing of this one is left there"
        )


def or_discard(installing: Installing, number: int, operation: Together[T]) -> Together[T]:
    """Run the whole of an installation; whatever ends it before its time, it is discarded.

    Args:
        installing: what is to be put in.
        number: of the filter it is to be.
        operation: ends with ``put_in``.
    """
    try:
        result = yield from operation
    except GeneratorExit:
        raise  # it is dropped, by whom nothing more is sent
    except BaseException:
        with suppress(BloomError):
            yield from on(number, installing.discard())
        raise
    with suppress(BloomError):
        yield from on(number, installing.tidy())
    return result


def _batches(rings: Sequence[Ring]) -> Iterable[Sequence[Ring]]:
    return (rings[start : start + BATCH] for start in range(0, len(rings), BATCH))


def _blocks(fields: Mapping[str, str]) -> int:
    """Return the number of blocks in a header, which may be damaged; 0 if it does not tell."""
    text = fields.get("blocks", "")
    good = re.fullmatch(r"[0-9]{1,9}", text) and int(text) <= MAX_BLOCKS
    return int(text) if good else 0
