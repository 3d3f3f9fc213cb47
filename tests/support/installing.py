"""Filters that are written under the key 'new', with something happening before round trips."""

import io
from types import coroutine
from typing import Any, TypeVar

import redis

from scrapy_bloom import BloomFilter, ConfigurationError, StorageError
from scrapy_bloom.bloom.base import complete
from scrapy_bloom.bloom.client.driver import Driver
from scrapy_bloom.bloom.extras.file import ArchiveReader
from scrapy_bloom.bloom.extras.install import load
from scrapy_bloom.bloom.extras.save import Saved
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.scripts import Call, Reply
from support.calls import send_text
from support.saving import Between, blocking, watched

T = TypeVar("T")
ITEMS = [f"https://example.com/{number}" for number in range(60)]
OTHERS = [f"https://example.org/{number}" for number in range(60)]
NEW = "{new:*"


def make(client: redis.Redis, key: str, items: list[str] = ITEMS, **options: Any) -> BloomFilter:
    bloom = BloomFilter(
        client, key, **{"capacity": 200, "blocks": 3, "error_rate": 1e-9, **options}
    )
    bloom.extend(items)
    return bloom


def file_of(bloom: BloomFilter) -> bytes:
    file = io.BytesIO()
    bloom.save(file)
    return file.getvalue()


def put_file(
    client: redis.Redis, data: bytes, between: Between = lambda _: None, key: str = "new"
) -> Saved:
    run = Driver(client).run
    watching = blocking(lambda steps: run(watched(steps, between)))
    return complete(load(watching, Keys(key), ArchiveReader(io.BytesIO(data))))


def outcome(client: redis.Redis) -> str:
    """Return what a client finds that opens the filter."""
    bloom = BloomFilter(client, "new")
    if bloom.look() is None:
        return "nothing"
    found = bloom.contains(ITEMS), bloom.contains(OTHERS)
    whole, none = [True] * len(ITEMS), [False] * len(ITEMS)
    assert bloom.lost_blocks == 0
    return {(True, False): "whole", (False, True): "others"}.get(
        (found == (whole, none), found == (none, whole)), "a part"
    )


def check_clean(client: redis.Redis) -> None:
    """Nothing is there but the keys of the filter, and nothing is unfinished."""
    assert {key.decode() for key in client.keys(NEW)} == set(BloomFilter(client, "new").keys())
    nonces = [str(client.hget(key, "v")) for key in client.keys("{new:*ring")]
    assert not any("unfinished" in nonce for nonce in nonces)


def check_free(client: redis.Redis) -> None:
    """A crawl can use the key: nothing is hidden from it; and it can be deleted."""
    crawl = BloomFilter(client, "new", blocks=5)
    assert crawl.add_many(ITEMS) == [True] * len(ITEMS)
    assert crawl.add_many(ITEMS) == [False] * len(ITEMS)
    assert crawl.delete()


@coroutine
def step_by_step(steps: Operation[T], /, *, cleaning: bool = False) -> Operation[T]:
    """Leave the round trips of an operation to who drives the coroutine that awaits it."""
    return (yield from steps)


class Racer:
    """One of several operations, which goes on when it is told to."""

    def __init__(self, client: redis.Redis, data: bytes) -> None:
        self._client = client
        self._steps = load(step_by_step, Keys("new"), ArchiveReader(io.BytesIO(data)))
        self._calls: list[Call] | None = None
        self.error: Exception | None = None
        self.ended = False

    def go_on(self, *, lost: bool = False) -> None:
        """Make one round trip; its replies may be lost."""
        try:
            if self._calls is None:
                self._calls = self._steps.send(None)
            replies = [Reply.parse(send_text(self._client, call)) for call in self._calls]
            if lost:
                self._calls = self._steps.throw(StorageError("the replies are lost"))
            else:
                self._calls = self._steps.send(replies)
        except StopIteration:
            self.ended = True
        except (StorageError, ConfigurationError) as error:
            self.ended, self.error = True, error

    def to_the_end(self) -> None:
        while not self.ended:
            self.go_on()
