"""Reads, clears and deletes all that is stored of a filter. No I/O."""

import secrets
from collections.abc import Iterator, Mapping, Sequence

from scrapy_bloom.bloom.model.ring import View
from scrapy_bloom.bloom.protocol.notes import noted, schedules_in
from scrapy_bloom.bloom.protocol.rings import (
    MAX_ROUNDS,
    MAX_WAVE_CALLS,
    Operation,
    Place,
    Rings,
    parts,
)
from scrapy_bloom.bloom.protocol.scripts import Call

#: Blocks that are changed in one round trip, because to free bitmaps takes the server time.
CHANGED_TOGETHER = 16


def read(rings: Rings) -> Operation[dict[Place, View]]:
    """Return all rings as they are now, also those of windows that only others use.

    It changes nothing. A ring whose generation isn't open yet has no written bitmaps.
    """
    spec = yield from rings.open()
    found: dict[Place, View] = {}
    for wave in parts(range(spec.blocks), MAX_WAVE_CALLS):
        replies = yield [rings.read_block(block) for block in wave]
        for block, reply in zip(wave, replies, strict=True):
            if reply.fields.get("id") != spec.id:
                continue
            rings.others |= schedules_in(reply.fields)
            for window in _windows_in(reply.fields):
                ring = rings.parse(window, block, reply)
                if ring.bitmaps:
                    found[window, block] = ring.view(spec, rings.schedule(window), reply.now)
    return found


def clear(rings: Rings, window: str) -> Operation[None]:
    """Forget everything in one window, which may be one that only others use."""
    spec = yield from rings.open()
    pending = [*range(spec.blocks)]
    for _ in range(MAX_ROUNDS):
        waves, pending = [*parts(pending, CHANGED_TOGETHER)], []
        for wave in waves:
            replies = yield [rings.read_block(block) for block in wave]
            calls, version = [], secrets.token_hex(8)
            for block, reply in zip(wave, replies, strict=True):
                rings.others |= schedules_in(reply.fields)
                ring = rings.parse(window, block, reply)
                every = [bitmap.name for bitmap in ring.bitmaps]
                if every:
                    changes = ring.changes(spec, rings.schedule(window), reply.now, every)
                    calls.append((block, rings.change(ring, changes, version=version)))
            answers = yield [one for _, one in calls]
            for (block, _), answer in zip(calls, answers, strict=True):
                if answer.fields.get(f"v:{window}") != version:
                    pending.append(block)
        if not pending:
            return
    raise rings.unstable()


def drop_claims(rings: Rings, spider: str) -> Operation[None]:
    """Delete all pending requests of a spider."""
    spec = rings.spec or (yield from rings.open())
    keys = [rings.keys.claims(spider, block) for block in range(spec.blocks)]
    yield [Call(key, ("UNLINK", key)) for key in keys]


def delete(rings: Rings) -> Operation[None]:
    """Delete all its keys, with pending requests, workers and shares."""
    spec = (yield from rings.find()) or rings.spec
    spiders, _ = yield from noted(rings)
    keys = rings.keys
    others = yield from _shares(rings, spiders)
    others += [keys.workers(spider) for spider in spiders]
    # Block 0 comes last, because it has the names.
    for wave in parts(reversed(range(spec.blocks if spec else 0)), CHANGED_TOGETHER):
        replies = yield [rings.read_block(block) for block in wave]
        calls = []
        for block, reply in zip(wave, replies, strict=True):
            names = [
                keys.bitmap(window, block, bitmap.name)
                for window in _windows_in(reply.fields)
                for bitmap in rings.parse(window, block, reply).bitmaps
            ]
            names += [keys.claims(spider, block) for spider in spiders]
            names += others if block == 0 else []
            key = keys.ring(block)
            calls.append(Call(key, ("UNLINK", *names, key)))
        yield calls
    rings.spec = None
    rings.views.clear()


def _windows_in(fields: Mapping[str, str]) -> Iterator[str]:
    return (name[2:] for name in fields if name.startswith("v:"))


def _shares(rings: Rings, spiders: Sequence[str]) -> Operation[list[str]]:
    """Return the keys of spiders' shares, and of what lists them."""
    names = [rings.keys.groups(spider) for spider in spiders]
    replies = (yield [Call(name, ("ZREVRANGE", name, 0, -1)) for name in names]) if names else []
    for spider, reply in zip(spiders, replies, strict=True):
        groups = [group.decode("utf-8", "replace") for group in reply.data]
        names += [rings.keys.shares(spider, group) for group in groups]
    return names
