"""Saved filters as bytes: read as a whole, and damaged."""

import io
import random
from collections.abc import Iterator

from scrapy_bloom.bloom.extras.file import ArchiveReader
from scrapy_bloom.bloom.model.ring import Ring

#: What a saved filter holds: per block its ring, the counts, and the bytes of each layer.
Content = list[tuple[Ring, dict[str, int], list[bytes]]]
#: Bytes of gzip's header that mean nothing to a reader, and the first one behind them.
FIRST_USED = 10


def read(data: bytes) -> Content:
    """Return what is in a file."""
    content: Content = []
    for ring, counts, chunks in ArchiveReader(io.BytesIO(data)):
        bitmaps: list[bytes] = []
        for layer, offset, part in chunks:
            if offset == 0:
                bitmaps.append(b"")
            assert layer == ring.layers[len(bitmaps) - 1]
            assert offset == len(bitmaps[-1])
            bitmaps[-1] += part
        content.append((ring, dict(counts), bitmaps))
    return content


def damages(data: bytes, count: int) -> Iterator[tuple[str, bytes]]:
    """Yield so many damaged copies of a file, and what was done to each."""
    dice = random.Random(4)
    kinds = ["cut", "flip", "insert", "delete", "wipe", "double", "swap", "append", "noise"]
    for number in range(count):
        kind = kinds[number % len(kinds)]
        one, two, three = sorted(dice.sample(range(FIRST_USED, len(data)), 3))
        if kind == "cut":
            damaged = data[:one]
        elif kind == "flip":
            damaged = data[:one] + bytes([data[one] ^ dice.randrange(1, 256)]) + data[one + 1 :]
        elif kind == "insert":
            damaged = data[:one] + dice.randbytes(dice.randrange(1, 40)) + data[one:]
        elif kind == "delete":
            damaged = data[:one] + data[one + dice.randrange(1, 40) :]
        elif kind == "wipe":
            damaged = data[:one] + bytes(len(data[one : one + 600])) + data[one + 600 :]
        elif kind == "double":
            damaged = data[:two] + data[one:]
        elif kind == "swap":
            damaged = data[:one] + data[two:three] + data[one:two] + data[three:]
        elif kind == "append":
            damaged = data + dice.choice([b"\1", data[one:], data])
        else:
            damaged = dice.choice([b"", data[:FIRST_USED]]) + dice.randbytes(dice.randrange(3_000))
        if damaged != data:
            yield kind, damaged
