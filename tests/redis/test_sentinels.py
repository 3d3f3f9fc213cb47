"""Addresses of services of Sentinel: the primary is found, checked, and never another server."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from support.answering import SECRET, refused
from support.both import PATIENCE, Both, add_by_both, use
from support.certificates import TLSServer
from support.proxy import Fault, Kind, Proxy
from support.sentinels import SERVICE, ScriptedSentinel, Sentinel, Watched, start_sentinels
from support.servers import Server, free_port
from support.serving import serving

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.client.connection import connect


@pytest.fixture(scope="module")
def watched(any_binary: str) -> Iterator[Watched]:
    with start_sentinels(any_binary) as watched:
        yield watched


@pytest.fixture
def pair(any_binary: str) -> Iterator[tuple[Server, Server]]:
    """Two servers that know nothing of each other."""
    with Server(any_binary) as one, Server(any_binary) as two:
        yield one, two


def url_of(*sentinels: ScriptedSentinel | int) -> str:
    ports = [one if isinstance(one, int) else one.port for one in sentinels]
    return f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in ports)}/{SERVICE}"


def ping(url: str, timeout: float = PATIENCE) -> None:
    with closing(connect(url, timeout=timeout)) as connection:
        BloomFilter(connection.client, "k").open()


# -- real sentinels --


def test_both_clients_use_the_primary(watched: Watched) -> None:
    use(watched.url())
    with closing(connect(watched.url())) as connection:
        assert connection.label == watched.url().removesuffix("/0")
        connection.client.ping()
        assert connection.label == f"{SERVICE} at 127.0.0.1:{watched.servers[0].port}"
        bloom = BloomFilter(connection.client, "k")
        assert repr(bloom) == f"<BloomFilter 'k' on {connection.label}>"


def test_sentinels_that_are_of_no_use(watched: Watched) -> None:
    other = watched.url().replace(SERVICE, "other")
    with refused("cannot be found: the sentinel", "knows no service 'other'", "name of the serv"):
        ping(other)
    ports = [free_port(), free_port()]
    parts = [f"the sentinel 127.0.0.1:{port} is not there" for port in ports]
    with refused("cannot be found: ", *parts):
        ping(url_of(*ports))
    port = watched.servers[0].port
    with refused(f"the sentinel 127.0.0.1:{port}", "it is a server, and no sentinel"):
        ping(url_of(port))


def test_a_silent_sentinel_leaves_time_for_the_others(watched: Watched) -> None:
    """Its port accepts connections, and nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        url = watched.url().replace("://", f"://127.0.0.1:{port},", 1)
        use(url)
        with refused(f"the sentinel 127.0.0.1:{port} did not answer in time"):
            ping(url_of(port), timeout=0.2)


def test_passwords_of_sentinels_and_of_servers_are_apart(any_binary: str) -> None:
    server, sentinel = f"{SECRET}-server", f"{SECRET}-sentinel"
    with start_sentinels(any_binary, password=server, sentinel_password=sentinel) as watched:
        who, query = f":{server}@", f"sentinel_password={sentinel}"
        with watched.servers[0].client(password=server) as admin:
            # The role of a server may be forbidden.
            rules = ("on", f">{SECRET}", "~*", "+@all", "-role")
            admin.execute_command("ACL", "SETUSER", "worker", *rules)
        use(watched.url(who=who, query=query))
        ping(watched.url(who=f"worker:{SECRET}@", query=query))
        with refused("requires a password: give it as sentinel_username and sentinel_password"):
            ping(watched.url(who=who))
        with refused("the sentinel", "refuses the user name or the password"):
            ping(watched.url(who=who, query=f"{query}x"))
        place = f"{SERVICE} at 127.0.0.1:{watched.servers[0].port}"
        with refused(f"{place} requires a password: give it in the arguments"):
            ping(watched.url(query=query))
        with refused(f"{place} refuses the user name or the password"):
            ping(watched.url(who=f":{server}x@", query=query))


