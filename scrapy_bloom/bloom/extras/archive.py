"""The file that a filter is saved to: its content, frame by frame.

First comes the header. For each block follows its ring with its counts, then the layers of that
ring, each in chunks of 256 KiB; nothing but its place says where a chunk belongs. The last frame is
the end.
"""

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from scrapy_bloom.bloom import validators
from scrapy_bloom.bloom.errors import ArchiveError
from scrapy_bloom.bloom.extras.frames import FrameReader, FrameWriter
from scrapy_bloom.bloom.model import ring_codec
from scrapy_bloom.bloom.model.generations import Counts, Layer
from scrapy_bloom.bloom.model.header import Header, check, in_range
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.validators import MAX_CAPACITY

#: Bytes of a chunk: reading or writing one holds the server for 0.1 ms.
CHUNK_BYTES = 256 << 10
#: Chunks that are read or written in a round trip.
CHUNKS_PER_ROUND = 4
#: Kinds of frames.
HEADER, RING, RAW, DEFLATED, ZEROS, END = b"HRrdze"
#: Bytes of a frame's content at most, by kind.
LIMITS = {
    HEADER: CHUNK_BYTES,
    RING: CHUNK_BYTES,
    RAW: CHUNK_BYTES,
    DEFLATED: CHUNK_BYTES - 1,
    ZEROS: 0,
    END: 0,
}
#: Bytes of all bitmaps that a file may have unless its reader allows more.
MAX_MEMORY_BYTES = 4 << 30
#: Layers that a file may have: what is known of them is held in memory while it is loaded.
MAX_LAYERS = 1 << 18
#: Bytes of a chunk that are deflated first, and the share of them that it has to take less than.
_SAMPLE, _WORTH = 8 << 10, 0.95


@dataclass(frozen=True, slots=True)
class Block:
    """The beginning of a block in a file.

    Args:
        ring: its ring.
        counts: URLs in each of the ring's layers.
    """

    ring: Ring
    counts: Counts


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a layer of the last block.

    Args:
        layer: the layer.
        offset: where it begins, in bytes.
        size: its bytes.
        data: what they are; None where all are zero.
    """

    layer: Layer
    offset: int
    size: int
    data: bytes | None


def spans(layer: Layer, chunk: int | None = None) -> list[tuple[int, int]]:
    """Return offset and size of each chunk of a layer."""
    chunk = chunk or CHUNK_BYTES
    starts = range(0, layer.memory, chunk)
    return [(start, min(chunk, layer.memory - start)) for start in starts]


class ArchiveWriter:
    """Writes a filter to a binary file, which may be a pipe.

    Args:
        file: has ``write``. It is neither flushed nor closed.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._frames = FrameWriter(file)

    @property
    def size(self) -> int:
        """Bytes written."""
        return self._frames.size

    def begin(self, header: Header, saved: int, memory: int) -> None:
        """Write the header of the file.

        Args:
            header: its header.
            saved: the server's clock, Unix time in seconds.
            memory: bytes of all bitmaps, about: they may change while they are written.
        """
        self._frames.begin()
        self._text(HEADER, {"header": header.to_fields(), "saved": saved, "memory": memory})

    def block(self, ring: Ring, counts: Counts) -> None:
        """Write the beginning of a block.

        Raises:
            ArchiveError: it is described at more length than a file may hold.
        """
        self._text(RING, {"ring": ring_codec.dump(ring), "counts": dict(counts)})

    def chunk(self, data: bytes) -> None:
        """Write the next chunk of the block's next layer."""
        self._frames.frame(*_encode(data))

    def end(self) -> None:
        """Write the end."""
        self._frames.frame(END, b"")

    def _text(self, kind: int, value: dict[str, Any]) -> None:
        text = json.dumps(value, separators=(",", ":")).encode()
        if len(text) > LIMITS[kind]:
            raise ArchiveError(
                f"this filter cannot be saved: to describe a block takes {len(text):,} bytes, and "
                f"a file may hold {LIMITS[kind]:,}"
            )
        self._frames.frame(kind, text)


