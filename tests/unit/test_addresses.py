"""Small mistakes in addresses and client arguments have short remedies."""

import pytest

from scrapy_bloom.bloom.client.connection import connect
from scrapy_bloom.bloom.errors import ConfigurationError

SECRET = "S3CRET"


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        *((url, 'did you mean "embedded:", or') for url in ("embeded:", "embedded", "Embedded:")),
        ("embedded://dir", 'did you mean "embedded:", or'),
        *((f"redis://h:{port}", "number from 1 to 65535") for port in (0, 77022, 770220)),
        ("redis+cluster://h:1,i:77022", "number from 1 to 65535"),
    ],
)
def test_a_small_mistake_has_a_short_remedy(url: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        connect(url)
    assert remedy in str(caught.value)
    assert len(str(caught.value)) < 150


def test_an_unknown_argument_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"^`params` sets 'colour', .* remove it"):
        connect("redis://h", params={"colour": "red"})
    with pytest.raises(ConfigurationError, match=r"`params` sets 'pasword', .* mean password\?$"):
        connect("redis://h", params={"pasword": SECRET})
    with pytest.raises(ConfigurationError, match=r"`url` sets 'usernam', .* mean username\?$"):
        connect("redis://h?usernam=x")
