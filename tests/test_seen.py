"""Reading requests.seen: of every version of Scrapy, in any pieces, after any kill."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.dupefilters import RFPDupeFilter
from scrapy.utils.request import RequestFingerprinter

from scrapy_bloom.migration.seen import (
    BINARY,
    MAX_ENTRY,
    TEXT,
    WIDTH,
    Entries,
    Layout,
    read_entries,
)

fingerprints = st.integers(0, 10**9).map(lambda n: hashlib.sha1(str(n).encode()).digest())
#: One of 65,536 ends like an entry begins, and hypothesis finds it.
usual_fingerprints = fingerprints.filter(lambda fingerprint: b"\0" not in fingerprint)
#: As other fingerprinters make them.
odd_fingerprints = st.binary(min_size=1, max_size=300)


def write(fingerprint: bytes, form: str, newline: bytes = b"\n") -> bytes:
    if form == TEXT:
        return fingerprint.hex().encode() + newline
    return len(fingerprint).to_bytes(2, "big") + fingerprint


def read(data: bytes, piece: int = 1 << 20) -> Entries:
    """Read all of a file, given a piece at a time."""
    layout = Layout.of(data)
    all_of_it, held, given_ = Entries(layout.form), b"", 0
    while True:
        held += data[given_ : given_ + piece]
        given_ += piece
        is_last = given_ >= len(data)
        found = read_entries(held, all_of_it.form, layout.width, is_last=is_last)
        all_of_it.form = found.form
        all_of_it.used += found.used
        all_of_it.fingerprints += found.fingerprints
        all_of_it.incomplete += found.incomplete
        all_of_it.rejected += found.rejected
        held = held[found.used :]
        if is_last:
            assert held == b""
            return all_of_it


@given(st.lists(fingerprints, max_size=40), st.sampled_from([TEXT, BINARY]), st.integers(1, 200))
def test_what_was_written_is_read_in_any_pieces(
    written: list[bytes], form: str, piece: int
) -> None:
    found = read(b"".join(write(fingerprint, form) for fingerprint in written), piece)
    assert (found.fingerprints, found.incomplete, found.rejected) == (written, 0, [])


@given(st.lists(odd_fingerprints, max_size=9), st.sampled_from([TEXT, BINARY]), st.integers(1, 700))
def test_fingerprints_may_be_of_any_length(written: list[bytes], form: str, piece: int) -> None:
    written = [b"no SHA-1", *written]
    found = read(b"".join(write(fingerprint, form) for fingerprint in written), piece)
    assert (found.fingerprints, found.incomplete, found.rejected) == (written, 0, [])


def test_scrapys_own_file(tmp_path: Path) -> None:
    requests = [Request(f"https://example.com/{number}") for number in range(1_000)]
    fingerprinter = RequestFingerprinter()
    scrapys = RFPDupeFilter(str(tmp_path), fingerprinter=fingerprinter)
    assert not any(map(scrapys.request_seen, requests))
    scrapys.close("finished")
    found = read((tmp_path / "requests.seen").read_bytes())
    assert found.fingerprints == [fingerprinter.fingerprint(request) for request in requests]


@st.composite
def crawls(draw: st.DrawFn) -> tuple[bytes, list[bytes], bool]:
    """Files of crawls that were killed and started again, on Scrapy < 2.19 and then >= 2.19.

    Returns the bytes, the fingerprints that were written in whole, and whether others were not.
    """
    data, whole, is_cut = b"", [], False
    form = draw(st.sampled_from([TEXT, BINARY]))
    for _ in range(draw(st.integers(1, 5))):
        written = draw(st.lists(usual_fingerprints, min_size=1, max_size=8))
        data += b"".join(write(fingerprint, form) for fingerprint in written)
        whole += written
        last = draw(usual_fingerprints)
        full = write(last, form)
        kept = draw(st.integers(0, len(full)))
        data += full[:kept]
        if kept == len(full) or (form == TEXT and kept == 2 * WIDTH):
            whole.append(last)
        elif kept:
            is_cut = True
        if form == TEXT and draw(st.booleans()):
            form = BINARY
    return data, whole, is_cut


@given(crawls(), st.integers(1, 5_000))
def test_a_kill_costs_the_entry_that_was_being_written_and_no_other(
    crawled: tuple[bytes, list[bytes], bool], piece: int
) -> None:
    data, whole, is_cut = crawled
    found = read(data, piece)
    assert found.fingerprints == whole
    assert bool(found.incomplete) == is_cut
    assert found.rejected == []


@given(st.binary(max_size=400), st.integers(1, 500))
def test_any_bytes_are_read_to_their_end(data: bytes, piece: int) -> None:
    found = read(data, piece)
    assert found.used == len(data)
    assert all(0 < len(fingerprint) <= 0xFFFF for fingerprint in found.fingerprints)


def test_rubbish_without_an_end_is_left_out() -> None:
    found = read(b"z" * 500_000 + b"\n" + b"0a\n", 1_000)
    assert found.fingerprints == [b"\n"]
    assert found.incomplete + len(found.rejected) >= 1


@pytest.mark.parametrize("end", [b"xyz", b'{"a": 1}', b"0" * (MAX_ENTRY + 1)])
def test_what_no_crawl_has_cut_off_is_rejected(end: bytes) -> None:
    whole = hashlib.sha1(b"").digest()
    for first in (b"", write(whole, TEXT)):
        found = read(first + end)
        assert (found.incomplete, found.rejected) == (0, [end])


@pytest.mark.parametrize("rubbish", [b"# a comment\n", b"xyz\n", b"0123\n", b"\n \n", b"\0" * 99])
def test_what_is_no_fingerprint_loses_no_other(rubbish: bytes) -> None:
    first, *others = (hashlib.sha1(bytes([n])).digest() for n in range(3))
    data = b"".join((write(first, TEXT), rubbish, *(write(other, TEXT) for other in others)))
    found = read(data)
    assert found.fingerprints == [first, *others]
    assert found.rejected == ([rubbish.strip()] if rubbish.strip(b"\n \0") else [])


def test_empty_fingerprints_are_none() -> None:
    found = read(write(b"ab", BINARY) + write(b"", BINARY) + write(b"cd", BINARY))
    assert (found.fingerprints, found.rejected) == ([b"ab", b"cd"], [b""])


def test_lines_of_windows() -> None:
    written = [hashlib.sha1(bytes([n])).digest() for n in range(3)]
    assert read(b"".join(write(one, TEXT, b"\r\n") for one in written)).fingerprints == written


def test_how_many_fit() -> None:
    sha1 = hashlib.sha1(b"").digest()
    for form in (TEXT, BINARY):
        assert Layout.of(write(sha1, form)).entry_bytes == len(write(sha1, form))
