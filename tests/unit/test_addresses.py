"""Addresses: small mistakes have short remedies, and messages never show a password."""

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.bloom.client.addresses import redact
from scrapy_bloom.bloom.client.connection import connect
from scrapy_bloom.bloom.errors import ConfigurationError, explain

SECRET = "S3CRET"


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        *((url, 'did you mean "embedded:", or') for url in ("embeded:", "embedded", "Embedded:")),
        *(
            (url, 'did you mean "embedded:", or')
            for url in ("embedded://dir", "embedded:redis://h")
        ),
        *((f"redis://h:{port}", "number from 1 to 65535") for port in (0, 77022, 770220)),
        ("redis+cluster://h:1,i:77022", "number from 1 to 65535"),
    ],
)
def test_a_small_mistake_has_a_short_remedy(url: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        connect(url)
    assert remedy in str(caught.value)
    assert len(str(caught.value)) < 150


def test_an_unknown_argument_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"^`params` sets 'colour', .* remove it"):
        connect("redis://h", params={"colour": "red"})
    with pytest.raises(ConfigurationError, match=r"`params` sets 'pasword', .* mean password\?$"):
        connect("redis://h", params={"pasword": SECRET})
    with pytest.raises(ConfigurationError, match=r"`url` sets 'usernam', .* mean username\?$"):
        connect("redis://h?usernam=x")


# -- in messages --


def test_a_server_that_the_crawl_starts_is_not_to_be_started_by_the_user() -> None:
    text = str(explain(redis.TimeoutError("timed out"), "embedded:/data"))
    assert "did not answer in time: see whether it is up, or start the crawl again" in text
    assert "BLOOM_REDIS_URL" not in text


#: Passwords as people paste them, with or without percent-encoding; the marks make them findable.
passwords = st.text(max_size=8).map(lambda middle: f"{SECRET}{middle}{SECRET}")
schemes = st.sampled_from(
    [
        *("redis://", "rediss://", "unix://", "redis:", "http://", "//", ""),
        *("redis+cluster://", "rediss+cluster://", "redis+sentinel://", "rediss+sentinel://"),
    ]
)
hosts = st.sampled_from(
    ["@h", "@h:6379/0", "@[::1]:1", "@", "", "@/run/s", "@h?db=0", "@h@i", "@h,i:1/s", "@h/s/1"]
)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://u:pw@h:1/2?db=2", "redis://u:***@h:1/2?db=2"),
        ("redis://token@h", "redis://***@h"),
        ("redis://h?db=1&password=pw&x=y", "redis://h?db=1&***&***"),
        ("unix://u:pw@/a/s?password=pw", "unix://u:***@/a/s?***"),
        ("redis://h:99999", "redis://***"),
        ("redis://u:pw/?@pw", "redis://***"),
        ("embedded:/some/dir", "embedded:/some/dir"),
        ("embedded:/dirredis://u:pw@h", "***"),
        ("redis+cluster://u:pw@h:1,[::1]:2,i", "redis+cluster://u:***@h:1,[::1]:2,i"),
        ("rediss+cluster://tok@h/0?x=pw", "rediss+cluster://***@h/0?***"),
        (
            "redis+sentinel://:pw@a,b:2/main/1?sentinel_password=pw&db=1",
            "redis+sentinel://:***@a,b:2/main/1?***&db=1",
        ),
        ("redis+cluster://h,u:pw@i", "redis+cluster://h,u:***@i"),
        ("redis+cluster://h,pw@i,j@k", "redis+cluster://***"),
        ("redis+other://h", "***"),
    ],
)
def test_redact(url: str, shown: str) -> None:
    assert redact(url) == shown


@given(scheme=schemes, user=st.sampled_from(["", "u"]), password=passwords, host=hosts)
def test_a_password_before_the_host_never_survives(
    scheme: str, user: str, password: str, host: str
) -> None:
    if "@" not in host:
        password = password.replace("@", "")  # else its end is the host, for every reader
    assert SECRET not in redact(f"{scheme}{user}:{password}{host}")