class ArchiveReader:
    """Reads a filter from a binary file, which may be a pipe, in bounded memory.

    Iterating over it yields its blocks, each followed by its chunks. Every length is checked before
    anything of that length is read. What was yielded before an error is of no use.

    Args:
        file: has ``read``; stands at the beginning of the saved filter, which ends with the file.
        max_memory: bytes of all bitmaps, at most; 0 for any, None for 4 GiB.

    Attributes:
        header: the filter's header.
        saved: the server's clock when it was saved, Unix time in seconds.
        memory: bytes of all bitmaps, about, for showing how far it is.

    Raises:
        ArchiveError: it is no saved filter, or of a version or a size that is not read.
        ConfigurationError: max_memory is no number of bytes.
    """

    def __init__(self, file: IO[bytes], max_memory: int | None = None) -> None:
        limit = (
            MAX_MEMORY_BYTES if max_memory is None else validators.memory("max_memory", max_memory)
        )
        self._max_memory = limit or validators.MAX_MEMORY_BYTES
        self._frames = FrameReader(file, LIMITS)
        kind, body = self._frames.next()
        try:
            check(kind == HEADER, "kind of the first frame", kind)
            value = json.loads(body)
            self.header = Header.from_fields(_texts(value["header"]))
            self.saved: int = _number("saved", value["saved"])
            self.memory: int = _number("memory", value["memory"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise self.error(f"the header is not usable: {error}") from None
        self._check_size(self.memory)

    def error(self, text: str) -> ArchiveError:
        """Return an error about what was read last."""
        return self._frames.error(text)

    def __iter__(self) -> Iterator[Block | Chunk]:
        """Yield blocks and chunks.

        Raises:
            ArchiveError: the file is damaged, or takes more memory than is allowed.
        """
        memory = layers = 0
        for number in range(self.header.blocks):
            block = self._block(number)
            memory, layers = memory + block.ring.memory, layers + len(block.ring.layers)
            self._check_size(memory, layers)
            yield block
            for layer in block.ring.layers:
                for offset, size in spans(layer):
                    yield Chunk(layer, offset, size, self._chunk(size))
        kind, _ = self._frames.next()
        if kind != END:
            raise self.error("there is more than the filter's blocks")
        self._frames.end()

    def _block(self, number: int) -> Block:
        kind, body = self._frames.next()
        try:
            check(kind == RING, "kind of a frame", kind)
            value = json.loads(body)
            ring, counts = ring_codec.parse(value["ring"]), value["counts"]
            check(ring.header == self.header, "header of the ring", ring.header)
            check(ring.block == number, "block", ring.block)
            check(in_range(ring.expiry, 0, ring_codec.MANY), "expiry", ring.expiry)
            check(isinstance(counts, dict), "counts", counts)
            check(counts.keys() == {layer.name for layer in ring.layers}, "counts", counts)
            check(ring.config.capacity <= MAX_CAPACITY, "capacity", ring.config.capacity)
            for layer in ring.layers:
                check(layer.capacity <= MAX_CAPACITY, "capacity", layer.capacity)
                _number("count", counts[layer.name], MAX_CAPACITY)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise self.error(f"block {number} is not usable: {error}") from None
        return Block(ring, counts)

    def _chunk(self, size: int) -> bytes | None:
        """Return the bytes of the next chunk; None if all are zero."""
        kind, body = self._frames.next()
        if kind == ZEROS:
            return None
        if kind == RAW and len(body) == size:
            return body
        if kind == DEFLATED:
            inflate = zlib.decompressobj()
            try:
                data = inflate.decompress(body, size + 1)
            except zlib.error as error:
                raise self.error(f"a chunk cannot be inflated: {error}") from None
            if len(data) == size and inflate.eof and not inflate.unused_data:
                return data
        raise self.error(f"there is no chunk of {size:,} bytes")

    def _check_size(self, memory: int, layers: int = 0) -> None:
        if memory > self._max_memory:
            raise self.error(
                f"the filter takes {memory:,} bytes, and {self._max_memory:,} are allowed: if you "
                "trust the file, raise max_memory (scrapy bloom import --max-memory)"
            )
        if layers > MAX_LAYERS:
            raise self.error(f"the filter has {layers:,} layers, and {MAX_LAYERS:,} are allowed")


def _encode(data: bytes) -> tuple[int, bytes]:
    """Return kind and content of the frame for a chunk."""
    if data.count(0) == len(data):
        return ZEROS, b""
    sample = data[:_SAMPLE]
    if len(_deflate(sample)) < _WORTH * len(sample):
        deflated = _deflate(data)
        if len(deflated) < len(data):
            return DEFLATED, deflated
    return RAW, data


def _deflate(data: bytes) -> bytes:
    # Bitmaps have runs of zeros and repeat nothing else: looking for those alone finds more than
    # the default strategy does, two to three times as fast.
    compressor = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, zlib.Z_RLE)
    return compressor.compress(data) + compressor.flush()


def _texts(value: Any) -> dict[str, str]:
    # Its seeds are secret: no error shows it.
    check(isinstance(value, dict), "type of the fields", type(value))
    check(all(isinstance(text, str) for text in value.values()), "type of a field", None)
    texts: dict[str, str] = value
    return texts


def _number(name: str, value: Any, most: int = ring_codec.MANY) -> int:
    check(in_range(value, 0, most), name, value)
    number: int = value
    return number
