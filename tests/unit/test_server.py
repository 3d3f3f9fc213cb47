"""``Server``: which eviction policies it reports."""

import pytest

from scrapy_bloom.bloom.model.schedule import Schedule
from scrapy_bloom.crawl.server import Server
from scrapy_bloom.settings import BloomSettings


@pytest.mark.parametrize(
    ("windows", "reported"),
    [({}, "allkeys-lru"), ({"1-day": Schedule.of("1 day")}, "volatile-lru, allkeys-lru")],
)
def test_policies_are_reported_that_may_evict_keys_of_the_filter_or_of_a_rule(
    windows: dict[str, Schedule], reported: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(BloomSettings(redis_url="redis://h", key="k"), windows, lambda *_: None)
    policies = ["volatile-lru", "allkeys-lru", "noeviction"]
    monkeypatch.setattr(server.bloom.transport, "eviction_policies", lambda: policies)
    assert server.eviction_policy() == reported
