"""Addresses with TLS: options, clients of both kinds, and what errors say."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from scrapy.settings import Settings
from support.answering import SECRET, refused
from support.both import Steps, add_blocking, add_in_the_loop, use
from support.certificates import Authority, TLSServer

from scrapy_bloom.settings import BloomSettings

#: The time-out of servers that are not expected to answer.
SHORT = 0.3
Use = Callable[..., None]
#: What a connection with TLS begins with: a record of a handshake.
HELLO = b"\x16\x03"
TLS = "can't be reached over TLS. Check that it uses TLS on this port, and the ssl_ arguments"


@pytest.fixture(params=[add_blocking, add_in_the_loop])
def steps(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def using(steps: Steps) -> Use:
    """Adds items by a client of each kind in turn."""
    return partial(use, steps=steps)


def test_an_authority(tls_server: TLSServer, using: Use, tmp_path: Path) -> None:
    url = tls_server.url(trusting=False)
    using(tls_server.url())
    using(url, ssl_ca_certs=str(tls_server.authority.file))
    using(url, ssl_ca_data=tls_server.authority.file.read_text())
    using(tls_server.url(trusting=False, ssl_cert_reqs="none", ssl_check_hostname="false"))
    with refused(TLS, "certificate verify failed", f"rediss://127.0.0.1:{tls_server.port}"):
        using(url)
    with refused(TLS, "certificate verify failed"):
        using(url, ssl_ca_certs=str(Authority(tmp_path).issue("other").certificate))


def test_a_client_certificate(tls_server: TLSServer, using: Use, tmp_path: Path) -> None:
    own, other = tls_server.client, Authority(tmp_path).issue("other")
    both = tmp_path / "both.pem"
    both.write_bytes(own.certificate.read_bytes() + own.key.read_bytes())
    with tls_server.requiring():
        two: dict[str, Any] = {"ssl_certfile": own.certificate, "ssl_keyfile": own.key}
        using(tls_server.url(**two))
        using(tls_server.url(ssl_certfile=both))
        # The server closes the connection; whether its reason is read before is chance.
        wrong = tls_server.url(ssl_certfile=other.certificate, ssl_keyfile=other.key)
        for url in (tls_server.url(), wrong):
            with refused(f"127.0.0.1:{tls_server.port}"):
                using(url)


def test_what_the_server_presents_is_checked(tls_server: TLSServer, using: Use) -> None:
    with tls_server.presenting(tls_server.authority.issue("elsewhere", address="192.0.2.1")):
        with refused(TLS, "certificate verify failed", "127.0.0.1"):
            using(tls_server.url())
        using(tls_server.url(ssl_check_hostname="False"))
    old = tls_server.authority.issue("old", days=-1)
    with tls_server.presenting(old), refused(TLS, "certificate has expired"):
        using(tls_server.url())


def test_tls_to_a_port_without(tls_server: TLSServer, using: Use) -> None:
    with refused(f"rediss://127.0.0.1:{tls_server.server.port}"):
        using(tls_server.url(tls_server.server.port), timeout=SHORT)


def test_no_tls_to_a_port_with_it(tls_server: TLSServer, using: Use) -> None:
    with refused("closed the connection. Check whether it expects TLS (rediss://)"):
        using(f"redis://:{SECRET}@127.0.0.1:{tls_server.port}/0")


# -- scrapy-redis's settings --


@contextmanager
def listening(first: list[bytes]) -> Iterator[int]:
    """Listen on a port, and note the first bytes of each connection."""

    def note() -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                if not (data := connection.recv(4_096)):
                    return
                first.append(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        thread = Thread(target=note)
        thread.start()
        try:
            yield port
        finally:
            socket.create_connection(("127.0.0.1", port)).close()
            thread.join()


def arguments(**settings: Any) -> dict[str, Any]:
    """Return where a crawl connects to."""
    found = BloomSettings.read(Settings(settings), "shop")
    return {"url": found.redis_url, **(found.redis_params or {})}


@pytest.mark.parametrize("flag", [True, "true", "1", 1])
@pytest.mark.parametrize("name", ["REDIS_PARAMS", "BLOOM_REDIS_PARAMS"])
def test_a_password_is_sent_over_tls_only_if_the_arguments_ask_for_it(
    name: str, flag: object, using: Use
) -> None:
    first = list[bytes]()
    with listening(first) as port:
        where = {"REDIS_HOST": "127.0.0.1", "REDIS_PORT": port}
        with refused(f"rediss://127.0.0.1:{port}"):
            using(**arguments(**where, **{name: {"ssl": flag, "password": SECRET}}))
    assert first
    for data in first:
        assert data.startswith(HELLO)
        assert SECRET.encode() not in data


def test_the_arguments_of_scrapy_redis_lead_to_a_server_with_tls(
    tls_server: TLSServer, using: Use
) -> None:
    where = {"REDIS_HOST": "127.0.0.1", "REDIS_PORT": tls_server.port}
    tls = {"ssl": True, "ssl_ca_certs": str(tls_server.authority.file)}
    using(**arguments(**where, REDIS_PARAMS=tls))
    using(**arguments(**where, REDIS_PARAMS=tls, BLOOM_REDIS_PARAMS={"client_name": "crawler"}))
    using(**arguments(REDIS_URL=f"redis://127.0.0.1:{tls_server.port}", BLOOM_REDIS_PARAMS=tls))
