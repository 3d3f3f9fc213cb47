"""``Server``: which eviction policies it reports."""

import pytest

from scrapy_bloom.bloom.model.schedule import Schedule
from scrapy_bloom.crawl.server import Server
from scrapy_bloom.settings import BloomSettings


@pytest.mark.parametrize(
    ("policy", "window", "reported"),
    [
        ("noeviction", "2 days", ""),
        ("", "2 days", ""),
        ("volatile-lru", "2 days", "volatile-lru"),
        ("volatile-lru", None, ""),
        ("allkeys-lfu", "2 days", "allkeys-lfu"),
        ("allkeys-lfu", None, "allkeys-lfu"),
        ("volatile-lru allkeys-lru noeviction", None, "allkeys-lru"),
        ("volatile-lru allkeys-lru noeviction", "2 days", "volatile-lru, allkeys-lru"),
    ],
)
def test_a_policy_is_reported_if_it_may_evict_the_filters_keys(
    policy: str, window: str | None, reported: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``volatile-*`` evicts keys with an expiry, and a filter without a window has none."""
    settings = BloomSettings(redis_url="redis://h", key="k", recrawl_after=window)
    server = Server(settings, {}, lambda *_: None)
    policies = policy.split(" ")
    monkeypatch.setattr(server.bloom.transport, "eviction_policies", lambda: policies)
    assert server.eviction_policy() == reported


def test_a_policy_is_reported_that_may_evict_only_the_keys_of_a_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = BloomSettings(redis_url="redis://h", key="k")
    server = Server(settings, {"1-day": Schedule.of("1 day")}, lambda *_: None)
    monkeypatch.setattr(server.bloom.transport, "eviction_policies", lambda: ["volatile-ttl"])
    assert server.eviction_policy() == "volatile-ttl"
