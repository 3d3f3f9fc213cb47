"""Frames: each seal stands for all before it. (Whole files are damaged in test_archive.py.)"""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.bloom.errors import ArchiveError
from scrapy_bloom.bloom.extras.frames import HEAD, MAGIC, SEAL, FrameReader, FrameWriter

LIMITS = {1: 0, 2: 10, 3: 1_000}
contents = st.lists(
    st.sampled_from(sorted(LIMITS)).flatmap(
        lambda kind: st.tuples(st.just(kind), st.binary(max_size=LIMITS[kind]))
    ),
    max_size=6,
)


def write(frames: list[tuple[int, bytes]]) -> bytes:
    file = io.BytesIO()
    writer = FrameWriter(file)
    writer.begin()
    for kind, body in frames:
        writer.frame(kind, body)
    return file.getvalue()


def read(data: bytes, count: int) -> list[tuple[int, bytes]]:
    reader = FrameReader(io.BytesIO(data), LIMITS)
    frames = [reader.next() for _ in range(count)]
    reader.end()
    return frames


@given(contents)
def test_frames_are_read_as_they_were_written(frames: list[tuple[int, bytes]]) -> None:
    data = write(frames)
    assert read(data, len(frames)) == frames
    size = sum(HEAD.size + len(body) + SEAL for _, body in frames)
    assert len(data) == len(MAGIC) + 1 + size


@given(contents, contents)
def test_a_frame_goes_with_those_before_it_only(
    one: list[tuple[int, bytes]], two: list[tuple[int, bytes]]
) -> None:
    """The end of one file, put after as long a beginning of another, is noticed at once."""
    first, second = write([*one, (2, b"x")]), write([*two, (2, b"x")])
    last = HEAD.size + 1 + SEAL
    mixed = first[:-last] + second[-last:]
    if one == two:
        assert read(mixed, len(one) + 1) == [*one, (2, b"x")]
    else:
        with pytest.raises(ArchiveError, match="the checksum is wrong"):
            read(mixed, len(one) + 1)


def test_lengths_are_refused_before_anything_is_read() -> None:
    data = MAGIC + b"\1" + HEAD.pack(2, 11) + bytes(100)
    file = io.BytesIO(data)
    with pytest.raises(ArchiveError, match="at byte 11, there is no beginning of a frame"):
        FrameReader(file, LIMITS).next()
    assert file.tell() == len(MAGIC) + 1 + HEAD.size


def test_what_follows_the_end_is_refused() -> None:
    with pytest.raises(ArchiveError, match="at byte 33, something follows the end"):
        read(write([(2, b"x")]) + b"\0", 1)
