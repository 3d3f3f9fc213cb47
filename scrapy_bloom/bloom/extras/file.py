"""The file that a filter is saved to: gzip, so that damage is noticed and sparse bitmaps shrink.

A line of JSON describes the filter. For each block follow a line that describes its ring, with the
counts, and the bitmaps of the ring's layers. No length is read: the ring says how long they are.
"""

import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any, NamedTuple

from scrapy_bloom.bloom import validators
from scrapy_bloom.bloom.errors import ArchiveError, ConfigurationError, shown
from scrapy_bloom.bloom.model import ring_codec
from scrapy_bloom.bloom.model.generations import Counts, Layer
from scrapy_bloom.bloom.model.header import Header, check, in_range, stored_int
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.validators import MAX_CAPACITY

#: A path, or a file that is open in binary mode.
PathOrFile = str | os.PathLike[str] | IO[bytes]

#: Version of the format.
VERSION = 1
#: Bytes of a chunk: reading or writing one holds the server for 0.1 ms.
CHUNK_BYTES = 256 << 10
#: Chunks that are read or written in a round trip.
CHUNKS_PER_ROUND = 4
#: Bytes of a line at most.
MAX_LINE_BYTES = 256 << 10
#: Bytes of all bitmaps that a file may have unless its reader allows more.
MAX_MEMORY_BYTES = 4 << 30
#: Layers that a file may have: their descriptions are in memory while it is loaded.
MAX_LAYERS = 1 << 18
#: zlib's parameter for the format of gzip.
_GZIP = 16 + zlib.MAX_WBITS
#: Errors of values that are not as they were written.
_UNUSABLE = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


class Chunk(NamedTuple):
    """A part of a layer: its bytes, and at which byte of the layer they begin."""

    layer: Layer
    offset: int
    data: bytes


class Block(NamedTuple):
    """A block: its ring, the URLs in each of its layers, and the chunks of these.

    The chunks of a block in a file are there until the next block is read.
    """

    ring: Ring
    counts: Counts
    chunks: Iterator[Chunk]


def spans(layer: Layer) -> list[tuple[int, int]]:
    """Return offset and size of each chunk of a layer."""
    starts = range(0, layer.memory, CHUNK_BYTES)
    return [(start, min(CHUNK_BYTES, layer.memory - start)) for start in starts]


class ArchiveWriter:
    """Writes a filter to a binary file, which may be a pipe.

    Args:
        file: has ``write``. It is neither flushed nor closed.

    Attributes:
        size: bytes written.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        # Bitmaps have runs of zeros and repeat nothing else. To look for those alone finds more
        # than the default strategy does, two to three times as fast.
        self._packer = zlib.compressobj(1, zlib.DEFLATED, _GZIP, zlib.DEF_MEM_LEVEL, zlib.Z_RLE)
        self.size = 0

    def begin(self, header: Header, saved: int, memory: int) -> None:
        """Write the filter's header, the server's clock, and about how many bytes will follow."""
        fields = {"header": header.to_fields(), "saved": saved, "memory": memory}
        self._line({"scrapy_bloom": VERSION, **fields})

    def block(self, ring: Ring, counts: Counts) -> None:
        """Write the beginning of a block."""
        self._line({"ring": ring_codec.dump(ring), "counts": dict(counts)})

    def chunk(self, data: bytes) -> None:
        """Write the next chunk of the block's next layer."""
        self._write(self._packer.compress(data))

    def end(self) -> None:
        """Write the end."""
        self._write(self._packer.flush())

    def _line(self, value: Mapping[str, Any]) -> None:
        text = json.dumps(value, separators=(",", ":")).encode() + b"\n"
        if len(text) > MAX_LINE_BYTES:
            raise ArchiveError(
                f"this filter cannot be saved: a block's description takes {len(text):,} bytes, "
                f"and a file may hold {MAX_LINE_BYTES:,}"
            )
        self._write(self._packer.compress(text))

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                # A file without a buffer may take a part only.
                written = self._file.write(rest)
                rest = rest[len(rest) if written is None else written :]
        except (OSError, ValueError) as error:  # it is closed, or cannot be written
            raise ArchiveError(f"cannot write {_name(self._file)}: {error}") from error
        except TypeError:
            raise ConfigurationError(
                f"{_name(self._file)} is a text file: open it in binary mode ('wb')"
            ) from None
        self.size += len(data)


