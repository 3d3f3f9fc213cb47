"""``scrapy bloom migrate``: every entry is seen afterwards, whatever happens in between."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from scrapy import Request
from scrapy.utils.test import get_crawler
from scrapy_redis.dupefilter import RFPDupeFilter as RedisDupeFilter
from support.cli import KEY, SECRET, Call, Own, Shop
from support.servers import Server, contents

from scrapy_bloom import BloomDupeFilter, BloomFilter
from scrapy_bloom.cli import migrate
from scrapy_bloom.cli.migrate import Items, Target
from scrapy_bloom.migrate import SetSource

OURS = "scrapy_bloom.fingerprinter.ScrapyRedisFingerprinter"
SET = "shop:dupefilter"
URLS = [f"https://example.com/{number}" for number in range(300)]


def digest(number: int) -> bytes:
    return hashlib.sha1(str(number).encode()).digest()


def fill(client: redis.Redis, count: int, key: str = SET) -> None:
    """Make a SET of fingerprints."""
    for start in range(0, count, 10_000):
        client.sadd(key, *(digest(n).hex() for n in range(start, min(count, start + 10_000))))


def filters(client: redis.Redis) -> dict[bytes, object]:
    """Return all that is stored of filters."""
    found = contents(client, "{*")
    return {key: (value, client.expiretime(key.decode())) for key, value in found.items()}


def are_seen(client: redis.Redis, numbers: Iterable[int], key: str = KEY) -> bool:
    return all(BloomFilter(client, key).contains([digest(number) for number in numbers]))


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "BATCH", 40)
    monkeypatch.setattr("scrapy_bloom.migrate.SCANNED", 40)


def at_call(monkeypatch: pytest.MonkeyPatch, number: int, action: Callable[[], object]) -> None:
    """Do something before the n-th scan of the SET."""
    scans = count(1)
    call = SetSource._call

    def disturbed(self: SetSource, command: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if command.__name__ == "sscan" and next(scans) == number:
            action()
        return call(self, command, *args, **kwargs)

    monkeypatch.setattr(SetSource, "_call", disturbed)


def raise_interrupt() -> None:
    raise KeyboardInterrupt


# -- from a SET --


def test_what_scrapy_redis_has_seen_a_crawl_has_seen(
    move: Call, server: Server, client: redis.Redis
) -> None:
    requests = [
        *(Request(url) for url in URLS),
        Request("https://example.com/?b=2&a=1#c"),
        Request("https://example.com/form", method="POST", body=b"x=1"),
    ]
    theirs = RedisDupeFilter(client, SET)
    assert not any(map(theirs.request_seen, requests))
    done = move("--from-set", "--json")
    assert (done.code, done.err) == (0, "")
    report = done.json
    assert report["source"] == f"the SET {SET!r} on {server.url}"
    assert report["filters"] == [KEY]
    assert (report["read"], report["new"], report["skipped"]) == (302, 302, 0)
    assert (report["checked"], report["seen"]) == (302, 302)
    settings = {"BLOOM_REDIS_URL": server.url, "REQUEST_FINGERPRINTER_CLASS": OURS}
    settings["BLOOM_REMEMBER"] = "scheduled"  # without an event loop
    crawler = get_crawler(Shop, settings_dict=settings)
    crawler.spider = Shop.from_crawler(crawler)
    crawler._apply_settings()
    dupefilter = BloomDupeFilter.from_crawler(crawler)
    dupefilter.open()
    try:
        assert all(map(dupefilter.request_seen, requests))
        assert not dupefilter.request_seen(Request("https://example.com/new"))
    finally:
        dupefilter.close()
    assert client.scard(SET) == 302
    assert BloomFilter(client, KEY).look().header.fingerprinter == OURS


def test_a_set_elsewhere_under_another_key(
    move: Call, client: redis.Redis, any_binary: str
) -> None:
    with Server(any_binary, "--requirepass", SECRET) as other:
        where = f"redis://:{SECRET}@127.0.0.1:{other.port}/3"
        with redis.Redis.from_url(where) as theirs:
            fill(theirs, 10, "my set")
        done = move("--from-set", "my set", "--from-server", where, "--json", "-L", "DEBUG")
        assert done.code == 0
        assert done.json["source"] == f"the SET 'my set' on redis://127.0.0.1:{other.port}/3"
        assert SECRET not in done.out + done.err
    assert are_seen(client, range(10))


def test_the_key_is_scrapy_redis_s(move: Call, client: redis.Redis) -> None:
    fill(client, 3, "seen/shop")
    assert move("--from-set", SCHEDULER_DUPEFILTER_KEY="seen/%(spider)s").code == 0
    assert are_seen(client, range(3))
    done = move("--from-set", spiders=(Shop, Own), BLOOM_KEY="all")
    assert done.code == 2
    assert "say which with --spider, or --from-set KEY" in done.err


def test_other_fingerprints_would_never_match(move: Call, client: redis.Redis) -> None:
    fill(client, 3)
    before = filters(client)
    theirs = {"REQUEST_FINGERPRINTER_CLASS": "scrapy.utils.request.RequestFingerprinter"}
    done = move("--from-set", **theirs)
    assert done.code == 2
    assert "REQUEST_FINGERPRINTER_CLASS is scrapy.utils.request.RequestFingerprinter" in done.err
    assert "Set it to 'scrapy_bloom.ScrapyRedisFingerprinter'" in done.err
    assert filters(client) == before
    done = move("--from-set", "--any-fingerprinter", **theirs)
    assert done.code == 0
    assert "would never be found" in done.err
    assert are_seen(client, range(3))
    # What is there is of another kind than what crawls will ask for from now on.
    assert "was filled with fingerprints of 'scrapy.utils" in move("--from-set").err


# -- stopped, and started again --


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("batches", [10, 60])
def test_ctrl_c_says_how_many_are_recorded(
    move: Call, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    """While it records (10), and while it verifies (60)."""
    fill(client, 2_000)
    with monkeypatch.context() as patch:
        at_call(patch, batches, raise_interrupt)
        done = move("--from-set")
    recorded = len(BloomFilter(client, KEY))
    assert (done.code, 300 <= recorded <= 2_000) == (2, True)
    text = f"stopped after {recorded:,} were recorded: the same command can be repeated"
    assert text in done.err
    done = move("--from-set", "--json")
    assert (done.code, done.json["new"], done.json["checked"]) == (0, 2_000 - recorded, 2_000)
    assert are_seen(client, range(2_000))


# -- what does not go well --


@pytest.mark.usefixtures("small_batches")
def test_what_is_not_seen_afterwards_is_counted(
    move: Call, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, 1_000)
    count_seen = Target.count_seen

    def lose_a_block(self: Target, items: Items) -> int:
        client.delete("{shop:bloom:3}:0.0")
        return count_seen(self, items)

    with monkeypatch.context() as patch:
        patch.setattr(Target, "count_seen", lose_a_block)
        done = move("--from-set")
    assert done.code == 2
    assert "NOT ALL THERE: " in done.out
    assert "of 1,000 are not seen" in done.out
    assert "run the same command again" in done.out
    assert move("--from-set").code == 0
    assert are_seen(client, range(1_000))


@pytest.mark.parametrize("has_filter", [False, True])
def test_in_a_window_in_runs_a_migration_is_of_the_latest_run(
    move: Call, client: redis.Redis, has_filter: bool
) -> None:
    fill(client, 3)
    if has_filter:
        BloomFilter(client, KEY, window="2 runs", run="1").open()
    assert move("--from-set", BLOOM_RECRAWL_AFTER="2 runs").code == 0
    seen = []
    for run in ("2", "3"):
        BloomFilter(client, KEY, window="2 runs", run=run).open()
        seen.append(are_seen(client, range(3)))
    assert seen == [True, False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from-set", "x"], "there is no SET 'x'"),
        (["--from-set", "--rate", "0"], "--rate is entries per second"),
        (["--from-urls", "x"], "--from-urls 'x' cannot be read: No such file"),
        (["--from-seen", "."], "--from-seen 'requests.seen' cannot be read"),
        (["--from-set", "--from-server", f"redis://:{SECRET}@[h"], "--from-server is not an addr"),
        (["--from-seen", "x", "--from-server", "redis://h"], "--from-server is where the SET"),
        (["--from-set", "--from-seen", "x"], "not allowed with argument"),
        ([], "one of the arguments --from-set --from-seen --from-urls is required"),
        (["--from-set", "--window", "x", "--key", "k"], "there is no filter 'k:x' on"),
    ],
)
def test_wrong_usage(
    move: Call, client: redis.Redis, arguments: Sequence[str], message: str
) -> None:
    fill(client, 1)
    done = move(*arguments)
    assert done.code == (1 if message.startswith("there is no filter") else 2)
    assert message in done.err
    assert SECRET not in done.err
    assert not client.keys("*bloom*")


def test_it_asks_before_it_records(shop: Call, client: redis.Redis, server: Server) -> None:
    fill(client, 3)
    project = {"REQUEST_FINGERPRINTER_CLASS": OURS, "REDIS_URL": server.url}
    done = shop("migrate", "--from-set", **project)
    assert done.code == 2
    assert "Record about 3 entries of the SET" in done.err
    assert "add --yes" in done.err
    assert client.keys("*bloom*") == []


# -- before it begins --


def test_a_dry_run_changes_nothing_and_says_what_would_fit(move: Call, client: redis.Redis) -> None:
    fill(client, 5_000)
    client.sadd(SET, "x")
    before = filters(client)
    done = move("--from-set", "--dry-run", "--json")
    assert done.code == 1
    assert done.json["dry_run"]
    assert (done.json["skipped"], done.json["new"], done.json["seen"]) == (1, 0, 0)
    assert done.json["read"] >= 5_001
    done = move("--from-set", "--dry-run", BLOOM_CAPACITY=2_000)
    assert "will be made for 2,000 URLs: about 5,001 entries do not fit into one" in done.err
    assert "Set BLOOM_CAPACITY = 5_001 before" in done.err
    assert filters(client) == before
    assert not list(Path.cwd().iterdir())
    BloomFilter(client, KEY, capacity=6_000).add_many([digest(number) for number in range(5_000)])
    before = filters(client)
    done = move("--from-set", "--dry-run", "--json")
    assert done.json["checked"] == done.json["seen"] >= 5_000
    assert filters(client) == before


def test_the_rate_is_kept(move: Call, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(client, 2_000)
    slept: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=slept.append)
    monkeypatch.setattr(migrate, "time", clock)
    done = move("--from-set", "--rate", "500", "--no-verify", "--json")
    assert done.code == 0
    assert slept[-1] == pytest.approx(done.json["read"] / 500)
    assert len(slept) >= 4


def test_a_filter_that_has_no_room(move: Call, client: redis.Redis) -> None:
    fill(client, 3_000)
    done = move("--from-set", BLOOM_CAPACITY=1_000, BLOOM_GROWTH=0)
    assert done.code == 2
    assert "Set BLOOM_CAPACITY = 3_000 before" in done.err
    assert "is full and cannot grow" in done.err
    assert done.out == ""
