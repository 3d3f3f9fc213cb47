"""Reads the bitmaps of filters in chunks, and installs a filter under a free key. No I/O."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from scrapy_bloom.bloom.errors import ConfigurationError, FilterMismatchError
from scrapy_bloom.bloom.model.bitmap import Bitmap
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.spec import FIXED, Spec
from scrapy_bloom.bloom.protocol import whole
from scrapy_bloom.bloom.protocol.rings import Operation, outlives
from scrapy_bloom.bloom.protocol.scripts import Call, call
from scrapy_bloom.bloom.protocol.session import Session

#: Bytes read or written in one command, which takes 0.1 ms of the server's time.
CHUNK_BYTES = 256 << 10
#: Seconds that a bitmap lasts while its filter isn't installed yet.
INSTALL_SECONDS = 86_400

#: Returns a chunk of a bitmap: its first byte, and how many.
ReadChunk = Callable[[Ring, Bitmap, int, int], Operation[bytes]]


def rings_of(session: Session, *, tested: bool = False) -> Operation[list[Ring]]:
    """Return all rings of a filter as they are now, perhaps only with the bitmaps that are tested.

    Block 0 comes last, because it makes a filter of the blocks when they are installed.

    Raises:
        ConfigurationError: there is no such filter.
    """
    if (yield from session.find()) is None:
        raise ConfigurationError(f"There is no filter {session.keys.prefix!r}. Check the `key`")
    views = yield from whole.read(session)
    rings = [one.ring.with_bitmaps(one.tested) if tested else one.ring for one in views.values()]
    return sorted(rings, key=lambda ring: -ring.block)


def spans(bitmap: Bitmap) -> Iterator[tuple[int, int]]:
    """Yield the first byte and the length of each chunk of a bitmap."""
    for start in range(0, bitmap.memory, CHUNK_BYTES):
        yield start, min(CHUNK_BYTES, bitmap.memory - start)


def read_from(sessions: Sequence[Session], merge: Callable[[list[bytes]], bytes]) -> ReadChunk:
    """Return a reader that merges the chunks of filters. A bitmap that's missing is empty.

    Bits are only ever set, so there are at least as many as the counts that were read before.
    """

    def read(ring: Ring, bitmap: Bitmap, start: int, size: int) -> Operation[bytes]:
        keys = [one.keys.bitmap(ring.window, ring.block, bitmap.name) for one in sessions]
        replies = yield [Call(key, ("GETRANGE", key, start, start + size - 1)) for key in keys]
        return merge([bytes(reply.data).ljust(size, b"\0") for reply in replies])

    return read


def install(
    session: Session,
    spec: Spec,
    rings: Sequence[Ring],
    read: ReadChunk,
    count: Callable[[Ring, Bitmap, int], int],
) -> Operation[None]:
    """Write a filter under a free key: all bitmaps, and then the rings, which make it one.

    Args:
        session: of the filter to be.
        spec: what it's made with.
        rings: its rings, that of block 0 last.
        read: returns its bitmaps, chunk by chunk.
        count: returns how many URLs a bitmap has, from its number of bits that are 1.

    Raises:
        ConfigurationError: the key is in use.
    """
    if (yield from session.find()) is not None:
        raise in_use(session)
    part, installed = f"load-{secrets.token_hex(8)}:", []
    try:
        for ring in rings:
            counts = {}
            for bitmap in ring.bitmaps:
                key = _key(session, ring, bitmap, part)
                counts[bitmap.name] = count(
                    ring, bitmap, (yield from _write(key, ring, bitmap, read))
                )
            installed.append(replace(ring, counts=counts))
        yield from _install(session, part, spec, installed)
    except Exception:
        keys = [_key(session, ring, bitmap, part) for ring in rings for bitmap in ring.bitmaps]
        yield [Call(key, ("UNLINK", key)) for key in keys]
        raise


def _install(session: Session, part: str, spec: Spec, rings: Sequence[Ring]) -> Operation[None]:
    """Make each block's rings of bitmaps that are there, in one step."""
    spec, version = replace(spec, id=secrets.token_hex(16)), secrets.token_hex(8)
    for block, own in groupby(rings, key=lambda ring: ring.block):
        fields, keys, expires = {"id": spec.id, "spec": spec.dump()}, list[str](), list[int]()
        for ring in own:
            fields |= {f"v:{ring.window}": version, **ring.fields}
            for bitmap in ring.bitmaps:
                keys += [_key(session, ring, bitmap, part), _key(session, ring, bitmap)]
                expires.append(bitmap.key_expires)
        words = [word for pair in fields.items() for word in pair]
        keys = [session.keys.ring(block), *keys]
        (answer,) = yield [call("install", keys, *expires, *words, expires=outlives(expires))]
        if version not in answer.fields.values():
            raise in_use(session)


def _key(session: Session, ring: Ring, bitmap: Bitmap, part: str = "") -> str:
    """Return the key of a bitmap, or of what is to become it."""
    return session.keys.bitmap(f"{part}{ring.window}", ring.block, bitmap.name)


def _write(key: str, ring: Ring, bitmap: Bitmap, read: ReadChunk) -> Operation[int]:
    """Write a bitmap under a key; return how many of its bits are 1."""
    ones = 0
    yield [
        Call(key, ("SETRANGE", key, bitmap.memory - 1, b"\0")),  # allocates it at its final size
        Call(key, ("EXPIRE", key, INSTALL_SECONDS)),
    ]
    for start, size in spans(bitmap):
        chunk = yield from read(ring, bitmap, start, size)
        bits = int.from_bytes(chunk, "little").bit_count()
        if bits:
            yield [Call(key, ("SETRANGE", key, start, chunk))]
        ones += bits
    return ones


def in_use(session: Session) -> ConfigurationError:
    """Return the error for a key that isn't free."""
    return ConfigurationError(
        f"The `key` {session.keys.prefix!r} is in use. Choose another one, or delete its filter"
    )


def check_equal(one: Session, two: Session, rings: Sequence[Sequence[Ring]]) -> None:
    """Check that two filters have the same geometry.

    Raises:
        FilterMismatchError: they place items differently, or their bitmaps have other sizes.
    """
    for name in FIXED:
        if getattr(one.known, name) != getattr(two.known, name):
            raise FilterMismatchError(
                f"The filters {one.keys.prefix!r} and {two.keys.prefix!r} have different {name}. "
                "Create one of them with the seeds and options of the other"
            )
    if one.known.counting or not one.known.tests_all:
        # Blocks that one of them has rarely used have other oldest generations.
        raise FilterMismatchError(
            "A filter with `counting` or `ring` = 'write-all' can be copied, but not combined"
        )
    sizes: dict[tuple[str, int, str], int] = {}
    for ring in (ring for own in rings for ring in own):
        for bitmap in ring.bitmaps:
            place = ring.window, ring.block, bitmap.name
            if sizes.setdefault(place, bitmap.bits) != bitmap.bits:
                raise FilterMismatchError(
                    f"The filters {one.keys.prefix!r} and {two.keys.prefix!r} have bitmaps of "
                    "different sizes, because one has grown or has another capacity"
                )
