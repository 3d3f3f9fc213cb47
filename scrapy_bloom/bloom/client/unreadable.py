"""Replies that are not Redis's: redis-py fails on them where it parses without hiredis."""

from collections.abc import Iterator
from contextlib import contextmanager

import redis

#: What it raises for them, and for INFO of another form.
UNREADABLE = (ValueError, TypeError, AttributeError, LookupError, RecursionError)


@contextmanager
def reading() -> Iterator[None]:
    """Raise an error of redis-py's for a reply that it cannot read. For its calls alone.

    Raises:
        redis.InvalidResponse: the reply is not Redis's.
    """
    try:
        yield
    except UnicodeError:  # of a text, not of the protocol
        raise
    except UNREADABLE as error:
        raise invalid(error) from error


def invalid(error: Exception) -> redis.InvalidResponse:
    """Return the error of redis-py's for what its parser raised."""
    return redis.InvalidResponse(f"{type(error).__name__}: {error}")
