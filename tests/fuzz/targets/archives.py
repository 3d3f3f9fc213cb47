"""Saved filters: read within bounds, or refused."""

import gzip
import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from fuzz.mutate import json_text, lines
from fuzz.target import Target
from fuzz.targets.rings import NOW, rings
from scrapy_bloom.bloom.errors import ArchiveError
from scrapy_bloom.bloom.extras.file import ArchiveReader, ArchiveWriter
from scrapy_bloom.bloom.model.generations import Counts
from scrapy_bloom.bloom.model.header import Header
from scrapy_bloom.bloom.model.ring import Ring

#: Bytes of all bitmaps that the target lets a file have.
MAX_MEMORY = 1 << 20
#: Of each block its ring, the counts, and pieces of its bitmaps.
Blocks = list[tuple[Ring, Counts, list[bytes]]]
GZIP = b"\x1f\x8b"


def run(data: bytes) -> None:
    """Read a file; one that does not begin as gzip does is packed first."""
    if not data.startswith(GZIP):
        data = gzip.compress(data, 1, mtime=0)
    try:
        reader = ArchiveReader(io.BytesIO(data), MAX_MEMORY)
        blocks = read(reader)
    except ArchiveError:
        return
    assert sum(len(piece) for *_, pieces in blocks for piece in pieces) <= MAX_MEMORY
    again = ArchiveReader(io.BytesIO(write(reader.header, reader.memory, blocks)), MAX_MEMORY)
    assert again.header == reader.header
    assert read(again) == blocks


def read(reader: ArchiveReader) -> Blocks:
    return [(ring, counts, [chunk.data for chunk in chunks]) for ring, counts, chunks in reader]


def write(header: Header, memory: int, blocks: Blocks) -> bytes:
    """Return a file, written by the product's own writer."""
    file = io.BytesIO()
    writer = ArchiveWriter(file)
    writer.begin(header, NOW, memory)
    for ring, counts, pieces in blocks:
        writer.block(ring, counts)
        for piece in pieces:
            writer.chunk(piece)
    writer.end()
    return file.getvalue()


def _seeds() -> Iterator[bytes]:
    whole = [saved(number) for number in range(6)]
    yield from whole
    yield from (gzip.decompress(data) for data in whole)
    yield whole[0][:-9]
    first, ring, _ = gzip.decompress(whole[0]).split(b"\n", 2)
    # Sizes that are claimed, and not there; a line that never ends; what unpacks to far more.
    for header, state in (
        (json.dumps({**json.loads(first), "memory": 1 << 60}).encode(), ring),
        (first, re.sub(rb'(num_bits\\":)\d+', rb"\g<1>%d" % (1 << 60), ring)),
        (first, b"[" * 100_000),
    ):
        yield header + b"\n" + state + b"\n"
    yield bomb(b" ")
    yield bomb(first + b"\n" + ring + b"\n")


@cache
def bomb(begin: bytes) -> bytes:
    """Return a file that unpacks to 64 MiB of NUL bytes."""
    return gzip.compress(begin + bytes(1 << 26), 1)


@cache
def saved(number: int) -> bytes:
    """Return a filter of one block, of two or of four."""
    ring = rings()[number * 3]
    header = replace(ring.header, blocks=(1, 2, 4)[number % 3])
    counts = {layer.name: layer.capacity // 2 for layer in ring.layers}
    bitmaps = [b"\x10" * layer.memory for layer in ring.layers]
    blocks = [replace(ring, header=header, block=block) for block in range(header.blocks)]
    return write(header, ring.memory * header.blocks, [(one, counts, bitmaps) for one in blocks])


TARGET = Target(run, _seeds, lines(json_text), max_length=70_000)
