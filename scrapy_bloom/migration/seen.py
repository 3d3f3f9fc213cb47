"""Scrapy's file ``requests.seen``, of any version, whole or damaged. Pure.

Until 2.18 it has a line of hexadecimal digits for each fingerprint, from 2.19 on the length of each
(two bytes, big-endian) and then its bytes. A crawl that was killed leaves a part of an entry
behind, and the next one writes on right after it. Scrapy 2.19 writes on in a file of lines, too.
"""

import re
from dataclasses import dataclass, field

#: How entries are written.
TEXT, BINARY = "text", "binary"
#: Bytes of a SHA-1, which nearly all fingerprints are. Among these, parts of entries can be told.
WIDTH = 20
#: Bytes that an entry takes at most.
MAX_ENTRY = 2 * 0xFFFF + 2

#: Bytes at the beginning of a file that tell how to read it.
HEAD_BYTES = 1 << 16

_SIZE_BYTES = 2
_HEAD = WIDTH.to_bytes(_SIZE_BYTES, "big")
#: What comes after a whole entry: the next one, the end (of one or two bytes of it), or one byte of
#: an entry that was cut off, and the next one.
_AFTER = _HEAD, b"", _HEAD[:1], _HEAD[:1] * 2
_LOOK_AHEAD = 8 * (_SIZE_BYTES + WIDTH)
#: What no line has: the length of a fingerprint of less than 2,304 bytes.
_NO_TEXT = re.compile(rb"[\x00-\x08]")
_DIGITS = re.compile(rb"[0-9A-Fa-f]+")
_USUAL_LINE = re.compile(rb"[0-9A-Fa-f]{40}(?:\r?\n|[\x00-\x08]|$)")
#: The first one, or what follows one that was cut off, of either form.
_USUAL_BINARY = re.compile(rb"[0-9A-Fa-f]{0,39}\x00?\x00\x14")


@dataclass(frozen=True, slots=True)
class Layout:
    """What the beginning of a file says about all of it.

    Args:
        form: how its first entry is written.
        width: bytes of each of its fingerprints; 0 if they may be of any length.
    """

    form: str
    width: int

    @classmethod
    def of(cls, head: bytes) -> "Layout":
        """Recognize a file by its first HEAD_BYTES bytes."""
        form = BINARY if _NO_TEXT.match(head) else TEXT
        return cls(form, WIDTH if _is_usual(head) else 0)

    @property
    def entry_bytes(self) -> int:
        """Bytes that an entry takes, about."""
        width = self.width or WIDTH
        return 2 * width + 1 if self.form == TEXT else _SIZE_BYTES + width


def _is_usual(head: bytes) -> bool:
    """Whether the fingerprints are SHA-1s: the first, or most, as a kill may cut off the first."""
    if _USUAL_LINE.match(head) or _USUAL_BINARY.match(head):
        return True
    lines = [line.strip() for line in _NO_TEXT.split(head, maxsplit=1)[0].split(b"\n")[:-1]]
    lengths = [len(line) for line in lines if _DIGITS.fullmatch(line)]
    # The next entry follows on the same line, which is longer then, never shorter.
    return 0 < len(lengths) <= 2 * lengths.count(2 * WIDTH) and min(lengths) == 2 * WIDTH


@dataclass(slots=True)
class Entries:
    """What was read from a part of a file.

    Args:
        form: how the next entry is written.
        used: bytes that were read; the next entry begins there.
        fingerprints: those that could be read.
        incomplete: entries that were cut off when a crawl was killed.
        rejected: entries that are no fingerprints.
    """

    form: str
    used: int = 0
    fingerprints: list[bytes] = field(default_factory=list)
    incomplete: int = 0
    rejected: list[bytes] = field(default_factory=list)


def read_entries(data: bytes, form: str, width: int, *, is_last: bool) -> Entries:
    """Read the entries at the beginning of ``data``, but for one that is not all there.

    If that leaves nothing, more data are needed: MAX_ENTRY bytes and a few at most.

    Args:
        data: the file, or a part of it, from the beginning of an entry on.
        form: how that entry is written.
        width: bytes of each fingerprint; 0 if they may be of any length.
        is_last: whether the file ends with it.
    """
    entries = Entries(form)
    if form == TEXT:
        _read_lines(entries, data, width, is_last=is_last)
    if entries.form == BINARY:
        _read_binary(entries, data, width, is_last=is_last)
    return entries


def _read_lines(entries: Entries, data: bytes, width: int, *, is_last: bool) -> None:
    end = len(data)
    found = re.search(re.escape(_HEAD), data) if width else _NO_TEXT.search(data)
    if found is not None:
        end, entries.form = found.start(), BINARY
    *lines, rest = data[:end].split(b"\n")
    for line in lines:
        _take_line(entries, line.strip(b"\0\r\t "), width)
    entries.used = end - len(rest)
    if found is None and not is_last and len(rest) <= MAX_ENTRY:
        return
    # What has no end, but all its digits, is all there.
    if len(rest) == 2 * (width or WIDTH):
        _take_line(entries, rest, width)
    elif len(rest) <= MAX_ENTRY and _DIGITS.fullmatch(rest):
        entries.incomplete += 1
    elif rest.strip(b"\0\r\t "):
        entries.rejected.append(rest)
    entries.used = end


def _take_line(entries: Entries, line: bytes, width: int) -> None:
    is_hex = _DIGITS.fullmatch(line) is not None
    if width and is_hex and len(line) > 2 * width:
        # A part of an entry, at times all but its end, and whole ones written right after it.
        entries.incomplete += bool(len(line) % (2 * width))
        for end in range(len(line) % (2 * width) + 2 * width, len(line) + 1, 2 * width):
            entries.fingerprints.append(bytes.fromhex(line[end - 2 * width : end].decode()))
    elif is_hex and len(line) == 2 * (width or len(line) // 2):
        entries.fingerprints.append(bytes.fromhex(line.decode()))
    elif line:
        entries.rejected.append(line)


def _read_binary(entries: Entries, data: bytes, width: int, *, is_last: bool) -> None:
    position = entries.used
    while position < len(data):
        start = position + _SIZE_BYTES
        end = start + int.from_bytes(data[position:start], "big")
        # What comes next tells whether this entry is a whole one and, if not, where the next is.
        if max(end + _SIZE_BYTES, position + _LOOK_AHEAD) > len(data) and not is_last:
            break
        if (width and not _is_whole(data, position)) or end > len(data) or start > len(data):
            entries.incomplete += 1
            end = _next_whole(data, position) if width else len(data)
        elif end == start:
            entries.rejected.append(b"")
        else:
            entries.fingerprints.append(data[start:end])
        position = end
    entries.used = position


def _is_whole(data: bytes, position: int) -> bool:
    """Whether an entry of WIDTH bytes begins there, and what may comes next."""
    end = position + _SIZE_BYTES + WIDTH
    after = data[end : end + _SIZE_BYTES]
    return data.startswith(_HEAD, position) and end <= len(data) and after in _AFTER


def _next_whole(data: bytes, position: int) -> int:
    """Return where the next whole entry begins, or the end of the data."""
    found = data.find(_HEAD, position + 1)
    while found >= 0 and not _is_whole(data, found):
        found = data.find(_HEAD, found + 1)
    return found if found >= 0 else len(data)
