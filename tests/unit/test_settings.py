"""Settings: every one of them parses what people write, and rejects the rest with the fix."""

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scrapy.settings import Settings
from support.paths import ROOT

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.model.schedule import DAY, Schedule, Span
from scrapy_bloom.settings import SETTINGS, BloomSettings, in_settings
from tools.reference import settings as reference

#: Python's on regular expressions that a later version may read in another way.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

SECRET = "s3cret"
names = st.sampled_from(sorted(SETTINGS))
#: What a setting in settings.py, or a plug-in, may come up with.
values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.just(10**400),
        st.floats(),
        st.text(),
        st.binary(),
        st.timedeltas(),
        st.sampled_from(["1 day", "run", "[" * 9_000, "9" * 5_000, "redis://h", "[[1]]", "{}"]),
    ),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


def read(**settings: Any) -> BloomSettings:
    return BloomSettings.read(Settings(settings), "shop")


def error_of(**settings: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read(**settings)
    return str(caught.value)


# -- what people write --


@pytest.mark.parametrize(
    ("name", "value", "parsed"),
    [
        ("enabled", "False", False),
        ("enabled", "1", True),
        ("redis_url", " redis://h ", "redis://h"),
        ("redis_params", '{"username": "u"}', {"username": "u"}),
        ("key", "100%", "100%"),
        ("key", "%(bot)s:%(spider)s:seen", "scrapybot:shop:seen"),
        ("timeout", "2", 2),
        ("timeout", 0.5, 0.5),
        ("timeout", timedelta(milliseconds=20), 0.02),
        ("heartbeat", "1 minute", 60),
        ("on_redis_error", "close", "close"),
        ("remember", " Scheduled ", "scheduled"),
        ("remember", "delivered", "delivered"),
        ("items_only", "true", True),
        ("crawled_http_codes", "200-202,404", {200, 201, 202, 404}),
        ("crawled_http_codes", [200, "301-302"], {200, 301, 302}),
        ("retry_after", "6 hours", 6 * 3600),
        ("recrawl_after", "Never", "never"),
        ("recrawl_after", timedelta(days=1), Span(DAY)),
        ("capacity", "1_000_000", 1_000_000),
        ("capacity", 1e6, 1_000_000),
        ("error_rate", "1e-4", 1e-4),
        ("blocks", "64", 64),
        ("seeds", "13", 13),
        ("seeds", "5, 7", (5, 7)),
        ("seeds", "[5]", (5,)),
        ("seeds", [5, 7], (5, 7)),
        ("wait_replicas", "2", 2),
    ],
)
def test_what_people_write_is_parsed(name: str, value: object, parsed: object) -> None:
    assert getattr(read(**{f"BLOOM_{name.upper()}": value}), name) == parsed


@pytest.mark.parametrize("unset", [None, "", "None", " "])
def test_unset_is_the_default(unset: object) -> None:
    for name in SETTINGS:
        assert read(**{name: unset}) == read(), name


def test_a_window_and_its_period_make_a_schedule() -> None:
    found = read(BLOOM_RECRAWL_AFTER="1 day", BLOOM_ROTATE_EVERY="6 hours").schedule()
    assert found == Schedule(Span(DAY), Span(DAY // 4))
    assert read().schedule() == read(BLOOM_RECRAWL_AFTER="never").schedule() == Schedule()


def test_a_spider_may_have_any_name() -> None:
    spiders = ("shop{de}", "shop%7Bde%7D", "münchen 1")
    keys = [BloomSettings.read(Settings(), name).key for name in spiders]
    assert keys == ["shop%7Bde%7D:bloom", "shop%257Bde%257D:bloom", "münchen 1:bloom"]


# -- what is rejected --

BAD: dict[str, Sequence[object]] = {
    "BLOOM_ENABLED": ("perhaps", [], float("inf")),
    "BLOOM_KEY": ("{a}", "\ud800", 7),
    "BLOOM_TIMEOUT": (0, -1, "slow", 10**9, float("nan"), "1 month", True, [1], b"1"),
    "BLOOM_HEARTBEAT": (0.5, "often", "2 hours"),
    "BLOOM_ON_REDIS_ERROR": ("ignore", True),
    "BLOOM_REMEMBER": ("never", "items", True, ["crawled"]),
    "BLOOM_ITEMS_ONLY": ("sometimes", {}),
    "BLOOM_CRAWLED_HTTP_CODES": ("20", "300-200", "1000", "all", [], 7, True, [b"200"]),
    "BLOOM_RETRY_AFTER": (0, "2", "1 month", "soon", 3600, ["1 day"]),
    "BLOOM_RECRAWL_AFTER": ("2", 7, "soon", "run", "0 days", "200 years", "2 runs", 10**5_000),
    "BLOOM_ROTATE_EVERY": ("2", "never", b"1 day"),
    "BLOOM_RECRAWL_RULES": ('"a"', 7, {"a": "1 day"}, b"[]", [("a",)], ["ab"], "/a 1 day"),
    "BLOOM_CAPACITY": (0, 1.5, "many", True, 10**14, float("inf"), b"5", "1 day"),
    "BLOOM_ERROR_RATE": (0, 1, -1, "1%"),
    "BLOOM_BLOCKS": (0, 16_385),
    "BLOOM_WAIT_REPLICAS": ("-1", "garbage", "1000", True),
}


@pytest.mark.parametrize("name", BAD)
def test_the_rest_is_rejected_with_name_value_and_fix(name: str) -> None:
    for value in BAD[name]:
        message = error_of(**{name: value})
        shown = "(int)" if value == 10**5_000 else f"{value!r:.60}"
        assert message.startswith(f"{name} = {shown} can't be used. "), message


SECRETS: dict[str, Sequence[object]] = {
    "BLOOM_REDIS_URL": (
        *(f"u:{SECRET}@host:6379", f"redis://:{SECRET}@h:bad", f"http://:{SECRET}@h", 7),
        *(f"redis://:{SECRET}@h/x", f"redis://:{SECRET}@h?db=x"),
    ),
    "BLOOM_REDIS_PARAMS": (f'{{"password": "{SECRET}"', [SECRET], {1: SECRET}, {"retry": SECRET}),
    "BLOOM_SEEDS": (f"[{SECRET}]", [SECRET], [987654321, 987654321], [987654321.5], 0, 65, []),
}


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_are_in_no_error(name: str) -> None:
    for value in SECRETS[name]:
        message = error_of(**{name: value})
        assert name in message
        assert SECRET not in message
        assert "987654321" not in message


def test_secrets_are_not_in_the_repr() -> None:
    secrets = {
        "BLOOM_REDIS_URL": f"redis://:{SECRET}@host",
        "BLOOM_REDIS_PARAMS": {"password": SECRET},
        "BLOOM_SEEDS": [987654321],
    }
    assert SECRET not in repr(read(**secrets))
    assert "987654321" not in repr(read(**secrets))


def test_a_misspelt_setting_is_an_error_that_names_the_nearest_one() -> None:
    message = error_of(BLOOM_CAPCITY=5)
    assert message == "Unknown setting BLOOM_CAPCITY. Did you mean BLOOM_CAPACITY?"
    assert error_of(BLOOM_REDIS_UR=f"redis://:{SECRET}@host").endswith("BLOOM_REDIS_URL?")


def test_a_setting_like_no_other_is_an_error_that_lists_all() -> None:
    message = error_of(BLOOM_LEDGER=f"redis://:{SECRET}@host")
    assert message.startswith("Unknown setting BLOOM_LEDGER. Use one of BLOOM_ENABLED, ")
    assert all(name in message for name in SETTINGS)
    assert SECRET not in message


@pytest.mark.parametrize("name", ["RECRAWL_AFTER", "ROTATE_EVERY", "RETRY_AFTER"])
def test_a_time_without_a_unit_is_an_error_that_shows_two_right_values(name: str) -> None:
    setting = f"BLOOM_{name}"
    given = {"BLOOM_RECRAWL_AFTER": "2 years", setting: "2"}
    shown = re.findall(r'"(2 \w+)"', error_of(**given))[-2:]
    assert len(set(shown)) == 2
    for value in shown:
        window = {"days": "2 days", "hours": "2 days", "months": "2 months"}[value.split()[1]]
        assert read(**{"BLOOM_RECRAWL_AFTER": window, setting: value})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"BLOOM_RECRAWL_AFTER": "5 months", "BLOOM_ROTATE_EVERY": "2 months"},
            "BLOOM_RECRAWL_AFTER = 5 months isn't 1 to 64 times BLOOM_ROTATE_EVERY = 2 months",
        ),
        (
            {"BLOOM_ROTATE_EVERY": "1 month"},
            'BLOOM_ROTATE_EVERY = "1 month" needs BLOOM_RECRAWL_AFTER',
        ),
        (
            {"BLOOM_ROTATE_EVERY": "1 month", "BLOOM_RECRAWL_AFTER": "never"},
            'BLOOM_ROTATE_EVERY = "1 month" needs BLOOM_RECRAWL_AFTER',
        ),
        (
            {"BLOOM_ITEMS_ONLY": True, "BLOOM_REMEMBER": "scheduled"},
            'BLOOM_ITEMS_ONLY has no use with BLOOM_REMEMBER = "scheduled"',
        ),
        (
            {"BLOOM_WAIT_REPLICAS": 1, "BLOOM_REMEMBER": "scheduled"},
            'BLOOM_WAIT_REPLICAS has no use with BLOOM_REMEMBER = "scheduled"',
        ),
    ],
)
def test_settings_that_contradict_each_other_are_rejected(
    settings: dict[str, Any], message: str
) -> None:
    assert message in error_of(**settings)


