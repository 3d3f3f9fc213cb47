"""``Server``: which eviction policies it reports."""

import pytest
from scrapy.settings import Settings

from scrapy_bloom.crawl.server import Server
from scrapy_bloom.settings import BloomSettings


@pytest.mark.parametrize(
    ("rules", "reported"),
    [([], "allkeys-lru"), ([("/list/", "1 day")], "volatile-lru, allkeys-lru")],
)
def test_policies_are_reported_that_may_evict_keys_of_the_filter_or_of_a_rule(
    rules: list[tuple[str, str]], reported: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"BLOOM_REDIS_URL": "redis://h", "BLOOM_RECRAWL_RULES": rules}
    server = Server(BloomSettings.read(Settings(settings), "shop"))
    policies = ["volatile-lru", "allkeys-lru", "noeviction"]
    monkeypatch.setattr(server.bloom.transport, "eviction_policies", lambda: policies)
    assert server.eviction_policy() == reported
