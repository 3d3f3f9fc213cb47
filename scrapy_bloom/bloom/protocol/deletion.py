"""Deletes a filter and lists its keys, also if parts of it are lost; notes windows. No I/O."""

from collections.abc import Sequence

from scrapy_bloom.bloom.errors import StorageError
from scrapy_bloom.bloom.model import ring_codec
from scrapy_bloom.bloom.model.header import parse_blocks
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.sizing import DEFAULT_BLOCKS
from scrapy_bloom.bloom.protocol.cached_ring import is_answer
from scrapy_bloom.bloom.protocol.ring_store import MAX_RACES, Operation, StoredFilter
from scrapy_bloom.bloom.protocol.scripts import Call, Reply, load
from scrapy_bloom.bloom.protocol.session import FilterSession
from scrapy_bloom.bloom.protocol.swaps import MAX_BYTES, Drop, in_waves

#: How fields of the header begin that name a window.
_WINDOW = "window:"


def delete(stored: StoredFilter) -> Operation[bool]:
    """Delete a filter; return whether there was one."""
    blocks = yield from stored_blocks(stored)
    walked: dict[str, list[str]] = {}
    # Last the block that the header is with: until then, it can be deleted again.
    for wave in (*in_waves(range(1, blocks)), range(min(blocks, 1))):
        yield from _remove(stored, wave, walked)
    return blocks > 0


def stored_blocks(stored: StoredFilter) -> Operation[int]:
    """Return how many blocks are stored, also if parts of them are lost; 0 for no filter."""
    reply = yield from stored.read_header("")
    if reply.status == "header":
        try:
            blocks = parse_blocks(reply.fields.get("blocks"))
        except ValueError:
            blocks = DEFAULT_BLOCKS
    else:
        blocks = 0
    try:
        ring = yield from stored.surviving_ring(reply, unfinished=True)
    except StorageError as error:
        if error.replies:
            raise  # a node of a cluster has failed
        return max(blocks, DEFAULT_BLOCKS)  # there is one, and it cannot be read
    # Where they disagree, what the larger number names is deleted too.
    return max(blocks, ring.header.blocks) if ring else blocks


def all_keys(stored: StoredFilter) -> Operation[list[str]]:
    """Return the keys that there are."""
    blocks, keys = range((yield from stored_blocks(stored))), list[str]()
    for block, reply in (yield from stored.read_all(blocks)).items():
        if reply.state:
            ring = stored.parse(ring_codec.parse, reply.state, stored.keys.ring(block))
            layers = (stored.keys.layer(ring.block, layer.name) for layer in ring.layers)
            keys += [stored.keys.ring(block), *layers]
    for wave in in_waves([_others(stored.keys, block) for block in blocks]):
        replies = yield [Call(load("exists"), others, ()) for others in wave]
        for others, reply in zip(wave, replies, strict=True):
            if is_answer(reply, len(others)):
                found = zip(others, reply.verdicts, strict=True)
                keys += [key for key, verdict in found if verdict == "1"]
    return keys


def _others(keys: Keys, block: int) -> tuple[str, ...]:
    """Return the keys that a block may have, but for its ring and its bitmaps; the header last."""
    own = (keys.claims(block), *keys.of_ledger(block))
    return own if block else (*own, keys.heartbeats(), keys.workers_version(), keys.header())


def _remove(
    stored: StoredFilter, blocks: Sequence[int], walked: dict[str, list[str]]
) -> Operation[None]:
    """Delete all keys of some blocks that exist at one moment, their rings last.

    Clients that have the filter open create them again, empty, at once; that stays.

    Args:
        stored: the filter.
        blocks: the blocks.
        walked: names of the filter's keys, by node, as far as they were looked for.
    """
    left = set(blocks)
    for _ in range(MAX_RACES):
        replies = yield from stored.read_all(sorted(left))
        parts = list[Drop]()
        for block, reply in replies.items():
            parts += yield from _parts(stored, block, reply, walked)
        left = yield from stored.drop(parts)
        rings = [Drop(b, stored.keys.ring(b), replies[b].version) for b in replies.keys() - left]
        left |= yield from stored.drop(rings)
        if not left:
            return
    raise stored.unstable(MAX_RACES)


def _parts(
    stored: StoredFilter, block: int, reply: Reply, walked: dict[str, list[str]]
) -> Operation[list[Drop]]:
    """Return all keys of a block but its ring."""
    keys, version = stored.keys, reply.version
    try:
        ring = ring_codec.parse(reply.state)
        bitmaps = [
            Drop(block, keys.layer(ring.block, layer.name), version, layer.memory)
            for layer in ring.layers
        ]
    except ValueError:  # no ring, or a damaged one: find the bitmaps by their names
        names = yield from _find_bitmaps(stored, block, walked)
        bitmaps = [Drop(block, name, version, MAX_BYTES) for name in names]
    first, *others = _others(keys, block)
    return [*bitmaps, Drop(block, first, version, more=tuple(others))]


def _find_bitmaps(
    stored: StoredFilter, block: int, walked: dict[str, list[str]]
) -> Operation[list[str]]:
    """Return the names of a block's bitmaps; all keys of its node are walked, once."""
    cursor, names = "0", list[str]()
    while True:
        arguments = (cursor, stored.keys.pattern)
        (reply,) = yield [Call(load("walk"), (stored.keys.ring(block),), arguments)]
        cursor, node = reply.version, reply.state
        names += reply.fields
        if node in walked or cursor == "0":
            break
    names = walked.get(node, names)
    if node:
        walked[node] = names
    return [name for name in dict.fromkeys(names) if stored.keys.is_bitmap(block, name)]


def note_windows(session: FilterSession, names: Sequence[str]) -> Operation[set[str]]:
    """Note the windows whose filters belong to this one; return all that were noted before."""
    yield from session.ensure_open()
    (reply,) = yield [session.header_call("", *names)]
    return {name.removeprefix(_WINDOW) for name in reply.fields if name.startswith(_WINDOW)}