@given(names, values)
@example("BLOOM_SEEDS", range(10**12))
@example("BLOOM_SEEDS", {SECRET})
@example("BLOOM_CRAWLED_HTTP_CODES", 10**5_000)
@example("BLOOM_CRAWLED_HTTP_CODES", [10**5_000])
@example("BLOOM_RECRAWL_RULES", [10**5_000])
@example("BLOOM_RECRAWL_RULES", [["a", {"recrawl_after": "1 day", "x": 10**5_000}]])
@example("BLOOM_KEY", "{" + "9" * 9_000)
def test_any_value_gives_a_value_or_one_clear_error(name: str, value: object) -> None:
    needed = {"BLOOM_RECRAWL_AFTER": "1 year"} if name == "BLOOM_ROTATE_EVERY" else {}
    message = ""
    try:
        read(**needed, **{name: value})
    except ConfigurationError as error:
        message = str(error)
    assert not message or name in message
    assert SECRET not in message


# -- the server --


@pytest.mark.parametrize(
    ("settings", "url", "params"),
    [
        ({}, "redis://localhost:6379/0", {}),
        ({"REDIS_URL": "redis://h/3", "REDIS_HOST": "x"}, "redis://h/3", {}),
        (
            {
                "REDIS_HOST": "h",
                "REDIS_DB": 2,
                "REDIS_PARAMS": {"password": SECRET, "retry_on_timeout": True},
            },
            "redis://h:6379/2",
            {"password": SECRET},
        ),
        ({"REDIS_PARAMS": {"host": "h", "port": 1, "db": 5}}, "redis://h:1/5", {}),
        ({"REDIS_PARAMS": {"unix_socket_path": "/a b", "db": 1}}, "unix:///a%20b?db=1", {}),
        (
            {"REDIS_PARAMS": {"ssl": True, "ssl_cert_reqs": None, "socket_timeout": 30}},
            "redis://localhost:6379/0",
            {"ssl": True, "ssl_cert_reqs": None},
        ),
        (
            {
                "REDIS_PARAMS": {"ssl": "1", "password": "of another user"},
                "BLOOM_REDIS_PARAMS": {"password": SECRET},
            },
            "redis://localhost:6379/0",
            {"ssl": "1", "password": SECRET},
        ),
        (
            {"REDIS_URL": "redis://h", "BLOOM_REDIS_PARAMS": {"username": "u"}},
            "redis://h",
            {"username": "u"},
        ),
        ({"REDIS_URL": "redis://h", "BLOOM_REDIS_URL": "redis://i"}, "redis://i", None),
        ({"BLOOM_REDIS_URL": "embedded:/data"}, "embedded:/data", None),
    ],
)
def test_the_server_is_that_of_scrapy_redis_unless_it_is_set(
    settings: dict[str, Any], url: str, params: dict[str, Any] | None
) -> None:
    found = read(**settings)
    assert (found.redis_url, found.redis_params) == (url, params)


