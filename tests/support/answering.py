"""Errors that say what is wrong and show no secret."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from scrapy_bloom.bloom.errors import StorageError

SECRET = "S3CRET"


@contextmanager
def refused(*parts: str, error: type[Exception] = StorageError) -> Iterator[None]:
    """What is done fails with a message that has these parts, and no secret."""
    with pytest.raises(error) as caught:
        yield
    for part in parts:
        assert part in str(caught.value)
    assert SECRET not in str(caught.value)
