"""Saved filters as bytes: read as a whole, taken apart into frames, and damaged."""

import io
import random
from collections.abc import Iterator

from scrapy_bloom.bloom.extras.archive import ArchiveReader, Block
from scrapy_bloom.bloom.extras.frames import HEAD, MAGIC, SEAL
from scrapy_bloom.bloom.model.ring import Ring

#: What a saved filter holds: per block its ring, the counts, and the bytes of each layer.
Content = list[tuple[Ring, dict[str, int], list[bytes]]]


def read(data: bytes) -> Content:
    """Return what is in a file; what is void is not."""
    content: dict[int, tuple[Ring, dict[str, int], list[bytes]]] = {}
    for part in ArchiveReader(io.BytesIO(data)):
        if isinstance(part, Block):
            current = content[part.ring.block] = (part.ring, dict(part.counts), [])
        else:
            if part.offset == 0:
                current[2].append(b"")
            assert part.layer == current[0].layers[len(current[2]) - 1]
            assert part.offset == len(current[2][-1])
            assert part.data is None or len(part.data) == part.size
            current[2][-1] += part.data or bytes(part.size)
    return list(content.values())


def frames(data: bytes) -> list[tuple[int, int, int]]:
    """Return start, end and kind of the frames of a file."""
    found, at = [], len(MAGIC) + 1
    while at < len(data):
        kind, length = HEAD.unpack_from(data, at)
        end = at + HEAD.size + length + SEAL
        found.append((at, end, kind))
        at = end
    return found


def damages(data: bytes, count: int) -> Iterator[tuple[str, bytes]]:
    """Yield so many damaged copies of a file, and what was done to each."""
    dice = random.Random(4)
    parts = [data[start:end] for start, end, _ in frames(data)]
    head = data[: len(MAGIC) + 1]
    kinds = ["cut", "flip", "insert", "delete", "wipe", "double", "drop", "swap", "append", "noise"]
    for number in range(count):
        kind, at = kinds[number % len(kinds)], dice.randrange(len(data))
        one, two = sorted(dice.sample(range(len(parts)), 2))
        if kind == "cut":
            yield kind, data[:at]
        elif kind == "flip":
            yield kind, data[:at] + bytes([data[at] ^ dice.randrange(1, 256)]) + data[at + 1 :]
        elif kind == "insert":
            yield kind, data[:at] + dice.randbytes(dice.randrange(1, 40)) + data[at:]
        elif kind == "delete":
            yield kind, data[:at] + data[at + dice.randrange(1, 40) :]
        elif kind == "wipe":
            wiped = data[:at] + bytes(len(data[at : at + 600])) + data[at + 600 :]
            if wiped != data:
                yield kind, wiped
        elif kind == "double":
            yield kind, head + b"".join([*parts[:one], parts[one], *parts[one:]])
        elif kind == "drop":
            yield kind, head + b"".join(parts[:one] + parts[one + 1 :])
        elif kind == "swap":
            moved = [*parts[:one], parts[two], *parts[one + 1 : two], parts[one], *parts[two + 1 :]]
            yield kind, head + b"".join(moved)
        elif kind == "append":
            yield kind, data + dice.choice([b"\0", parts[one], data])
        else:
            yield kind, dice.choice([b"", head]) + dice.randbytes(dice.randrange(3_000))
