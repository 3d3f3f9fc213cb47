"""``Server``: when pages that began before have to be crawled again, because claims may be lost."""

from collections.abc import Callable

import pytest

from scrapy_bloom.bloom.errors import StorageError
from scrapy_bloom.bloom.model.schedule import Schedule
from scrapy_bloom.crawl.server import Server
from scrapy_bloom.settings import BloomSettings

AWAY = StorageError("it is away")
Identify = Callable[[str], tuple[int, int]]


@pytest.fixture
def server() -> Server:
    return Server(BloomSettings(redis_url="redis://h", key="k"), {}, lambda *_: None)


@pytest.fixture
def identify(server: Server, monkeypatch: pytest.MonkeyPatch) -> Identify:
    """Let the server be another process; return the epoch of the last restart, and this one."""

    def identify(name: str) -> tuple[int, int]:
        monkeypatch.setattr(server.bloom.transport, "server_id", lambda: name)
        server.identify()
        return server.restarted, server.epoch

    return identify


def test_an_outage_is_one_epoch_whoever_notices_it(server: Server, identify: Identify) -> None:
    noticed: list[Exception] = []
    server.failed.append(noticed.append)
    identify("a")
    server.fail(AWAY)
    server.fail(AWAY)
    assert (server.is_up, server.epoch, noticed) == (False, 1, [AWAY])
    # What was claimed since the outage began is written after it.
    assert identify("b") == (1, 1)


def test_an_outage_without_a_restart_voids_nothing(server: Server, identify: Identify) -> None:
    identify("a")
    server.fail(AWAY)
    assert identify("a") == (0, 1)
    server.recover()
    assert server.is_up
    server.fail(AWAY)
    assert identify("a") == (0, 2)


def test_a_restart_that_no_call_has_noticed_voids_what_began_before(
    server: Server, identify: Identify
) -> None:
    identify("a")
    assert identify("a") == (0, 0)
    server.fail(AWAY)
    assert identify("b") == (1, 1)


def test_a_server_that_hides_its_process_may_be_another_one_after_an_outage(
    server: Server, identify: Identify
) -> None:
    identify("")
    server.fail(AWAY)
    assert identify("") == (1, 1)


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
