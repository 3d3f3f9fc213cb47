"""Lists of URLs and requests.seen: what is around a URL, which lines are none, and fingerprints."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.migrate import MAX_WIDTH, parse_line, read_seen


@pytest.mark.parametrize(
    ("line", "url"),
    [
        (b"https://a\r\n", "https://a"),
        (b"\t https://a b \n", "https://a b"),
        (b"\xef\xbb\xbfhttps://a\n", "https://a"),
    ],
)
def test_what_is_around_a_url_is_no_part_of_it(line: bytes, url: str) -> None:
    assert parse_line(line) == url


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"https://a\rhttps://b\n", r"^b'https://a.*' has control characters"),
        (b"https://a\0", "has control characters"),
        (b"https://\xff", "is not UTF-8"),
    ],
)
def test_what_is_no_url(line: bytes, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_line(line)


# -- requests.seen, of every version of Scrapy --


FORMS = ["text", "binary"]
fingerprints = st.integers(0, 10**9).map(lambda n: hashlib.sha1(str(n).encode()).digest())
#: As other fingerprinters make them.
odd_fingerprints = st.binary(min_size=1, max_size=300)


def digests(count: int) -> list[bytes]:
    return [hashlib.sha1(str(number).encode()).digest() for number in range(count)]


def write(form: str, *entries: bytes, newline: bytes = b"\n") -> bytes:
    if form == "text":
        return b"".join(entry.hex().encode() + newline for entry in entries)
    return b"".join(len(entry).to_bytes(2, "big") + entry for entry in entries)


def read(data: bytes) -> list[bytes]:
    return list(read_seen(data))


@given(st.lists(fingerprints, max_size=9), st.lists(odd_fingerprints, max_size=9))
@pytest.mark.parametrize("form", FORMS)
def test_what_was_written_is_read(form: str, usual: list[bytes], odd: list[bytes]) -> None:
    assert read(write(form, *usual)) == usual
    assert read(write(form, b"no SHA-1", *odd, *usual)) == [b"no SHA-1", *odd, *usual]


def test_scrapy_2_19_appends_to_the_lines_of_an_older_version() -> None:
    first, second = digests(20)[:10], digests(20)[10:]
    assert read(write("text", *first) + write("binary", *second)) == first + second


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kept", [1, 3, 15])
def test_a_kill_costs_a_few_entries(form: str, kept: int) -> None:
    """The last entry is cut off, and the next crawl appends to it."""
    entries = digests(30)
    half = write(form, *entries[:15])[:-kept]
    assert read(half)[:14] == entries[:14]
    found = read(half + write(form, *entries[15:]))
    assert found[:14] == entries[:14]
    assert found[-13:] == entries[-13:]
    assert b"" in found


@pytest.mark.parametrize("rubbish", [b"# a comment\n", b"xyz\n", b"0123\n", b"012\n", b"\xff\n"])
def test_a_line_that_is_no_fingerprint_is_skipped(rubbish: bytes) -> None:
    first, *others = digests(3)
    data = write("text", first) + rubbish + b"\n \n" + write("text", *others, newline=b"\r\n")
    assert read(data) == [first, b"", *others]


@pytest.mark.parametrize("rubbish", [b"\0\0", b"\0\x13" + b"x" * 19, b"\xff\xff", b"x" * 99])
def test_a_binary_entry_that_is_none_is_skipped(rubbish: bytes) -> None:
    first, *others = digests(3)
    assert read(write("binary", first) + rubbish + write("binary", *others)) == [
        *(first, b"", *others)
    ]


def test_what_is_too_long_is_no_fingerprint() -> None:
    for form in FORMS:
        assert read(write(form, b"x" * (MAX_WIDTH + 1)))[0] == b""
        assert read(write(form, b"x" * MAX_WIDTH)) == [b"x" * MAX_WIDTH]
