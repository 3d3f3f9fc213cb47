"""Saving a filter while something happens between its round trips."""

import io
from collections.abc import Callable
from itertools import count
from typing import Any

import redis

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.extras.file import ArchiveWriter
from scrapy_bloom.bloom.extras.install import Run
from scrapy_bloom.bloom.extras.save import save
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.scripts import Call

KEY = "shop"
KEYS = Keys(KEY)
URLS = [f"https://example.com/{number}" for number in range(2_000)]
OPTIONS: dict[str, Any] = {"capacity": 4_000, "error_rate": 1e-9, "blocks": 4}
#: Options of all kinds of filters.
KINDS: list[dict[str, Any]] = [
    {},
    {"window": "3 days", "period": "1 day"},
    {"window": "3 days", "period": "1 day", "ring": "write-all", "stagger": True},
    {"window": "3 runs", "run": "a"},
    {"counting": True},
]
#: Is called before each round trip of an operation, with the calls.
Between = Callable[[list[Call]], object]


def make(client: redis.Redis, **options: Any) -> BloomFilter:
    return BloomFilter(client, KEY, **{**OPTIONS, **options})


def watched(steps: Operation[Any], between: Between) -> Operation[Any]:
    """Return an operation that lets something happen before each of its round trips."""
    try:
        calls = next(steps)
        while True:
            between(calls)
            calls = steps.send((yield calls))
    except StopIteration as stop:
        return stop.value


def at_round(number: int, what: Callable[[], object]) -> Between:
    """Do something before one of the round trips."""
    rounds = count()
    return lambda _: next(rounds) == number and what()


def blocking(run: Callable[[Operation[Any]], Any]) -> Run:
    """Return what runs operations as a client that blocks does."""

    async def at_once(steps: Operation[Any], /, *, cleaning: bool = False) -> Any:
        return run(steps)

    return at_once


def saved(bloom: BloomFilter, between: Between = lambda _: None, **options: Any) -> bytes:
    """Save a filter; return the file."""
    file = io.BytesIO()
    bloom.run(lambda session: watched(save(session.keys, ArchiveWriter(file), **options), between))
    return file.getvalue()
