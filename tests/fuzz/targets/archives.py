"""Saved filters: read within bounds, or refused."""

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from functools import cache

from fuzz.mutate import json_text, lines, within
from fuzz.target import Target
from fuzz.targets.rings import NOW, rings
from scrapy_bloom.bloom.errors import ArchiveError
from scrapy_bloom.bloom.extras.file import ArchiveReader, ArchiveWriter, Chunk
from scrapy_bloom.bloom.model import ring_codec
from scrapy_bloom.bloom.model.generations import Counts
from scrapy_bloom.bloom.model.ring import Ring

#: Bytes of all bitmaps that the target lets a file have.
MAX_MEMORY = 1 << 20
#: What was read of blocks.
Blocks = list[tuple[Ring, Counts, list[Chunk]]]
GZIP = b"\x1f\x8b"


def run(data: bytes) -> None:
    """Read a file; one that does not begin as gzip does is packed first."""
    if not data.startswith(GZIP):
        data = _pack(data)
    try:
        reader = ArchiveReader(io.BytesIO(data), MAX_MEMORY)
        blocks = read(reader)
    except ArchiveError:
        return
    assert sum(len(chunk.data) for *_, chunks in blocks for chunk in chunks) <= MAX_MEMORY
    again = ArchiveReader(io.BytesIO(write(reader, blocks)), MAX_MEMORY)
    assert again.header == reader.header
    assert read(again) == blocks


def read(reader: ArchiveReader) -> Blocks:
    return [(ring, counts, [*chunks]) for ring, counts, chunks in reader]


def write(reader: ArchiveReader, blocks: Blocks) -> bytes:
    """Return a file of what was read."""
    file = io.BytesIO()
    writer = ArchiveWriter(file)
    writer.begin(reader.header, reader.saved, reader.memory)
    for ring, counts, chunks in blocks:
        writer.block(ring, counts)
        for chunk in chunks:
            writer.chunk(chunk.data)
    writer.end()
    return file.getvalue()


def _seeds() -> Iterator[bytes]:
    whole = [saved(number) for number in range(6)]
    yield from whole
    yield from (gzip.decompress(data) for data in whole)
    yield whole[0][:-9]
    first, ring, _ = gzip.decompress(whole[0]).split(b"\n", 2)
    # Sizes that are claimed, and not there; a line that never ends; what unpacks to a gigabyte.
    head = json.loads(first)
    yield json.dumps({**head, "memory": 1 << 60}).encode() + b"\n" + ring + b"\n"
    huge = json.loads(ring)
    state = json.loads(huge["ring"])
    for layer in state["generations"][0]["layers"]:
        layer["num_bits"] = 1 << 60
    huge["ring"] = json.dumps(state)
    yield first + b"\n" + json.dumps(huge).encode() + b"\n"
    yield first + b"\n" + b"[" * 100_000 + b"\n"
    yield bomb(b" ", 1 << 26)
    yield bomb(first + b"\n" + ring + b"\n", 1 << 26)


@cache
def bomb(begin: bytes, size: int) -> bytes:
    """Return a file that unpacks to so many NUL bytes."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    piece = bytes(1 << 20)
    parts = [packer.compress(begin), *(packer.compress(piece) for _ in range(size >> 20))]
    return b"".join([*parts, packer.flush()])


@cache
def saved(number: int) -> bytes:
    """Return a filter of one block, of two or of four, saved by the product's own writer."""
    ring = rings()[number * 3]
    blocks = (1, 2, 4)[number % 3]
    header = ring.header.__class__.from_fields(ring.header.to_fields() | {"blocks": str(blocks)})
    file = io.BytesIO()
    writer = ArchiveWriter(file)
    writer.begin(header, NOW, ring.memory * blocks)
    for block in range(blocks):
        state = json.loads(ring_codec.dump(ring)) | {"header": header.to_fields(), "block": block}
        one = ring_codec.parse(json.dumps(state))
        writer.block(one, {layer.name: layer.capacity // 2 for layer in one.layers})
        for layer in one.layers:
            writer.chunk(b"\x10" * layer.memory)
    writer.end()
    return file.getvalue()


def _pack(data: bytes) -> bytes:
    return gzip.compress(data, 1, mtime=0)


def _unpack(data: bytes) -> bytes:
    """Return what is in a file, up to a mebibyte: mutations have to be small."""
    if not data.startswith(GZIP):
        return data
    return zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(data, 1 << 20)


TARGET = Target(
    run,
    _seeds,
    within(_unpack, lines(json_text), lambda data: data),
    max_length=70_000,
)
