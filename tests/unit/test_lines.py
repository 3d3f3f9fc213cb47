"""Lists of URLs: what is around a URL, and which lines are no URL."""

import pytest

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.migrate import parse_line


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
