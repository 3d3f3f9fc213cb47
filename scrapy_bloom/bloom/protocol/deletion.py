"""Deletes a filter and lists its keys, also if parts of it are lost. No I/O."""

from scrapy_bloom.bloom.errors import StorageError
from scrapy_bloom.bloom.model import ring_codec
from scrapy_bloom.bloom.model.header import parse_blocks
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.sizing import DEFAULT_BLOCKS
from scrapy_bloom.bloom.protocol.ring_store import MAX_RACES, Operation, StoredFilter
from scrapy_bloom.bloom.protocol.scripts import Call, load


def delete(stored: StoredFilter) -> Operation[bool]:
    """Delete a filter; return whether there was one."""
    blocks = yield from stored_blocks(stored)
    walked: dict[str, list[str]] = {}
    # Last the block that the header is with: until then, it can be deleted again.
    for block in reversed(range(blocks)):
        yield from _remove(stored, block, walked)
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
    except StorageError:
        return max(blocks, DEFAULT_BLOCKS)  # there is one, and it cannot be read
    # Where they disagree, what the larger number names is deleted too.
    return max(blocks, ring.header.blocks) if ring else blocks


def all_keys(stored: StoredFilter) -> Operation[list[str]]:
    """Return the keys that there are."""
    header = yield from stored.read_header("")
    keys = [stored.keys.header()] if header.status == "header" else []
    blocks = range((yield from stored_blocks(stored)))
    replies = (yield [stored.read_call(block) for block in blocks]) if blocks else []
    for block, reply in zip(blocks, replies, strict=True):
        if reply.state:
            ring = stored.parse(ring_codec.parse, reply.state, stored.keys.ring(block))
            keys += [stored.keys.ring(block), *_bitmaps(stored.keys, ring)]
        keys += [stored.keys.claims(block)] * (reply.fields.get("claims", "0") != "0")
    return keys


def _remove(stored: StoredFilter, block: int, walked: dict[str, list[str]]) -> Operation[None]:
    """Delete all keys of a block that exist at one moment, its ring last.

    Clients that have the filter open create it again, empty, at once; that stays.

    Args:
        stored: the filter.
        block: the block.
        walked: names of the filter's keys, by node, as far as they were looked for.
    """
    ring_key = stored.keys.ring(block)
    for _ in range(MAX_RACES):
        (reply,) = yield [stored.read_call(block)]
        keys = [stored.keys.claims(block)]
        if block == 0:
            keys += [stored.keys.workers(), stored.keys.header()]
        try:
            kept = _bitmaps(stored.keys, ring_codec.parse(reply.state))
        except ValueError:  # no ring, or a damaged one: find the bitmaps by their names
            kept = yield from _find_bitmaps(stored, block, walked)
        keys = [*kept, *keys]
        for key in (*keys, ring_key):
            (done,) = yield [Call(load("drop"), (ring_key, key), (reply.version,))]
            if done.verdicts != "1":
                break  # it has changed since
        else:
            return
    raise stored.unstable(MAX_RACES)


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


def _bitmaps(keys: Keys, ring: Ring) -> list[str]:
    """Return the keys of a ring's bitmaps."""
    return [keys.layer(ring.block, layer.name) for layer in ring.layers]
