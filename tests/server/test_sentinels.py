"""Addresses of services of Sentinel: the primary is found, and found again after a failover."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing

import pytest
from support.answering import SECRET, refused
from support.both import PATIENCE, Both, use
from support.certificates import TLSServer
from support.polling import TICK_SECONDS, until_it_works
from support.proxy import Fault, Kind
from support.sentinels import SERVICE, Sentinel, Watched, start_sentinels
from support.servers import free_port

from scrapy_bloom.bloom import BloomFilter
from scrapy_bloom.bloom.client.connect import connect
from scrapy_bloom.bloom.errors import StorageError


@pytest.fixture(scope="module")
def watched(any_binary: str) -> Iterator[Watched]:
    with start_sentinels(any_binary) as watched:
        yield watched


def url_of(*ports: int) -> str:
    return f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in ports)}/{SERVICE}"


def ping(url: str, timeout: float = PATIENCE) -> None:
    with closing(connect(url, timeout=timeout)) as connection:
        BloomFilter(connection.client, "k", label=connection.label).open()


async def awaited_until_it_works(call: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await call()
        except StorageError:
            await asyncio.sleep(TICK_SECONDS)
        else:
            return


def test_sentinels_that_are_of_no_use(watched: Watched) -> None:
    unknown = "has no Sentinel that knows the primary. Check the service's name"
    with refused("/other", unknown):
        ping(watched.url().replace(SERVICE, "other"))
    with refused(unknown):
        ping(url_of(free_port(), free_port()))
    with refused(SERVICE):
        ping(url_of(watched.servers[0].port))


def test_a_silent_sentinel_leaves_time_for_the_others(watched: Watched) -> None:
    """Its port accepts connections, and nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        use(watched.url().replace("://", f"://127.0.0.1:{port},", 1), timeout=4)
        with refused(f"127.0.0.1:{port}/{SERVICE}"):
            ping(url_of(port), timeout=0.2)


def test_passwords_of_sentinels_and_of_servers_are_apart(any_binary: str) -> None:
    server, sentinel = f"{SECRET}-server", f"{SECRET}-sentinel"
    with start_sentinels(any_binary, password=server, sentinel_password=sentinel) as watched:
        who, query = f":{server}@", f"sentinel_password={sentinel}"
        use(watched.url(who=who, query=query))
        for url in (
            watched.url(who=who),
            watched.url(who=who, query=f"{query}x"),
            watched.url(query=query),
            watched.url(who=f":{server}x@", query=query),
        ):
            with refused("redis+sentinel://127.0.0.1"):
                ping(url)


def test_tls_of_sentinels_is_their_own(tls_server: TLSServer) -> None:
    files = (
        *("--tls-auth-clients", "no", "--tls-ca-cert-file", str(tls_server.authority.file)),
        *("--tls-cert-file", str(tls_server.issued.certificate)),
        *("--tls-key-file", str(tls_server.issued.key)),
    )
    port = free_port()
    with Sentinel(tls_server.server.binary, tls_server.server, "--tls-port", str(port), *files):
        trusting = f"sentinel_ssl=true&sentinel_ssl_ca_certs={tls_server.authority.file}"
        use(f"{url_of(port)}?{trusting}")
        for query in ("?sentinel_ssl=true", ""):
            with refused(f"127.0.0.1:{port}/{SERVICE}"):
                ping(f"{url_of(port)}{query}", timeout=2)


def test_both_clients_follow_a_failover(any_binary: str) -> None:
    with start_sentinels(any_binary) as watched:
        (shard,) = watched.shards

        async def steps(both: Both) -> None:
            both.bloom.add("a")
            await both.other.add("b")
            assert both.bloom.wait(1, 4_000) == 1
            watched.servers[0].kill()
            until_it_works(lambda: both.bloom.add("c"), StorageError)
            await awaited_until_it_works(lambda: both.other.add("d"))
            with shard.primary().client() as client:
                assert BloomFilter(client, "k").contains(["a", "b", "c", "d"]) == [True] * 4

        use(watched.url(), steps)


def test_a_call_whose_reply_is_lost_is_not_repeated(any_binary: str) -> None:
    with start_sentinels(any_binary, proxied=True) as watched:

        async def steps(both: Both) -> None:
            both.bloom.add("a")
            await both.other.add("b")
            proxy = watched.shards[0].primary().proxy
            assert proxy is not None
            before = proxy.struck
            for item in ("c", "d"):
                # Sentinels and the replica use it, too.
                proxy.fault = Fault(Kind.RESET_REPLY)
                with refused("has stopped answering"):
                    await both.other.add(item) if item == "c" else both.bloom.add(item)
                proxy.fault = Fault(Kind.PASS)
            assert proxy.struck > before
            until_it_works(lambda: both.bloom.contains("a"), StorageError)
            assert both.bloom.contains(["c", "d"]) == [True, True], "they were carried out"

        use(watched.url(), steps)
