"""Settings: every one of them parses what people write and refuses the rest by name."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from scrapy.settings import Settings

from scrapy_bloom import ConfigurationError
from scrapy_bloom.bloom.model.schedule import SECONDS, Span
from scrapy_bloom.bloom.options import FilterOptions
from scrapy_bloom.recrawl_rules import RecrawlWindow
from scrapy_bloom.settings import SETTINGS, BloomSettings

DAY = Span(86_400, SECONDS)


def parse(**settings: Any) -> BloomSettings:
    return BloomSettings.from_scrapy(Settings(settings), "shop")


def test_a_spider_may_have_any_name() -> None:
    names = ("shop{de}", "shop%7Bde%7D", "münchen 1")
    keys = [BloomSettings.from_scrapy(Settings(), name).key for name in names]
    assert keys == ["shop%7Bde%7D:bloom", "shop%257Bde%257D:bloom", "münchen 1:bloom"]


def test_sitemaps_that_have_not_changed_are_left_out_by_default() -> None:
    """Others may list what counts as seen and was lost, or is read in each run."""
    each_run, some = [[".", "run"]], [[".", "1 day"]]
    assert parse().may_skip_sitemaps
    assert parse(BLOOM_RECRAWL_RULES=some).may_skip_sitemaps
    assert not parse(BLOOM_RECRAWL_RULES=each_run).may_skip_sitemaps
    assert not any(parse(BLOOM_REMEMBER=one).may_skip_sitemaps for one in ("items", "scheduled"))


@pytest.mark.parametrize("unset", [None, "", "None", " "])
def test_unset_is_the_default(unset: object) -> None:
    for name in SETTINGS:
        assert parse(**{name: unset}) == parse(), name


@pytest.mark.parametrize(
    ("name", "value", "parsed"),
    [
        ("redis_url", " redis://h ", "redis://h"),
        ("redis_params", '{"username": "u"}', {"username": "u"}),
        ("key", "100%", "100%"),
        ("key", "%(bot)s:%(spider)s:seen", "scrapybot:shop:seen"),
        ("start_recrawl_after", "24 hours", RecrawlWindow(DAY)),
        ("pending_memory", "256 mib", 1 << 28),
        ("remember", " Scheduled ", "scheduled"),
        ("heartbeat", timedelta(minutes=1), 60),
        ("retry_after", "6 hours", 21_600),
        ("crawled_statuses", [200, "301-302"], {200, 301, 302}),
        ("enabled", "False", False),
        ("timeout", "500 ms", 0.5),
        ("metrics_port", "[::1]:65535", ("::1", 65_535)),
        ("wait_replicas", "2", 2),
        ("batch", "4096", 4_096),
        ("cache_size", "200k", 200_000),
    ],
)
def test_what_people_write_is_parsed(name: str, value: object, parsed: object) -> None:
    assert getattr(parse(**{f"BLOOM_{name.upper()}": value}), name) == parsed


def test_options_of_the_filter_are_those_of_the_library() -> None:
    settings = parse(BLOOM_RECRAWL_AFTER="1 day", BLOOM_ROTATE_EVERY="6 hours", BLOOM_SEEDS="5, 7")
    asked = FilterOptions.parse(window="1 day", period="6 hours", seeds=[5, 7])
    assert settings.options == asked
    with pytest.raises(ConfigurationError, match="BLOOM_CAPACITY is the number of URLs"):
        parse(BLOOM_CAPACITY=0)


BAD: dict[str, Sequence[object]] = {
    "BLOOM_KEY": ("{a}", "%(nope)s", "%(spider)99999999999s", 7),
    "BLOOM_ENABLED": ("perhaps", 2),
    "BLOOM_REMEMBER": ("never", True),
    "BLOOM_HEARTBEAT": (0.5, "often", "2 hours"),
    "BLOOM_RETRY_AFTER": (0, "1 month", "2 runs", "soon"),
    "BLOOM_CRAWLED_STATUSES": ("20", "300-200", "600", "all", [], 7, True),
    "BLOOM_ON_REDIS_ERROR": ("ignore", True),
    "BLOOM_START_RECRAWL_AFTER": ("weekly", 0, {"days": 1}, []),
    "BLOOM_RECRAWL_RULES": ('"a"', 7, {"a": "1 day"}, b"[]", [("a",)], ["ab"], [{"a": 1}]),
    "BLOOM_TIMEOUT": (0, -1, "slow", 10**9),
    "BLOOM_METRICS_PORT": (
        *(65_536, 1.5, True, "host", ":1", "h:", "h:x", "h:65536", "::1:1"),
        *("[x]:1", "a..b:1", "a b:1", "\u0661", "x" * 64 + ":1", "user:pw@host:1"),
    ),
    "BLOOM_WAIT_REPLICAS": ("-1", "garbage", "1000", True),
    "BLOOM_BATCH": (-1, 4_097, 1.5, "many", True),
    "BLOOM_CACHE_SIZE": (-1, 10**9, 0.5, float("inf")),
    "BLOOM_REDIS_URL": (7,),
}


@pytest.mark.parametrize("name", BAD)
def test_the_rest_is_refused_by_name_and_value(name: str) -> None:
    for value in BAD[name]:
        with pytest.raises(ConfigurationError) as caught:
            parse(**{name: value})
        message = str(caught.value)
        assert name in message
        inner = [*value.values(), *value] if isinstance(value, dict) else value
        shown = [value, *(inner if isinstance(inner, list) else [])]
        assert any(repr(part)[:20] in message for part in shown) or "got int" in message


@pytest.mark.parametrize("value", ["{", "[1]", 5, {1: 2}])
def test_client_arguments_that_are_no_dict_are_refused_without_showing_them(value: object) -> None:
    with pytest.raises(ConfigurationError, match="REDIS_PARAMS is a dict.*got something else"):
        parse(BLOOM_REDIS_PARAMS=value)


@pytest.mark.parametrize("name", ["BLOOM_COUNTING", "BLOOM_REDIS_UR"])
def test_a_setting_that_there_is_not_is_refused_and_not_shown(name: str) -> None:
    """A window that is silently never applied would be found out after months."""
    with pytest.raises(ConfigurationError, match=f"{name} is no setting") as caught:
        parse(**{name: "redis://:s3cret@host"})
    assert "s3cret" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="did you mean BLOOM_CAPACI"):
        parse(BLOOM_CAPACTY=5)


def test_secrets_are_not_in_the_repr() -> None:
    secrets = {"BLOOM_REDIS_URL": "redis://:s3cret@host", "BLOOM_REDIS_PARAMS": {"a": "s3cret"}}
    settings = parse(**secrets, BLOOM_SEEDS=[123456789])
    assert "s3cret" not in repr(settings)
    assert "123456789" not in repr(settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"BLOOM_RECRAWL_AFTER": "5 months", "BLOOM_ROTATE_EVERY": "2 months"},
            'set BLOOM_ROTATE_EVERY to "1 month" or "5 months"',
        ),
        ({"BLOOM_ROTATE_EVERY": "1 month"}, "set BLOOM_RECRAWL_AFTER too, or remove it"),
        ({"BLOOM_RECRAWL_AFTER": "1 run"}, '"1 run" counts runs, and BLOOM_RUN is not set'),
        (
            {"BLOOM_RECRAWL_RULES": [("a", "1 day"), ("b", "2 runs")]},
            r"BLOOM_RECRAWL_RULES\[1\] = \"2 runs\" counts runs",
        ),
        ({"BLOOM_START_RECRAWL_AFTER": "1 run"}, 'START_RECRAWL_AFTER = "1 run" counts runs'),
        (
            {"BLOOM_RECRAWL_RULES": [("a", {"recrawl_after": "never", "capacity": 5})]},
            r'BLOOM_RECRAWL_RULES\[0\] has a "capacity", .* set BLOOM_CAPACITY',
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse(**settings)


def test_what_needs_claims_is_refused_under_scheduled() -> None:
    for given, says in (
        ({"BLOOM_WAIT_REPLICAS": 2}, "= 2 waits .* BLOOM_WAIT_REPLICAS = 0"),
        ({"BLOOM_LEDGER": True}, "BLOOM_LEDGER = True keeps the requests of pages"),
        ({"BLOOM_CONFIRM": "delivered"}, "BLOOM_CONFIRM = 'delivered' waits before pages"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            parse(**given, BLOOM_REMEMBER="scheduled")
    assert parse(BLOOM_WAIT_REPLICAS=0, BLOOM_REMEMBER="scheduled").wait_replicas == 0
