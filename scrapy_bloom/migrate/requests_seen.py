"""Scrapy's file ``requests.seen``, of any version.

Until 2.18 it has a line of hexadecimal digits for each fingerprint, from 2.19 on the length of each
(two bytes, big-endian) and then its bytes, also behind the lines of an older version. A crawl that
was killed leaves an incomplete entry, and the next crawl appends to it: such entries are skipped.
"""

import binascii
from collections.abc import Iterator

#: Bytes of a SHA-1. If the first fingerprint is one, all others have to be.
WIDTH = 20
#: Bytes of a fingerprint at most: binary entries begin with a byte less than a tab, lines do not.
MAX_WIDTH = (ord("\t") << 8) - 1
#: Bytes of the length of a binary entry.
_LENGTH_BYTES = 2
_HEAD = WIDTH.to_bytes(_LENGTH_BYTES, "big")


def read_seen(data: bytes) -> Iterator[bytes]:
    """Read all entries; b"" stands for one that is no fingerprint. Blank lines are left out."""
    position, first = 0, b""
    while position < len(data):
        is_binary = data[position] < ord("\t")
        fingerprint, end = _binary_entry(data, position) if is_binary else _line(data, position)
        if fingerprint is None:
            position = end
            continue
        if 0 < len(fingerprint) <= MAX_WIDTH and (len(first) != WIDTH or len(fingerprint) == WIDTH):
            first = first or fingerprint
        else:
            # Go on where the next usual entry begins.
            fingerprint, limit = b"", len(data) if is_binary else end
            found = data.find(_HEAD, position + 1, limit)
            end = limit if found < 0 else found
        yield fingerprint
        position = end


def _binary_entry(data: bytes, start: int) -> tuple[bytes, int]:
    """Return the fingerprint that a binary entry has, b"" if it is cut off; and the entry's end."""
    start += _LENGTH_BYTES
    end = start + int.from_bytes(data[start - _LENGTH_BYTES : start], "big")
    return data[start:end] if end <= len(data) else b"", end


def _line(data: bytes, start: int) -> tuple[bytes | None, int]:
    """Return the fingerprint that a line has, b"" for another text; and the line's end."""
    end = data.find(b"\n", start) + 1 or len(data)
    text = data[start:end].strip()
    try:
        return binascii.unhexlify(text) if text else None, end
    except binascii.Error:
        return b"", end
