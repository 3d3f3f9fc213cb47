"""Saved filters as bytes: what is written is read back, and anything else is refused, in bounds."""

import gzip
import io
import json
import random
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from support.archives import Content, damages, read

from scrapy_bloom.bloom.errors import ArchiveError
from scrapy_bloom.bloom.extras import file
from scrapy_bloom.bloom.extras.file import (
    CHUNK_BYTES,
    MAX_LAYERS,
    VERSION,
    ArchiveReader,
    ArchiveWriter,
    spans,
)
from scrapy_bloom.bloom.model import ring_codec
from scrapy_bloom.bloom.model.generations import Config, Generation, Layer
from scrapy_bloom.bloom.model.header import Header
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.schedule import Schedule, parse_span
from scrapy_bloom.bloom.validators import MAX_CAPACITY

NOW = 1_700_000_000
FILTER = Header(id="0123456789abcdef" * 2, blocks=3, seeds=(5, 7, 11))
CONFIG = Config(
    1_000, 1e-3, Schedule.of(parse_span("window", "3 days"), parse_span("period", "1 day"))
)
#: Bytes of the layers of a block: several chunks, less than one, one, and a byte more.
SIZES = (2 * CHUNK_BYTES + 5_000, 700, CHUNK_BYTES, CHUNK_BYTES + 1)
#: Bytes that reading may take, whatever the file: some chunks.
BOUND = 12 * CHUNK_BYTES


def ring_of(block: int, sizes: tuple[int, ...] = SIZES, header: Header = FILTER) -> Ring:
    """Return a ring with layers of so many bytes, all but the first in an older generation."""
    young = (Layer(8, 0, 8 * sizes[0], 500),)
    old = tuple(Layer(7, i, 8 * size - 3, 500) for i, size in enumerate(sizes[1:]))
    generations = (Generation(8, NOW, NOW, 0, young), Generation(7, NOW - 9, NOW - 9, 0, old))
    return Ring(header, CONFIG, block, generations if old else generations[:1], changed=NOW)


def example() -> Content:
    """Return a filter with bitmaps of all kinds: full, sparse, empty."""
    makers = (random.Random(1).randbytes, lambda size: bytes(size - 1) + b"\1", bytes)
    content: Content = []
    for block, make in enumerate(makers):
        ring = ring_of(block, SIZES if block < 2 else SIZES[:1])
        bitmaps = [make(layer.memory) for layer in ring.layers]
        content.append((ring, {layer.name: 9 * block for layer in ring.layers}, bitmaps))
    return content


