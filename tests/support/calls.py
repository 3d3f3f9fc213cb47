"""Calls of scripts that tests make outside of an operation."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from scrapy_bloom.bloom.client.driver import Driver
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.scripts import Call, Reply

#: redis-py's option (``redis.client.NEVER_DECODE``) for a reply that stays bytes.
UNDECODED: dict[str, Any] = {"NEVER_DECODE": []}


def send(driver: Driver, calls: Sequence[Call]) -> list[Reply]:
    """Send calls together by a driver; return their replies."""

    def steps() -> Operation[list[Reply]]:
        return (yield list(calls))

    return driver.run(steps())


def send_text(client: Any, call: Call) -> Any:
    """Send a call with the text of its script, as redis-py does; return the reply as it is."""
    return client.execute_command(*call.command(by_text=True), **UNDECODED if call.binary else {})


def script_calls(client: Any) -> int:
    """Return how many calls of scripts a server has carried out."""
    stats = client.info("commandstats")
    return sum(about["calls"] for name, about in stats.items() if "_eval" in name)


def carry_out(driver: Driver, steps: Operation[Any], count: int) -> None:
    """Send the first calls of an operation, one by one, and none after them."""
    with suppress(StopIteration):
        calls = next(steps)
        while True:
            replies: list[Reply] = []
            for call in calls:
                if count == 0:
                    return
                count -= 1
                replies += send(driver, [call])
            calls = steps.send(replies)
