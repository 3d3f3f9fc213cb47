"""Scrapy's file ``requests.seen``, of any version.

Until 2.18 it has a line of hexadecimal digits for each fingerprint, from 2.19 on the length of each
(two bytes, big-endian) and then its bytes, also behind the lines of an older version. A crawl that
was killed leaves an incomplete entry, and the next crawl appends to it: such entries are skipped.
"""

import re
from collections.abc import Iterator
from typing import IO

from scrapy_bloom.migrate.lines import read_lines

#: Bytes of a SHA-1, which nearly all fingerprints are. If the first is one, all others have to be.
WIDTH = 20
#: Bytes of a fingerprint at most: binary entries begin with a byte less than a tab, lines do not.
MAX_WIDTH = (ord("\t") << 8) - 1
#: Bytes of the length of a binary entry.
_SIZE_BYTES = 2
_HEAD = WIDTH.to_bytes(_SIZE_BYTES, "big")
_LINE = re.compile(rb"(?:[0-9A-Fa-f]{2})+")
_CHUNK_BYTES = 1 << 20


def is_binary(start: bytes) -> bool:
    """Whether an entry that begins so is binary."""
    return b"" < start[:1] < b"\t"


def read_seen(file: IO[bytes]) -> Iterator[bytes]:
    """Read all entries; b"" stands for one that is no fingerprint. Blank lines are none."""
    width, offset = None, 0
    for line in read_lines(file.readline):
        if is_binary(line.data):
            file.seek(offset)
            yield from _read_binary(file)
            return
        offset += line.size
        digits = line.data.strip()
        if not digits:
            continue
        size = len(digits) // 2
        if _LINE.fullmatch(digits) and _is_width(size, width):
            width = size if width is None else width
            yield bytes.fromhex(digits.decode())
        else:
            yield b""


def _read_binary(file: IO[bytes]) -> Iterator[bytes]:
    """Read binary entries; after one that is none, go on where the next usual one may begin."""
    width, data, more = None, b"", b"-"
    while more:
        more = file.read(_CHUNK_BYTES)
        data, position = data + more, 0
        while position < len(data) - (_SIZE_BYTES + MAX_WIDTH if more else 0):
            start = position + _SIZE_BYTES
            size = int.from_bytes(data[position:start], "big")
            if _is_width(size, width) and start + size <= len(data):
                width = size if width is None else width
                position = start + size
                yield data[start:position]
            else:
                found = data.find(_HEAD, position + 1)
                position = found if found >= 0 else len(data)
                yield b""
        data = data[position:]


def _is_width(size: int, first: int | None) -> bool:
    """Whether a fingerprint may have so many bytes, where the first one has ``first``."""
    return size == WIDTH if first == WIDTH else 0 < size <= MAX_WIDTH
