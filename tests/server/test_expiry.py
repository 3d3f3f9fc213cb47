"""With a window, each key of a filter expires, whatever was done last; without one, it stays."""

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis
from support.cli import URLS, Call, claim, fail, fingerprints, in_shop
from support.clock import MovedServer
from support.filters import add_to, assert_expiries, at_round, fields, small, with_windows

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.schedule import Schedule
from scrapy_bloom.bloom.protocol.claims import NewClaim
from scrapy_bloom.bloom.protocol.notes import note_crawl
from scrapy_bloom.bloom.protocol.rings import OUTLIVES_SECONDS
from scrapy_bloom.bloom.protocol.session import Key
from scrapy_bloom.bloom.protocol.workers import Workers

DAY = 86_400
ITEMS = fingerprints(URLS)
KEYS: list[Key] = [("default", item) for item in ITEMS]
RING = "{shop:bloom:0}:ring"
#: Keys that expire even if the filter has no window.
SHORT_LIVED = (":workers:", ":shares:", ":groups:", ":wait")


class Use:
    """A filter, and what can be done with it."""

    def __init__(self, client: Redis, window: str, server: MovedServer, shop: Call) -> None:
        self.client, self.window, self.server, self.shop = client, window, server, shop
        self.bloom = self.filter()
        self.run = self.bloom.run
        self.claims = in_shop(self.bloom)
        self.workers = Workers(self.claims)

    def filter(self, key: str = "shop:bloom", **options: Any) -> BloomFilter:
        return small(self.client, key, blocks=2, **{"window": self.window, **options})

    def claimed(self) -> BloomFilter:
        """Claim URLs for the worker w1."""
        claim(self.bloom, URLS)
        return self.bloom

    def call(self, *arguments: str) -> None:
        settings = {"BLOOM_REDIS_URL": self.server.unix_url, "BLOOM_RECRAWL_AFTER": self.window}
        assert self.shop(*arguments, **settings).code == 0

    def lose(self, key: str) -> BloomFilter:
        self.bloom.extend(URLS)
        assert self.client.delete(key)
        return self.bloom

    def rotate(self, *days: int) -> None:
        for number in days:
            self.bloom.extend(URLS)
            self.server.move(number * DAY)
        self.bloom.extend(URLS)


OPERATIONS: dict[str, Callable[[Use], object]] = {
    "add": lambda use: use.bloom.add("a"),
    "grow": lambda use: use.filter("other", capacity=9).extend(URLS),
    "write all": lambda use: use.filter("other", ring="write-all", capacity=9).extend(URLS),
    "count": lambda use: use.filter("other", counting=True).add_many(["a", "a"]),
    "discard": lambda use: use.filter("other", counting=True).discard("a"),
    "note": lambda use: use.run(note_crawl(use.bloom.session, "other")),
    "find a ring lost": lambda use: use.lose(RING).extend(URLS),
    "find a bitmap lost": lambda use: use.lose(use.bloom.keys()[0]).extend(URLS),
    "rotate": lambda use: use.rotate(20, 20, 40),
    "clear a window": lambda use: (use.bloom.extend(URLS), use.bloom.clear("default")),
    "clear all": lambda use: (use.bloom.extend(URLS), use.bloom.clear()),
    "claim": lambda use: use.claimed(),
    "keep": lambda use: use.run(use.claims.keep([NewClaim(KEYS[0], "n", "{}")], "w1")),
    "crawl again": lambda use: use.run(use.claims.recrawl({(0, "aa"): "{}"})),
    "fail": lambda use: fail(use.bloom, URLS),
    "fail a lost claim": lambda use: use.run(use.claims.wait([NewClaim(KEYS[0], "why", "{}")])),
    "confirm": lambda use: use.claimed().run(use.claims.confirm(KEYS[:9], ["w1"])),
    "give": lambda use: use.claimed().run(use.workers.give(KEYS, "w1", "group", 2)),
    "beat": lambda use: use.run(use.workers.beat("w1", 60)),
    "be idle": lambda use: use.run(use.workers.beat("w1", 60, is_idle=True)),
    "end": lambda use: (OPERATIONS["beat"](use), use.run(use.workers.beat("w2", 0))),
    "wait": lambda use: use.bloom.wait(0, 1),
    "the command recrawl": lambda use: use.call("recrawl", URLS[0]),
    "the command clear": lambda use: use.call("clear", "--yes"),
}
CLAIMING = "claim", "keep", "crawl again", "fail a lost claim", "the command recrawl"
#: What some of them write, so that it's known to be looked at.
WRITTEN = dict.fromkeys(CLAIMING, ":claims:")
WRITTEN |= {"give": ":shares:", "beat": ":workers:", "be idle": ":workers:", "wait": ":wait"}


