"""Lists of URLs: the lines that are read, and what of them is no URL."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.migrate.lines import MAX_LINE_BYTES, read_lines


def lines_of(data: bytes) -> list[tuple[bytes, int]]:
    return [(line.data, line.size) for line in read_lines(io.BytesIO(data).readline)]


@given(
    st.lists(
        st.sampled_from([b"a", b"", b"\r", b"x" * MAX_LINE_BYTES, b"y" * (3 * MAX_LINE_BYTES)])
    )
)
def test_all_bytes_are_those_of_a_line(given_: list[bytes]) -> None:
    data = b"\n".join(given_)
    found = lines_of(data)
    assert sum(size for _, size in found) == len(data)
    whole = [line + b"\n" for line in given_[:-1]] + [line for line in given_[-1:] if line]
    assert found == [(line[:MAX_LINE_BYTES], len(line)) for line in whole]


@pytest.mark.parametrize(
    ("line", "url"),
    [
        *((b"https://a\r\n", "https://a"), (b"\t https://a b \n", "https://a b"), (b"\n", "")),
        *((b"\xef\xbb\xbfhttps://a\n", "https://a"), ("https://ä".encode(), "https://ä")),
    ],
)
def test_what_stands_around_a_url_is_no_part_of_it(line: bytes, url: str) -> None:
    (found,) = read_lines(io.BytesIO(line).readline)
    assert found.url() == url


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"https://a\rhttps://b\n", r"^b'https://a.*' has control characters within"),
        (b"https://a\0", "has control characters within"),
        (b"https://\xff", "is not UTF-8"),
        (b"https://" + b"a" * MAX_LINE_BYTES, "is longer than 65,536 bytes"),
    ],
)
def test_what_is_no_url(line: bytes, message: str) -> None:
    (found,) = read_lines(io.BytesIO(line).readline)
    with pytest.raises(ConfigurationError, match=message):
        found.url()