def test_an_error_in_an_address_names_the_setting_it_comes_from() -> None:
    url = f"user:{SECRET}@host:6379"
    fixed = 'has no scheme. Write "redis://user:password@host:6379"'
    assert error_of(BLOOM_REDIS_URL=url) == f"BLOOM_REDIS_URL {fixed}"
    assert error_of(REDIS_URL=url) == f"REDIS_URL {fixed}"
    for name in ("BLOOM_REDIS_PARAMS", "REDIS_PARAMS"):
        assert f"REDIS_URL or {name}" in error_of(**{name: {"ssl": "garbage"}})
    message = error_of(REDIS_PARAMS=SECRET)
    assert message.startswith("REDIS_PARAMS can't be used. ")
    assert SECRET not in message


def test_errors_of_the_library_name_settings() -> None:
    text = "`blocks`, `url` and `window`, but not `chmod` or `ring`"
    named = "BLOOM_BLOCKS, BLOOM_REDIS_URL and BLOOM_RECRAWL_AFTER, but not `chmod` or `ring`"
    assert in_settings(text) == named


# -- the page of the reference --


def test_the_page_is_written_from_the_table() -> None:
    """``make reference`` writes it."""
    assert (ROOT / "docs" / "reference" / "settings.md").read_text("utf-8") == reference.page()
