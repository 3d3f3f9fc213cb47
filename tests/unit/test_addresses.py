"""Addresses: what they stand for; small mistakes have short fixes, and nothing shows a password."""

import traceback
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from redis import SSLConnection

from scrapy_bloom.bloom.client.address import Address
from scrapy_bloom.bloom.client.connect import connect
from scrapy_bloom.bloom.errors import ConfigurationError

SECRET = "S3CRET"


def message(error: BaseException) -> str:
    """Everything a log would show of an error."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


@pytest.mark.parametrize(
    ("url", "expected", "label"),
    [
        ("redis://[::1]:7/3", {"host": "::1", "port": 7, "db": 3}, "redis://[::1]:7/3"),
        ("redis://u:p%40@h", {"username": "u", "password": "p@"}, "redis://h"),
        ("redis://:p@q@h", {"password": "p@q"}, "redis://h"),
        ("redis://h?db=4&client_name=x", {"db": 4, "client_name": "x"}, "redis://h"),
        ("redis:///4", {"db": 4}, "redis:///4"),
        ("unix:///a/s?db=2&password=p", {"path": "/a/s", "password": "p"}, "unix:///a/s"),
        ("unix://u:p@/a@b/s", {"path": "/a@b/s", "username": "u"}, "unix:///a@b/s"),
    ],
)
def test_addresses_of_one_server(url: str, expected: dict[str, Any], label: str) -> None:
    with closing(connect(url, timeout=3)) as connection:
        taken = connection.client.connection_pool.connection_kwargs
        assert taken.items() >= {**expected, "socket_timeout": 3, "protocol": 2}.items()
        assert connection.label == label


@pytest.mark.parametrize(
    ("url", "params"),
    [
        ("rediss://h", {}),
        ("rediss://h", {"ssl": False}),
        ("redis://h?ssl=True", {}),
        *(("redis://h", {"ssl": flag}) for flag in (True, 1, "true", " 1")),
    ],
)
def test_tls_is_a_matter_of_the_scheme_or_of_an_argument(url: str, params: dict[str, Any]) -> None:
    with closing(connect(url, **params, ssl_cert_reqs="none")) as connection:
        pool = connection.client.connection_pool
        assert issubclass(pool.connection_class, SSLConnection)
        assert pool.connection_kwargs["ssl_cert_reqs"] == "none"
        assert connection.label == "rediss://h"


@pytest.mark.parametrize("flag", [False, None, 0, "False", "0"])
def test_there_is_no_tls_where_neither_asks_for_it(flag: object) -> None:
    with closing(connect("redis://h", ssl=flag)) as connection:
        assert not issubclass(connection.client.connection_pool.connection_class, SSLConnection)


@pytest.mark.parametrize("kind", ["cluster", "sentinel"])
def test_tls_of_several_nodes_may_be_an_argument(kind: str) -> None:
    address = Address.parse(f"redis+{kind}://h:1,i:2/{'s' * (kind == 'sentinel')}", {"ssl": True})
    assert address.options["ssl"] is True
    assert address.label.startswith(f"rediss+{kind}://h:1,i:2/")


@pytest.mark.parametrize(
    ("url", "nodes", "service", "label"),
    [
        (
            "redis+cluster://u:pw@h:1,[::1]:2,i",
            [("h", 1), ("::1", 2), ("i", 6379)],
            "",
            "h:1,[::1]:2,i",
        ),
        ("rediss+cluster://tok@h/0?password=pw", [("h", 6379)], "", "h/0"),
        ("redis+sentinel://:pw@a,b:2/main/1", [("a", 26379), ("b", 2)], "main", "a,b:2/main/1"),
    ],
)
def test_addresses_of_several_nodes(
    url: str, nodes: list[tuple[str, int]], service: str, label: str
) -> None:
    address = Address.parse(url, {})
    assert [*address.nodes] == nodes
    assert address.service == service
    assert address.label == f"{url.partition('://')[0]}://{label}"


# -- mistakes --


@pytest.mark.parametrize(
    ("url", "fix"),
    [
        ("localhost:6379", 'Write "redis://localhost:6379"'),
        (f"user:{SECRET}@localhost:1", 'Write "redis://user:password@localhost:1"'),
        ("/run/redis.sock", 'Write "unix:///run/redis.sock"'),
        ("", 'Write "redis://localhost:6379"'),
        *((url, 'Write "embedded:"') for url in ("embeded:", "embedded", "Embedded:")),
        ("embedded://dir", 'Write "embedded:/data/dir"'),
        (f"embedded:/dirredis://user:{SECRET}@host", 'Write "embedded:/data/dir"'),
        (f"redsi://:{SECRET}@h", "Did you mean redis?"),
        (f"http://:{SECRET}@h", "Use redis://host:port/db, rediss:// for TLS"),
        *((f"redis://h:{port}", "from 1 to 65535") for port in (0, 77022, 770220, SECRET)),
        (f"redis://user:{SECRET}", "from 1 to 65535"),
        ("redis+cluster://h:1,i:77022", "from 1 to 65535"),
        (f"redis://:{SECRET}@h/abc", "a database that is no number"),
        (f"redis://:{SECRET}@h?db=x", "an option that redis-py can't read"),
        (f"redis://:a/{SECRET}@h", "@ as %40"),
        (f"redis://u:{SECRET}/?@{SECRET}", "@ as %40"),
        (f"redis://:{SECRET}@[::1", "can't be read"),
        (f"u:{SECRET}@h://i", "unknown scheme"),
        (f"unix://run/s?password={SECRET}", "Write unix:///path/to/socket"),
        (f"unix+cluster://:{SECRET}@h", "unknown scheme"),
        (f"redis+cluster://:{SECRET}@h/1", "clusters have only database 0"),
        (f"redis+sentinel://:{SECRET}@h:1/", "names no service"),
        (f"redis+sentinel://:{SECRET}@h/s/x", "a database that is no number"),
    ],
)
def test_a_mistake_has_a_short_fix_and_shows_no_password(url: str, fix: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        connect(url)
    assert fix in str(caught.value)
    assert len(str(caught.value)) < 300
    assert SECRET not in message(caught.value)


@pytest.mark.parametrize(
    ("url", "params", "text"),
    [
        ("redis://h", {"colour": "red"}, "'colour' can't be set. Remove it"),
        ("redis://h", {"pasword": SECRET}, "'pasword' .* Did you mean password?"),
        ("redis://h?usernam=x", {}, "'usernam' .* Did you mean username?"),
        *(
            ("redis://h", {name: SECRET}, f"'{name}' can't be set")
            for name in (
                *("socket_timeout", "retry", "decode_responses", "protocol", "max_connections"),
                *("host", "redis_cls", "connection_pool"),
            )
        ),
        ("redis://h?retry_on_timeout=1", {}, "'retry_on_timeout' can't be set"),
        ("redis+cluster://h", {"db": 2}, "clusters have only database 0"),
        ("redis+cluster://h", {"ssl_ciphers": "none"}, "'ssl_ciphers'"),
        ("redis+sentinel://h/s?sentinel_db=1", {}, "'sentinel_db'"),
        ("redis://h", {"ssl_ca_certs": "/x"}, "needs TLS. Use rediss://"),
        ("unix:///s?ssl_cert_reqs=none", {}, "needs TLS. Use rediss://"),
        ("unix:///s", {"ssl": True}, "is a Unix socket, which has no TLS. Remove the argument ssl"),
        ("redis://h?ssl=maybe", {}, "ssl = 'maybe' can't be used. Use True for TLS, or False"),
        ("redis+sentinel://h/s?sentinel_ssl=2", {}, "sentinel_ssl = '2' can't be used. Use True"),
        ("rediss://h", {"ssl_ca_certs": "/none.pem"}, r"'/none.pem' can't be read \(.*\). Give a"),
        ("rediss://h?ssl_keyfile=%00", {}, r"can't be read \(.*\). Give a PEM"),
        ("rediss://h", {"ssl_certfile": str(Path(__file__).parent)}, "can't be read"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(
    url: str, params: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text) as caught:
        connect(url, **params)
    assert SECRET not in str(caught.value)


def test_arguments_of_sentinels_are_their_own() -> None:
    url = "redis+sentinel://:one@h/s?sentinel_password=two&sentinel_ssl=true"
    address = Address.parse(url, {"client_name": "x"})
    assert address.options == {"password": "one", "client_name": "x"}
    assert address.sentinel_options == {"password": "two", "ssl": True}
    files = {"ssl_certfile": __file__, "sentinel_ssl": True, "sentinel_ssl_certfile": __file__}
    address = Address.parse("rediss+sentinel://h/s", files)
    for options in address.options, address.sentinel_options:
        assert options["ssl_keyfile"] == __file__, "it's in the same file"


#: Passwords as people paste them, with or without percent-encoding; the marks make them findable.
passwords = st.text(max_size=8).map(lambda middle: f"{SECRET}{middle}{SECRET}")
schemes = st.sampled_from(["", "//", "redis:", "http://", "unix://", "embedded:/dirredis://"])
schemes |= st.sampled_from(["redis", "rediss", "redis+cluster", "redis+sentinel"]).map(
    "{}://".format
)
hosts = st.sampled_from(
    ["@h", "@h:6379/0", "@[::1]:1", "@", "", "@/run/s", "@h?db=0", "@h@i", "@h,i:1/s", "@h/s/1"]
)


@given(scheme=schemes, user=st.sampled_from(["", "u"]), password=passwords, host=hosts)
def test_no_label_and_no_error_shows_a_password(
    scheme: str, user: str, password: str, host: str
) -> None:
    if "@" not in host:
        password = password.replace("@", "")  # else its end is the host, for every reader
        scheme = scheme or "redis://"  # else it is a host and its port, for every reader
    try:
        shown = Address.parse(f"{scheme}{user}:{password}{host}", {}).label
    except ConfigurationError as error:
        shown = message(error)
    assert SECRET not in shown


@given(schemes, st.text(max_size=12), hosts, st.text(max_size=12))
@example("redis://", ":p℀", "@h", "")
@example("redis://", "", "@[::1", "")
@example("//", ":p[", "@h", "")
@example("rediss://", "", "@h", "?ssl_keyfile=%00")
def test_any_text_is_an_error_or_an_address_whose_label_leads_to_the_same_place(
    scheme: str, user: str, host: str, end: str
) -> None:
    try:
        address = Address.parse(f"{scheme}{user}{host}{end}", {})
    except ConfigurationError:
        return
    again = Address.parse(address.label, {})
    assert place(again) == place(address)


def place(address: Address) -> tuple[object, ...]:
    """Return what an address leads to. Its database may be an option, which the label hides."""
    options = [address.options.get(name) for name in ("host", "port", "unix_socket_path")]
    return address.kind, address.nodes, address.service, *options