class ArchiveReader:
    """Reads a filter from a binary file, which may be a pipe, in bounded memory.

    Iterating over it yields its blocks. Whether the file is damaged is known at its end only, so
    everything that was yielded before an error is of no use.

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
        self._name = _name(file)
        self._file = gzip.GzipFile(fileobj=file, mode="rb")
        line = self._line()
        try:
            value = json.loads(line)
            check(value["scrapy_bloom"] == VERSION, "version", value["scrapy_bloom"])
            fields = value["header"]
            # Its seeds are secret: no error shows it.
            check(all(isinstance(text, str) for text in fields.values()), "type of a field", None)
            self.header = Header.from_fields(fields)
            self.saved = stored_int(value, "saved", 0, ring_codec.MANY)
            self.memory = stored_int(value, "memory", 0, ring_codec.MANY)
        except _UNUSABLE as error:
            raise self._error(f"it is no saved filter, or not usable: {error}") from None
        self._check_size(self.memory)

    def __iter__(self) -> Iterator[Block]:
        """Yield the blocks; damage is an ArchiveError."""
        memory = layers = 0
        for number in range(self.header.blocks):
            block = self._block(number)
            memory, layers = memory + block.ring.memory, layers + len(block.ring.layers)
            self._check_size(memory, layers)
            yield block
            for _ in block.chunks:
                pass
        # Only at the end does gzip compare the checksum.
        if self._read(self._file.read, 1):
            raise self._error("there is more than the filter's blocks")

    def _block(self, number: int) -> Block:
        line = self._line()
        try:
            value = json.loads(line)
            ring, counts = ring_codec.parse(value["ring"]), value["counts"]
            check(ring.header == self.header, "header of the ring", ring.header)
            check(ring.block == number, "block", ring.block)
            check(in_range(ring.expiry, 0, ring_codec.MANY), "expiry", ring.expiry)
            check(counts.keys() == {layer.name for layer in ring.layers}, "counts", counts)
            check(ring.config.capacity <= MAX_CAPACITY, "capacity", ring.config.capacity)
            for layer in ring.layers:
                check(layer.capacity <= MAX_CAPACITY, "capacity", layer.capacity)
                stored_int(counts, layer.name, 0, MAX_CAPACITY)
        except _UNUSABLE as error:
            raise self._error(f"block {number} is not usable: {error}") from None
        return Block(ring, counts, self._chunks(ring))

    def _chunks(self, ring: Ring) -> Iterator[Chunk]:
        for layer in ring.layers:
            for offset, size in spans(layer):
                data = self._read(self._file.read, size)
                if len(data) < size:
                    raise self._error("the file ends in the middle")
                yield Chunk(layer, offset, data)

    def _line(self) -> bytes:
        line = self._read(self._file.readline, MAX_LINE_BYTES)
        if not line.endswith(b"\n"):
            raise self._error("the file ends in the middle, or it is no saved filter")
        return line

    def _read(self, read: Callable[[int], bytes], size: int) -> bytes:
        try:
            return read(size)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self._error(f"it is damaged or no saved filter: {error}") from None
        except (OSError, ValueError) as error:  # it is closed, or cannot be read
            raise ArchiveError(f"cannot read {self._name}: {error}") from error
        except TypeError:
            raise ConfigurationError(
                f"{self._name} is a text file: open it in binary mode ('rb')"
            ) from None

    def _error(self, text: str) -> ArchiveError:
        at = self._file.tell()
        return ArchiveError(f"{self._name} cannot be loaded: at byte {at:,} (unpacked), {text}")

    def _check_size(self, memory: int, layers: int = 0) -> None:
        if memory > self._max_memory:
            raise self._error(
                f"the filter takes {memory:,} bytes, and {self._max_memory:,} are allowed: if you "
                "trust the file, raise max_memory (scrapy bloom import --max-memory)"
            )
        if layers > MAX_LAYERS:
            raise self._error(f"the filter has {layers:,} layers, and {MAX_LAYERS:,} are allowed")


def _name(file: object) -> str:
    name = getattr(file, "name", None)
    return name if isinstance(name, str) else "the file"


# -- paths --


@contextmanager
def writing(file: PathOrFile) -> Iterator[IO[bytes]]:
    """Open a file to save to. It gets its name when it is whole; only its owner may read it.

    An open file is written to as it is, and so is a path of what is no regular file, as a pipe.

    Raises:
        ConfigurationError: it is neither a path nor a file.
        ArchiveError: it cannot be written.
    """
    if not isinstance(file, str | os.PathLike):
        yield _checked(file, "write")
        return
    with _explained("write", file):
        path = Path(file).resolve()  # of a link, what it points to is replaced
        is_regular = path.is_file() or not path.exists()
        opened = _open_temporary(path) if is_regular else path.open("wb")
    try:
        with opened as stream:
            yield stream
            with _explained("write", file):
                stream.flush()
                if is_regular:
                    os.fsync(stream.fileno())
                    Path(stream.name).replace(path)
    except BaseException:
        if is_regular:
            Path(opened.name).unlink(missing_ok=True)
        raise


@contextmanager
def reading(file: PathOrFile) -> Iterator[IO[bytes]]:
    """Open a file to load from.

    Raises:
        ConfigurationError: it is neither a path nor a file.
        ArchiveError: it cannot be read.
    """
    if not isinstance(file, str | os.PathLike):
        yield _checked(file, "read")
        return
    with _explained("read", file):
        opened = Path(file).open("rb")  # noqa: SIM115 - closed below
    with opened as stream:
        yield stream


def _checked(file: IO[bytes], method: str) -> IO[bytes]:
    if not hasattr(file, method):
        raise ConfigurationError(f"expected a path or a binary file; got {shown(file)}")
    return file


def _open_temporary(path: Path) -> IO[bytes]:
    prefix = f".{path.name[:100]}."
    return NamedTemporaryFile(prefix=prefix, suffix=".part", dir=path.parent, delete=False)


@contextmanager
def _explained(verb: str, path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise ArchiveError(f"cannot {verb} {os.fspath(path)!r}: {error}") from error
