"""Saves filters to files while they are in use, and loads them under a free key.

A file is gzip, so that damage is noticed and empty bitmaps shrink. It has a line of JSON with the
spec and all rings, and then the bitmaps in their order. The rings say how long they are.
"""

import gzip
import json
import os
import secrets
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from scrapy_bloom.bloom.errors import ArchiveError, BloomError
from scrapy_bloom.bloom.extras.bitmaps import install, read_from, rings_of, spans
from scrapy_bloom.bloom.model.bitmap import Bitmap
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.spec import Spec
from scrapy_bloom.bloom.protocol.rings import Operation
from scrapy_bloom.bloom.protocol.session import Session

Path = str | os.PathLike[str]
#: What a file that isn't a saved filter raises in gzip, json, or here.
_DAMAGED = (
    *(OSError, EOFError, zlib.error, RecursionError),
    *(ValueError, TypeError, KeyError, AttributeError),
)
#: Bytes of the line with the rings, at most.
MAX_LINE_BYTES = 64 << 20


def save(path: Path, session: Session) -> Operation[None]:
    """Write a filter to a file, which gets its name when it's whole.

    Raises:
        ArchiveError: it can't be written.
    """
    rings = yield from rings_of(session)
    read = read_from([session], b"".join)
    with _writing(path) as file:
        stored = [{"window": one.window, "block": one.block, "fields": one.fields} for one in rings]
        line = {"spec": session.known.dump(), "rings": stored}
        file.write(json.dumps(line).encode() + b"\n")
        for ring in rings:
            for bitmap in ring.bitmaps:
                for start, size in spans(bitmap):
                    chunk = yield from read(ring, bitmap, start, size)
                    file.write(chunk)


def load(path: Path, session: Session, max_memory: int) -> Operation[None]:
    """Install a filter from a file, trusting nothing that it says.

    Raises:
        ArchiveError: it isn't a saved filter, is damaged, or takes more memory than is allowed.
        ConfigurationError: the key is in use.
    """
    with _reading(path) as file:
        spec, rings = _parse(file.readline(MAX_LINE_BYTES), max_memory)

        def read(ring: Ring, bitmap: Bitmap, start: int, size: int) -> Operation[bytes]:
            chunk = file.read(size)
            is_last = (ring, bitmap) == (rings[-1], rings[-1].bitmaps[-1])
            is_end = is_last and start + size == bitmap.memory
            if len(chunk) < size or (is_end and file.read(1)):
                raise ValueError("it has another length than its bitmaps")
            yield []
            return chunk

        yield from install(session, spec, rings, read, lambda ring, one, _: ring.counts[one.name])


def _parse(line: bytes, max_memory: int) -> tuple[Spec, list[Ring]]:
    """Read the line with the rings.

    Raises:
        ValueError: it asks for too much memory, or isn't one (or another of ``_DAMAGED``).
    """
    stored = json.loads(line)
    spec = Spec.parse(stored["spec"])
    rings = [Ring.parse(one["window"], one["block"], one["fields"]) for one in stored["rings"]]
    blocks = [ring.block for ring in rings]
    if not rings or blocks != sorted(blocks, reverse=True) or blocks[-1] != 0:
        raise ValueError("it has no shard 0")
    if {type(block) for block in blocks} != {int} or blocks[0] >= spec.blocks:
        raise ValueError("it has shards that its filter doesn't have")
    if len({(ring.window, ring.block) for ring in rings}) < len(rings):
        raise ValueError("it has a shard twice")
    bitmaps = [bitmap for ring in rings for bitmap in ring.bitmaps]
    if not all(ring.bitmaps for ring in rings):
        raise ValueError("it has a shard without bitmaps")
    if any(bitmap.width != spec.width for bitmap in bitmaps):
        raise ValueError("it has bitmaps of another kind")
    if sum(bitmap.memory for bitmap in bitmaps) > max_memory:
        raise ValueError(f"its bitmaps take more than {max_memory:,} bytes")
    return spec, rings


@contextmanager
def _reading(path: Path) -> Iterator[IO[bytes]]:
    try:
        with gzip.open(path) as file:
            yield file  # type: ignore[misc]
    except BloomError:
        raise
    except _DAMAGED as error:
        raise ArchiveError(f"The file {path!s} can't be loaded, because {error}") from error


@contextmanager
def _writing(path: Path) -> Iterator[IO[bytes]]:
    part = f"{os.fspath(path)}.{secrets.token_hex(4)}.part"
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as raw:
            with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1) as file:
                yield file  # type: ignore[misc]
            raw.flush()
            os.fsync(raw.fileno())
        os.replace(part, path)  # noqa: PTH105 - of two texts
    except OSError as error:
        raise ArchiveError(f"The file {path!s} can't be written, because {error}") from error
    finally:
        if os.path.exists(part):  # noqa: PTH110 - of a text
            os.unlink(part)  # noqa: PTH108 - of a text