@pytest.mark.parametrize("window", ["2 months", "never"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_key_expires_with_a_window_and_without_one_stays(
    moved: MovedServer, shop: Call, operation: str, window: str
) -> None:
    with moved.client() as client:
        OPERATIONS[operation](Use(client, window, moved, shop))
        names = [name.decode() for name in client.scan_iter()]
        assert any(WRITTEN.get(operation, ":ring") in name for name in names)
        lasting = [name for name in names if not any(part in name for part in SHORT_LIVED)]
        assert all(client.pttl(name) > 0 for name in {*names} - {*lasting})
        if window == "never":
            assert {client.pttl(name) for name in lasting} == {-1}
        else:
            assert_expiries(client)


def claims_that_expire(client: Redis) -> list[str]:
    """Make claims of both blocks that expire in a minute; return the names of their keys."""
    names = [f"{{shop:bloom:{block}}}:claims:shop" for block in range(2)]
    for name in names:
        client.hset(name, "ff", "w0 n 0 0 {}")
        client.expire(name, 60)
    return names


@pytest.mark.parametrize("operation", CLAIMING[:4])
def test_claims_last_as_long_as_the_last_one_of_them(
    moved: MovedServer, shop: Call, operation: str
) -> None:
    with moved.client() as client:
        use = Use(client, "2 months", moved, shop)
        names = claims_that_expire(client)
        OPERATIONS[operation](use)
        assert max(map(client.ttl, names)) > 60


@pytest.mark.parametrize("operation", CLAIMING[:4])
def test_claims_last_no_shorter_because_the_clock_was_behind(
    moved: MovedServer, shop: Call, operation: str
) -> None:
    with moved.client() as client:
        use = Use(client, "2 months", moved, shop)
        names = claims_that_expire(client)
        moved.move(-1_000 * DAY)
        OPERATIONS[operation](use)
        moved.move(1_000 * DAY)
        assert client.exists(*names) == 2


@pytest.mark.parametrize(
    ("window", "least"), [("2 months", OUTLIVES_SECONDS + 62 * DAY), ("never", None)]
)
def test_claims_last_as_long_as_the_longest_window(
    client: Redis, window: str, least: int | None
) -> None:
    windows = {"first": Schedule.of(window), "last": Schedule.of("1 day")}
    claim(small(client, blocks=1, window="1 hour", windows=windows), URLS)
    left = client.ttl("{shop:bloom:0}:claims:shop")
    assert left == -1 if least is None else left > least


def test_what_is_for_ever_stays_beside_what_has_a_window(client: Redis) -> None:
    both = with_windows(client, default="never", hour="1 hour")
    both.extend(URLS)
    add_to(both, "hour", *URLS)
    assert small(client, window="2 months").add("a"), "once, a run has another window"
    ttls = {key.decode(): client.ttl(key) for key in client.keys()}
    for block in range(2):
        assert ttls.pop(f"{{shop:bloom:{block}}}:ring") == -1
        assert ttls.pop(f"{{shop:bloom:{block}}}:default:0-0.0") == -1
    assert len(ttls) >= 2
    assert min(ttls.values()) > 0


def test_what_is_noted_of_an_evicted_ring_expires_even_if_the_process_is_killed_then(
    client: Redis,
) -> None:
    bloom, ttls = small(client, blocks=1, window="2 months"), list[int]()
    entering = at_round(note_crawl(bloom.session, "shop", "bot"), 3, client.flushall)
    bloom.run(at_round(entering, 4, lambda: ttls.append(client.ttl(RING))))
    assert ttls == [-2]  # it isn't there: a hash of notes alone would have no expiry
    assert client.ttl(RING) > 0
    assert fields(client)["s:shop"] == "bot"
    assert small(client).open().seeds == bloom.open().seeds