class Pipe(io.BytesIO):
    """Gives and takes little at a time."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(min(size or 0, 10_000))

    def write(self, data: Any) -> int:
        return super().write(data[:10_000])


def write(content: Content, header: Header = FILTER) -> bytes:
    target = Pipe()
    writer = ArchiveWriter(target)
    writer.begin(header, NOW, sum(ring.memory for ring, _, _ in content))
    for ring, counts, bitmaps in content:
        writer.block(ring, counts)
        for layer, data in zip(ring.layers, bitmaps, strict=True):
            for offset, size in spans(layer):
                writer.chunk(data[offset : offset + size])
    writer.end()
    assert writer.size == len(target.getvalue())
    return target.getvalue()


def packed(*parts: bytes) -> bytes:
    """Return a file of such parts, with the checksum that belongs to them; the same at any time."""
    return gzip.compress(b"".join(parts), mtime=0)


def drain(data: bytes, **options: int) -> int:
    """Read a file without keeping anything; return the blocks and chunks in it."""
    reader = ArchiveReader(Pipe(data), **options)
    return sum(1 + sum(1 for _ in block.chunks) for block in reader)


# -- round trips --


def test_what_is_written_is_read_back() -> None:
    content = example()
    data = write(content)
    assert read(data) == content
    assert gzip.decompress(data).startswith(b'{"scrapy_bloom":1,"header":{')


# -- damage --


def test_damaged_files_are_refused_with_the_reason_and_in_bounded_memory() -> None:
    data, count = write(example()), 100
    drain(data)
    refused = 0
    tracemalloc.start()
    for kind, damaged in damages(data, count):
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        with pytest.raises(ArchiveError, match=r"^the file cannot be loaded: at byte [\d,]+ "):
            drain(damaged)
        assert tracemalloc.get_traced_memory()[1] - before < BOUND, kind
        refused += 1
    tracemalloc.stop()
    assert refused > 0.9 * count


def test_the_error_says_where_and_what() -> None:
    for data, reason in (
        (b"", r"at byte 0 \(unpacked\), the file ends in the middle, or it is no saved filter"),
        (b"PK\3\4" + bytes(100), r"at byte 0 .*it is damaged or no saved filter: Not a gzipped"),
        (packed(b"no filter\n"), "not usable: Expecting value"),
        (packed(b'{"scrapy_bloom":2}\n'), f"not usable: .*version = {VERSION + 1}"),
    ):
        with pytest.raises(ArchiveError, match=reason):
            drain(data)


# -- files that are made to harm: their checksums are right --

ONE = replace(FILTER, blocks=1)
ONE_RING = ring_of(0, (100,), ONE)


def header_line(**changes: Any) -> bytes:
    value = {"scrapy_bloom": 1, "header": ONE.to_fields(), "saved": NOW, "memory": 100, **changes}
    return json.dumps(value).encode() + b"\n"


def ring_line(of: Ring = ONE_RING, **changes: Any) -> bytes:
    counts = {layer.name: 1 for layer in of.layers}
    value = {"ring": ring_codec.dump(of), "counts": counts, **changes}
    return json.dumps(value).encode() + b"\n"


#: The filter, its block and the block's bitmap.
GOOD = [header_line(), ring_line(), bytes(100)]


def without(place: int, *instead: bytes) -> bytes:
    return packed(*GOOD[:place], *instead, *GOOD[place + 1 :])


def test_secrets_are_in_no_error() -> None:
    fields = {**ONE.to_fields(), "seeds": "[987654321, 987654321]"}
    with pytest.raises(ArchiveError) as caught:
        drain(without(0, header_line(header=fields)))
    assert "987654321" not in str(caught.value)
    other = replace(ONE_RING, header=replace(ONE, seeds=(987654321,)))
    with pytest.raises(ArchiveError) as caught:
        drain(without(1, ring_line(other)))
    assert "987654321" not in str(caught.value)


@pytest.mark.parametrize(
    "ring",
    [
        {"ring": ring_codec.dump(replace(ONE_RING, header=replace(ONE, id="1" * 32)))},
        {"ring": ring_codec.dump(replace(ONE_RING, header=replace(FILTER, blocks=2), block=1))},
        {"ring": ring_codec.dump(ONE_RING).replace('"num_bits":800', f'"num_bits":{2**32 + 1}')},
        {"ring": ring_codec.dump(replace(ONE_RING, generations=ONE_RING.generations * 2))},
        {"counts": {"8.0": MAX_CAPACITY + 1}},
        {"ring": ring_codec.dump(ONE_RING).replace('"capacity":1000', f'"capacity":{2**62}')},
        {"counts": {"8.0": 1, "9.0": 1}},
    ],
)
def test_a_forged_ring_is_refused(ring: dict[str, Any]) -> None:
    with pytest.raises(ArchiveError, match="block 0 is not usable: "):
        drain(without(1, ring_line(**ring)))


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        (GOOD[1:], "not usable: 'scrapy_bloom'"),
        ([*GOOD[:2], bytes(99)], "the file ends in the middle"),
        ([GOOD[0], GOOD[2], b"\n"], "block 0 is not usable"),
        ([*GOOD, bytes(1)], "more than the filter's blocks"),
        ([*GOOD, GOOD[1], GOOD[2]], "more than the filter's blocks"),
    ],
)
def test_forged_parts_have_to_be_in_order(contents: list[bytes], reason: str) -> None:
    with pytest.raises(ArchiveError, match=reason):
        drain(packed(*contents))


def test_there_are_as_many_layers_as_a_reader_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_LAYERS == 262_144
    monkeypatch.setattr(file, "MAX_LAYERS", 5)
    header = replace(FILTER, blocks=6)
    contents = [header_line(header=header.to_fields())]
    for block in range(header.blocks):
        contents += [ring_line(ring_of(block, (1,), header)), bytes(1)]
    with pytest.raises(ArchiveError, match="the filter has 6 layers, and 5 are allowed"):
        drain(packed(*contents))


# -- files that are none --


def closed() -> io.BytesIO:
    target = io.BytesIO()
    target.close()
    return target


def test_a_file_that_cannot_be_used_is_an_error_of_ours() -> None:
    with pytest.raises(ArchiveError, match="cannot write the file: .*closed"):
        ArchiveWriter(closed()).begin(FILTER, NOW, 0)
    with pytest.raises(ArchiveError, match="cannot read the file: .*closed"):
        ArchiveReader(closed())


def test_memory_is_summed_over_blocks() -> None:
    content = example()
    total = sum(ring.memory for ring, _, _ in content)
    data = write(content)
    drain(data, max_memory=total)
    with pytest.raises(
        ArchiveError, match=rf"takes {total:,} bytes, and {total - 1:,} are allowed"
    ):
        ArchiveReader(io.BytesIO(data), max_memory=total - 1)
    liar = packed(header_line(memory=0), *GOOD[1:])
    drain(liar, max_memory=100)
    with pytest.raises(ArchiveError, match="takes 100 bytes, and 99 are allowed"):
        drain(liar, max_memory=99)
