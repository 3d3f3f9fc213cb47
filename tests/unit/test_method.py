"""Methods of filters look like methods that are written for each kind of filter."""

import inspect

import pytest

from scrapy_bloom.bloom.filter import AsyncBloomFilter, BloomFilter


@pytest.mark.parametrize("kind", [BloomFilter, AsyncBloomFilter])
def test_help_shows_what_a_method_takes_and_returns(kind: type) -> None:
    add, clear = kind.add, kind.clear  # type: ignore[attr-defined]
    assert str(inspect.signature(add)) == "(self, item: str | bytes) -> bool"
    assert str(inspect.signature(clear)) == "(self, window: str | None = None) -> None"
    assert add.__doc__.startswith("Record an item, and")
