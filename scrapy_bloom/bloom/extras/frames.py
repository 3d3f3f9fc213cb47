"""Frames of a file, each under a seal: written and read as a stream, trusting nothing that is read.

A file is its magic, one byte for the version, and frames. A frame is its kind (one byte), the
length of its content (four bytes, little-endian), the content, and a seal of 16 bytes: BLAKE2b of
kind, length and content, under the seal of the frame before as the key. So each seal stands for
all that comes before it, and a frame that is damaged, missing, doubled or moved is noticed when it
is read.
"""

from collections.abc import Mapping
from hashlib import blake2b
from struct import Struct
from typing import IO

from scrapy_bloom.bloom.errors import ArchiveError, ConfigurationError

#: As PNG's: it is no text, and shows whether line ends were changed on the way.
MAGIC = b"\x89BLOOM\r\n\x1a\n"
VERSION = 1
#: Kind and length of a frame, and bytes of its seal.
HEAD = Struct("<BI")
SEAL = 16


class FrameWriter:
    """Writes frames to a binary file, which may be a pipe.

    Args:
        file: has ``write``. It is neither flushed nor closed.

    Attributes:
        size: bytes written.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._name = _name(file)
        self._seal = b""
        self.size = 0

    def begin(self) -> None:
        """Write what comes before the first frame."""
        self._write(MAGIC + bytes([VERSION]))
        self._seal = _seal(MAGIC, bytes([VERSION]), b"")

    def frame(self, kind: int, body: bytes) -> None:
        """Write a frame."""
        head = HEAD.pack(kind, len(body))
        self._seal = _seal(head, body, self._seal)
        self._write(b"".join((head, body, self._seal)))

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                # A file without a buffer may take a part only.
                written = self._file.write(rest)
                rest = rest[len(rest) if written is None else written :]
        except (OSError, ValueError) as error:  # it is closed, or cannot be written
            raise ArchiveError(f"cannot write {self._name}: {error}") from error
        except TypeError:
            raise ConfigurationError(
                f"{self._name} is a text file: open it in binary mode ('wb')"
            ) from None
        self.size += len(data)


class FrameReader:
    """Reads frames from a binary file, which may be a pipe.

    Args:
        file: has ``read``.
        limits: bytes of a frame's content at most, by kind; there are no other kinds.

    Attributes:
        name: of the file.

    Raises:
        ArchiveError: the file has another beginning.
    """

    def __init__(self, file: IO[bytes], limits: Mapping[int, int]) -> None:
        self._file = file
        self._limits = limits
        self.name = _name(file)
        self._seal = b""
        self._at = self._frame_at = 0
        self._check_magic()

    def next(self) -> tuple[int, bytes]:
        """Return kind and content of the next frame.

        Raises:
            ArchiveError: there is none, or it is damaged.
        """
        self._frame_at = self._at
        head = self._read(HEAD.size)
        kind, length = HEAD.unpack(head)
        if length > self._limits.get(kind, -1):
            raise self.error(
                "there is no beginning of a frame: the file is damaged, or of a later version"
            )
        body = self._read(length)
        seal = self._read(SEAL)
        self._seal = _seal(head, body, self._seal)
        if seal != self._seal:
            raise self.error(
                "the checksum is wrong: this part is damaged, or what came before it is missing, "
                "doubled or out of order"
            )
        return kind, body

    def end(self) -> None:
        """Make sure that nothing follows.

        Raises:
            ArchiveError: something does.
        """
        self._frame_at = self._at
        if self._read_some(1):
            raise self.error("something follows the end")

    def error(self, text: str) -> ArchiveError:
        """Return an error about the frame that was read last."""
        return ArchiveError(f"{self.name} cannot be loaded: at byte {self._frame_at:,}, {text}")

    def _check_magic(self) -> None:
        magic = self._read_some(len(MAGIC) + 1)
        if not magic:
            raise self.error("it is empty")
        if magic[: len(MAGIC)] != MAGIC[: len(magic)]:
            raise self.error("it is no saved filter")
        if len(magic) <= len(MAGIC):
            raise self.error(f"the file ends after {self._at:,} bytes, in the middle")
        if magic[-1] != VERSION:
            raise self.error(f"its version is {magic[-1]}, and this scrapy-bloom reads {VERSION}")
        self._seal = _seal(MAGIC, magic[-1:], b"")

    def _read(self, size: int) -> bytes:
        data = self._read_some(size)
        if len(data) < size:
            raise self.error(f"the file ends after {self._at:,} bytes, in the middle")
        return data

    def _read_some(self, size: int) -> bytes:
        """Read so many bytes, or as many as there are."""
        data = b""
        try:
            # Pipes give less than was asked for.
            while len(data) < size and (part := self._file.read(size - len(data))):
                data += part
        except (OSError, ValueError) as error:  # it is closed, or cannot be read
            raise ArchiveError(f"cannot read {self.name}: {error}") from error
        except TypeError:
            raise ConfigurationError(
                f"{self.name} is a text file: open it in binary mode ('rb')"
            ) from None
        self._at += len(data)
        return data


def _seal(head: bytes, body: bytes, before: bytes) -> bytes:
    digest = blake2b(head, digest_size=SEAL, key=before)
    digest.update(body)
    return digest.digest()


def _name(file: object) -> str:
    name = getattr(file, "name", None)
    return name if isinstance(name, str) else "the file"
