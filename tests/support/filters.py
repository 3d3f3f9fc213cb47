"""Filters as most tests of the library use them, and what a server has stored of them."""

from collections.abc import Callable
from typing import Any

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.schedule import Schedule
from scrapy_bloom.bloom.protocol.rings import Operation

KEY = "shop:bloom"
URLS = [f"https://example.com/{i}" for i in range(1000)]


def small(client: Any, key: str = KEY, **options: Any) -> BloomFilter:
    """Return a filter in which no test meets a false positive."""
    return BloomFilter(client, key, **{"capacity": 10_000, "error_rate": 1e-9, **options})


def with_windows(client: Any, key: str = KEY, **windows: str) -> BloomFilter:
    """Return a filter of two blocks with more windows than the default one."""
    schedules = {name: Schedule.of(window) for name, window in windows.items()}
    default = str(schedules.pop("default", "never"))
    return small(client, key, blocks=2, window=default, windows=schedules)


def add_to(bloom: BloomFilter, window: str, *items: str) -> list[bool]:
    """Record items in a window; return which were new."""
    keys = [(window, item.encode()) for item in items]
    return [verdict == "1" for verdict in bloom.run(bloom.session.add(keys))]


def fields(client: Any, key: str = KEY, block: int = 0) -> dict[str, str]:
    """Return what a block has stored."""
    found = client.hgetall(f"{{{key}:{block}}}:ring")
    return {name.decode(): value.decode() for name, value in found.items()}


def rings(client: Any, blocks: int, key: str = KEY, window: str = "default") -> list[Ring]:
    """Return the rings of a window as they are stored."""
    return [Ring.parse(window, block, fields(client, key, block)) for block in range(blocks)]


def assert_expiries(client: Any) -> None:
    """Each key expires; rings and claims do after all bitmaps of their block."""
    ends = {key.decode(): client.expiretime(key.decode()) for key in client.scan_iter()}
    assert ends
    assert all(end > 0 for end in ends.values()), ends
    for key, end in ends.items():
        if key.endswith(":ring") or ":claims:" in key:
            block = [other for other in ends if other.partition("}")[0] == key.partition("}")[0]]
            bitmaps = [ends[other] for other in block if client.type(other) == b"string"]
            assert end > max(bitmaps, default=0)


def at_round(operation: Operation[Any], number: int, happen: Callable[[], object]) -> Any:
    """Return an operation before one of whose round trips something happens."""
    try:
        calls = next(operation)
        for round_ in range(10_000):
            if round_ == number:
                happen()
            calls = operation.send((yield calls))
    except StopIteration as stop:
        return stop.value
    raise AssertionError("an operation without end")