def test_tls_of_sentinels_and_of_servers_is_apart(tls_server: TLSServer) -> None:
    files = (
        *("--tls-auth-clients", "no", "--tls-ca-cert-file", str(tls_server.authority.file)),
        *("--tls-cert-file", str(tls_server.issued.certificate)),
        *("--tls-key-file", str(tls_server.issued.key)),
    )
    port = free_port()
    binary = tls_server.server.binary
    with Sentinel(binary, tls_server.server, "--tls-port", str(port), *files):
        trusting = f"sentinel_ssl=true&sentinel_ssl_ca_certs={tls_server.authority.file}"
        use(f"{url_of(port)}?{trusting}")
        with refused("no known authority has signed", "set sentinel_ssl_ca_certs"):
            ping(f"{url_of(port)}?sentinel_ssl=true")
        with refused(f"the sentinel 127.0.0.1:{port} closed the connection"):
            ping(url_of(port))
    with serving(ScriptedSentinel(tls_server.port)) as sentinel:
        url = url_of(sentinel).replace("redis+", "rediss+")
        use(f"{url}?ssl_ca_certs={tls_server.authority.file}")
        with refused(f"{SERVICE} at 127.0.0.1:{tls_server.port}", "no known authority has signed"):
            ping(url)


# -- what sentinels do for moments only --


def test_both_clients_leave_a_server_that_is_not_the_primary_any_more(
    pair: tuple[Server, Server],
) -> None:
    old, new = pair

    async def steps(both: Both) -> None:
        assert both.bloom.add("a")
        assert await both.other.add("b")
        sentinel.names = new.port
        assert not both.bloom.add("a"), "its connection is good, and no other was made"
        await both.other._client.connection_pool.disconnect()
        assert await both.other.add("a"), "this one is new"
        assert not both.bloom.add("a")
        with old.client() as client:
            assert len(BloomFilter(client, "k")) == 2
            client.flushall()
        both.bloom.add_many(["c", "d"])
        await both.other.add_many(["e", "f"])
        with old.client() as client:
            assert not client.keys("*")

    with serving(ScriptedSentinel(old.port)) as sentinel:
        use(url_of(sentinel), steps)


def test_a_replica_and_a_server_that_is_gone_are_not_used(pair: tuple[Server, Server]) -> None:
    primary, other = pair
    with ExitStack() as stack, other.client() as admin:
        admin.replicaof("127.0.0.1", str(primary.port))
        behind = stack.enter_context(serving(ScriptedSentinel(other.port)))
        with refused("cannot be reached now: ", f"the server 127.0.0.1:{other.port} is a replica"):
            ping(url_of(behind))
        use(url_of(behind, stack.enter_context(serving(ScriptedSentinel(primary.port)))))
        admin.replicaof("NO", "ONE")
        gone = free_port()
        both = [stack.enter_context(serving(ScriptedSentinel(gone))) for _ in range(2)]
        with refused(f"cannot be reached now: the server 127.0.0.1:{gone}: "):
            ping(url_of(*both))


def test_a_primary_that_becomes_a_replica_is_left(pair: tuple[Server, Server]) -> None:
    old, new = pair

    async def steps(both: Both) -> None:
        await add_by_both(both)
        with old.client() as admin:
            admin.replicaof("127.0.0.1", str(new.port))
        sentinel.names = new.port
        with refused(f"127.0.0.1:{old.port} is a read-only replica"):
            await both.other.add("c")
        assert await both.other.add("c")
        assert both.bloom.add("d"), "its connection was not closed, and leads to the replica"
        assert both.connection.label.endswith(str(new.port))

    with serving(ScriptedSentinel(old.port)) as sentinel:
        use(url_of(sentinel), steps)


def test_a_call_whose_reply_is_lost_is_not_repeated(pair: tuple[Server, Server]) -> None:
    async def steps(both: Both) -> None:
        await add_by_both(both)
        proxy.fault = Fault(Kind.RESET_REPLY, times=1)
        with refused("closed the connection"):
            await both.other.add("c")
        proxy.fault = Fault(Kind.RESET_REPLY, times=1)
        with refused("closed the connection"):
            both.bloom.add("d")
        assert proxy.struck == 2
        assert both.bloom.add_many(["c", "d"]) == [False, False], "they were carried out"

    with Proxy(pair[0].port) as proxy, serving(ScriptedSentinel(proxy.port)) as sentinel:
        use(url_of(sentinel), steps)
