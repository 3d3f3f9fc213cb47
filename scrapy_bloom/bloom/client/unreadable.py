"""Replies that are not Redis's: redis-py fails on them where it parses without hiredis."""

from collections.abc import Iterator
from contextlib import contextmanager

import redis

#: What it raises for them, and for INFO of another form.
UNREADABLE = (ValueError, TypeError, AttributeError, LookupError, RecursionError)
#: What a node that cannot be reached, or understood, makes it raise.
FAILURES = (redis.RedisError, OSError, *UNREADABLE)


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


def as_redis_error(error: Exception) -> Exception:
    """Return an error for what redis-py raised, also if it could not read a reply."""
    is_unreadable = isinstance(error, UNREADABLE) and not isinstance(error, UnicodeError | OSError)
    return invalid(error) if is_unreadable else error
