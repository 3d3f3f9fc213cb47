"""Addresses with TLS: options, clients of both kinds, and what errors say."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import Settings
from support.answering import SECRET, answering, refused
from support.both import Steps, add_blocking, add_in_the_loop, use
from support.certificates import Authority, TLSServer

from scrapy_bloom.bloom.client.connection import connect, connect_scrapy_redis
from scrapy_bloom.bloom.errors import ConfigurationError

#: The time-out of servers that are not expected to answer.
SHORT = 0.3
Use = Callable[..., None]


@pytest.fixture(params=[add_blocking, add_in_the_loop])
def steps(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def using(steps: Steps) -> Use:
    """Adds items by a client of each kind in turn."""
    return partial(use, steps=steps)


# -- what works --


def test_an_authority(tls_server: TLSServer, using: Use, tmp_path: Path) -> None:
    url = tls_server.url(trusting=False)
    using(tls_server.url())
    using(url, ssl_ca_certs=str(tls_server.authority.file))
    using(url, ssl_ca_data=tls_server.authority.file.read_text())
    using(tls_server.url(trusting=False, ssl_cert_reqs="none"))
    parts = ("no known authority has signed (certificate verify failed: ", "set ssl_ca_certs to")
    with refused(*parts, f"rediss://127.0.0.1:{tls_server.port}/0 has"):
        using(url)
    with refused(*parts):
        using(url, ssl_ca_certs=str(Authority(tmp_path).issue("other").certificate))


def test_a_client_certificate(tls_server: TLSServer, using: Use, tmp_path: Path) -> None:
    own, other = tls_server.client, Authority(tmp_path).issue("other")
    both = tmp_path / "both.pem"
    both.write_bytes(own.certificate.read_bytes() + own.key.read_bytes())
    locked = tls_server.authority.issue("locked", password=SECRET)
    with tls_server.requiring():
        two: dict[str, Any] = {"ssl_certfile": own.certificate, "ssl_keyfile": own.key}
        using(tls_server.url(**two))
        using(tls_server.url(ssl_certfile=both))
        encrypted: dict[str, Any] = {"ssl_certfile": locked.certificate, "ssl_keyfile": locked.key}
        using(tls_server.url(**encrypted, ssl_password=SECRET))
        # The server closes the connection; whether its reason is read before is chance.
        wrong = tls_server.url(ssl_certfile=other.certificate, ssl_keyfile=other.key)
        for url in (tls_server.url(), wrong):
            with refused("requires a client certificate", "set ssl_certfile and ssl_keyfile"):
                using(url)


def test_what_the_server_presents_is_checked(tls_server: TLSServer, using: Use) -> None:
    with tls_server.presenting(tls_server.authority.issue("elsewhere", address="192.0.2.1")):
        with refused("certificate for another host name (certificate verify failed", "127.0.0.1"):
            using(tls_server.url())
        with refused("or set ssl_check_hostname=false"):
            using(tls_server.url(ssl_check_hostname="true"))
        using(tls_server.url(ssl_check_hostname="False"))
    parts = "not valid now (certificate verify failed: certificate has expired)", "renew it"
    with tls_server.presenting(tls_server.authority.issue("old", days=-1)), refused(*parts):
        using(tls_server.url())


# -- servers that do not fit --


def test_tls_to_a_port_without(tls_server: TLSServer, steps: Steps, using: Use) -> None:
    text = "did not answer in time: see whether it is up and expects TLS on this port"
    if steps is add_blocking:
        text = "does not use TLS on this port: use its port for TLS, or redis://"
    with refused(text):
        using(tls_server.url(tls_server.server.port), timeout=SHORT)
    # As one answers that is in protected mode, and a web server.
    denied = b"-DENIED Redis is running in protected mode\r\n"
    with answering(denied) as port, refused("does not use TLS on this port (", "or redis://"):
        using(tls_server.url(port))


def test_no_tls_to_a_port_with_it(tls_server: TLSServer, using: Use) -> None:
    with refused("closed the connection", "if it expects TLS, use rediss://"):
        using(f"redis://:{SECRET}@127.0.0.1:{tls_server.port}/0")
    alert = b"\x15\x03\x01\x00\x02\x02\x46"
    with answering(alert, to_greetings=alert) as port, refused("TLS on this port: use redi"):
        using(f"redis://127.0.0.1:{port}/0")


# -- options that are wrong --


misconfigured = partial(refused, error=ConfigurationError)


def test_files_that_are_no_certificates(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no certificate")
    for name, path, problem in (
        ("ssl_ca_certs", tmp_path / "none.pem", "does not exist"),
        ("ssl_certfile", tmp_path, "is no regular file"),
        ("ssl_ca_certs", "%00", "is no path"),
        ("ssl_ca_certs", text, "holds no certificate (no certificate or crl found)"),
    ):
        shown = "\\x00" if path == "%00" else str(path)
        with misconfigured(f"`url` sets {name} '{shown}', which {problem}: give the path"):
            connect(f"rediss://h?password={SECRET}&{name}={path}")


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs Linux")
def test_a_file_that_cannot_be_read() -> None:
    with misconfigured("ssl_ca_certs '/proc/self/mem', which cannot be read (Input/output error)"):
        connect("rediss://h?ssl_ca_certs=/proc/self/mem")


@pytest.mark.parametrize(
    ("certificate", "key", "parts"),
    [
        ("", "own", ("ssl_keyfile", "set ssl_certfile, too")),
        ("own", "", ("ssl_certfile", "private key")),
        ("own", "other", ("from which its private key", "mismatch")),
        ("locked", "locked", ("cannot be read", "and ssl_password if it is encrypted")),
    ],
)
def test_keys(tmp_path: Path, certificate: str, key: str, parts: tuple[str, ...]) -> None:
    authority = Authority(tmp_path)
    issued = {name: authority.issue(name) for name in ("own", "other")}
    issued["locked"] = authority.issue("locked", password=SECRET)
    options = [f"ssl_certfile={issued[certificate].certificate}"] if certificate else []
    options += [f"ssl_keyfile={issued[key].key}"] if key else []
    with misconfigured("`url` sets", *parts):
        connect(f"rediss://h?{'&'.join(options)}")


def test_ciphers_and_versions_that_openssl_refuses() -> None:
    with misconfigured("ssl_ciphers 'none', which OpenSSL refuses", "No cipher"):
        connect("rediss://h?ssl_ciphers=none")
    with misconfigured("ssl_min_version 3, which OpenSSL refuses"):
        connect("rediss://h?ssl_min_version=3")


def test_options_without_tls() -> None:
    with misconfigured("`url` sets ssl_", "use rediss://"):
        connect("unix:///s?ssl_cert_reqs=none")
    with misconfigured("`params` sets ssl_ca_certs", "without TLS: use rediss://"):
        connect("redis://h", params={"ssl_ca_certs": "/x"})
    settings = Settings({"REDIS_PARAMS": {"ssl_ca_certs": "/x"}})
    with misconfigured("REDIS_PARAMS sets ssl_ca_certs", "use rediss://"):
        connect_scrapy_redis(settings)
