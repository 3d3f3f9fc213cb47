"""Servers older than Redis 7.0 are refused."""

import pytest
from redis import Redis
from support.servers import Server

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.errors import StorageError
from scrapy_bloom.bloom.protocol import ring_store, scripts

#: Makes a server look older to a script: without the constant that Redis 7.0 introduced.
OLDER = """local server = redis
local redis = {{
  call = server.call, error_reply = server.error_reply, REDIS_VERSION_NUM = {number},
  pcall = function() return {info} end,
}}
"""
HEADER = scripts.load("header").text


def pretend(monkeypatch: pytest.MonkeyPatch, info: str, number: str = "nil") -> None:
    """Let the server answer INFO in scripts with a Lua expression."""
    text = OLDER.format(info=info, number=number) + HEADER
    script = scripts._script("header", text)
    load = scripts.load
    monkeypatch.setattr(ring_store, "load", lambda name: script if name == "header" else load(name))


@pytest.mark.each_server
def test_an_old_server_is_refused(
    server: Server, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, "'# Server\\r\\nredis_version:6.2.14\\r\\nredis_git_sha1:0'")
    bloom = BloomFilter(client, "k")
    for call in (bloom.open, bloom.info, lambda: bloom.add("a")):
        with pytest.raises(StorageError, match=r"is Redis 6\.2\.14: use Redis 7\.0 or later, or V"):
            call()
    assert not client.keys("*")


@pytest.mark.parametrize(
    ("info", "number"),
    [
        ("{err = 'NOPERM this user has no permissions to run INFO'}", "nil"),
        ("'redis_version:10.1.0'", "nil"),
        ("'redis_version:6.2.14'", "0x00070000"),
    ],
)
def test_what_is_not_known_to_be_old_is_not_refused(
    client: Redis, monkeypatch: pytest.MonkeyPatch, info: str, number: str
) -> None:
    pretend(monkeypatch, info, number)
    assert BloomFilter(client, "k").add("a")


@pytest.mark.each_server
def test_the_servers_that_we_support_have_the_constant(server: Server, client: Redis) -> None:
    """So opening a filter costs them no INFO."""
    assert client.eval("return redis.REDIS_VERSION_NUM", 0) >= 0x00070000
