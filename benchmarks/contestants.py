"""What is compared: dupefilters as scrapy-redis's scheduler builds them, on real servers.

Each is the class a user names in ``DUPEFILTER_CLASS``, built by ``from_spider`` with a real
``Crawler`` and default settings. Nothing is mocked; ``Traffic`` counts what a client sends.
"""

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import redis
from redis._parsers import _RESP2Parser
from redis.connection import AbstractConnection, PythonRespSerializer
from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.utils.misc import load_object
from scrapy.utils.test import get_crawler

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.servers import Server, find_servers, start_cluster

from scrapy_bloom import BloomFilter

__all__ = [
    "CLASSES",
    "Contestant",
    "Server",
    "Traffic",
    "build",
    "filter_of",
    "found_servers",
    "request",
    "servers",
    "start_cluster",
    "url",
]

#: Distribution -> its dupefilter.
CLASSES = {
    "scrapy-bloom": "scrapy_bloom.BloomDupeFilter",
    "scrapy-redis": "scrapy_redis.dupefilter.RFPDupeFilter",
    "Scrapy-Redis-BloomFilter": "scrapy_redis_bloomfilter.dupefilter.RFPDupeFilter",
}


class BenchSpider(Spider):
    """A spider that crawls nothing."""

    name = "bench"


@dataclass
class Contestant:
    """A dupefilter that is ready, and what belongs to it.

    Attributes:
        name: the distribution it comes in.
        dupefilter: the object whose ``request_seen`` is measured.
        client: its own Redis client.
        fingerprint: the function it identifies a request by.
    """

    name: str
    dupefilter: Any
    client: redis.Redis
    fingerprint: Callable[[Request], Any]

    @property
    def title(self) -> str:
        """Name and version."""
        return f"{self.name} {version(self.name)}"

    @property
    def is_ours(self) -> bool:
        """Whether it is the one under test."""
        return self.name == "scrapy-bloom"


def found_servers() -> dict[str, str]:
    """Return the servers of this machine: name -> binary."""
    return {name: binary for name, binary in find_servers().items() if binary}


def servers(*, full: bool) -> list[str]:
    """Return the binaries of those to measure on: with ``full`` of all, else of the first."""
    binaries = list(found_servers().values())
    return binaries if full else binaries[:1]


def build(name: str, redis_url: str, *, hiredis: bool = True) -> Contestant:
    """Build a contestant on a server; they use different keys there.

    Args:
        name: one of ``CLASSES``.
        redis_url: the server.
        hiredis: use hiredis (redis-py's default where it is installed); else redis-py's own code.
    """
    # "crawled" needs an event loop, which only some benchmarks have.
    settings = {"REDIS_URL": redis_url, "BLOOM_REMEMBER": "scheduled"}
    crawler: Crawler = get_crawler(BenchSpider, settings)
    crawler.spider = BenchSpider.from_crawler(crawler)
    with contextlib.redirect_stdout(io.StringIO()):  # one of them prints its settings
        dupefilter = load_object(CLASSES[name]).from_spider(crawler.spider)
    if name == "scrapy-bloom":
        client = filter_of(dupefilter).client  # PING goes over the same connection
        fingerprint = crawler.request_fingerprinter.fingerprint
    else:
        client, fingerprint = dupefilter.server, dupefilter.request_fingerprint
    if not hiredis:
        _without_hiredis(client.connection_pool)
    return Contestant(name, dupefilter, client, fingerprint)


def filter_of(dupefilter: Any) -> BloomFilter:
    """Return our filter."""
    bloom: BloomFilter = dupefilter._crawl._server.bloom  # noqa: SLF001 - what is measured
    return bloom


def _without_hiredis(pool: redis.ConnectionPool) -> None:
    pool.disconnect()
    pool.reset()
    encode = pool.get_encoder().encode
    pool.connection_kwargs["parser_class"] = _RESP2Parser
    pool.connection_kwargs["command_packer"] = PythonRespSerializer(6_000, encode)


def url(number: int) -> str:
    """Return the URL of page ``number`` of a shop: all are different and in canonical form."""
    return f"https://www.example.com/catalogue/{number % 97}/product-{number}.html"


def request(number: int) -> Request:
    """Return a new request for page ``number``; nothing about it is cached anywhere."""
    return Request(url(number))


@dataclass
class Traffic:
    """What this process sent to Redis.

    Attributes:
        round_trips: times something was sent, to wait for the reply.
        commands: commands in it.
    """

    round_trips: int = 0
    commands: int = 0

    @classmethod
    @contextlib.contextmanager
    def counted(cls) -> Iterator["Traffic"]:
        """Count what all connections of redis-py send within the block."""
        traffic = cls()
        patched: Any = AbstractConnection
        send, one, many = patched.send_packed_command, patched.send_command, patched.pack_commands

        def send_packed_command(self: Any, *args: Any, **kwargs: Any) -> Any:
            traffic.round_trips += 1
            return send(self, *args, **kwargs)

        def send_command(self: Any, *args: Any, **kwargs: Any) -> Any:
            traffic.commands += 1
            return one(self, *args, **kwargs)

        def pack_commands(self: Any, commands: Any) -> Any:
            listed = list(commands)
            traffic.commands += len(listed)
            return many(self, listed)

        patched.send_packed_command = send_packed_command
        patched.send_command = send_command
        patched.pack_commands = pack_commands
        try:
            yield traffic
        finally:
            patched.send_packed_command = send
            patched.send_command = one
            patched.pack_commands = many
