"""``scrapy bloom migrate``: every entry is seen afterwards, whatever happens; and its sources."""

import hashlib
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis, RedisCluster
from scrapy import Request
from scrapy_redis.dupefilter import RFPDupeFilter as RedisDupeFilter
from support.cli import KEY, SECRET, Call, Own, Shop, give, unchanged
from support.rights import user_of
from support.servers import Server

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.errors import ConfigurationError, StorageError
from scrapy_bloom.cli import migrate
from scrapy_bloom.cli.migrate import Items, Target
from scrapy_bloom.migrate import SeenSource, SetSource, Source

OURS = "scrapy_bloom.fingerprinter.ScrapyRedisFingerprinter"
SET = "shop:dupefilter"
URLS = [f"https://example.com/{number}" for number in range(300)]


def digest(number: int) -> bytes:
    return hashlib.sha1(str(number).encode()).digest()


def fill(client: Redis, count: int, key: str = SET) -> None:
    """Make a SET of fingerprints."""
    client.sadd(key, *(digest(number).hex() for number in range(count)))


def are_seen(client: Redis, numbers: Iterable[int]) -> bool:
    return all(BloomFilter(client, KEY).contains([digest(number) for number in numbers]))


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "BATCH", 40)
    monkeypatch.setattr("scrapy_bloom.migrate.SCANNED", 40)


# -- from a SET --


def test_what_scrapy_redis_has_seen_a_crawl_has_seen(
    move: Call, shop: Call, server: Server, client: Redis
) -> None:
    theirs = RedisDupeFilter(client, SET)
    assert not any(theirs.request_seen(Request(url)) for url in URLS)
    report = move("--from-set", "--json").json
    assert (report["source"], report["filters"]) == (f"the SET {SET!r} on {server.url}", [KEY])
    names = ("read", "new", "skipped", "checked", "seen")
    assert [report[name] for name in names] == [300, 300, 0, 300, 300]
    assert shop("check", *URLS, REQUEST_FINGERPRINTER_CLASS=OURS).code == 0
    assert client.scard(SET) == 300
    assert BloomFilter(client, KEY).look().header.fingerprinter == OURS


def test_a_set_elsewhere_and_under_other_keys(move: Call, client: Redis, any_binary: str) -> None:
    with Server(any_binary, "--requirepass", SECRET) as other:
        where = f"redis://:{SECRET}@127.0.0.1:{other.port}/3"
        with Redis.from_url(where) as theirs:
            fill(theirs, 10, "my set")
        done = move("--from-set", "my set", "--from-server", where, "--json", "-L", "DEBUG")
        assert done.json["source"] == f"the SET 'my set' on redis://127.0.0.1:{other.port}/3"
        assert SECRET not in done.out + done.err
    assert are_seen(client, range(10))
    client.flushall()
    fill(client, 3, "seen/shop")
    assert move("--from-set", SCHEDULER_DUPEFILTER_KEY="seen/%(spider)s").code == 0
    assert are_seen(client, range(3))
    done = move("--from-set", spiders=(Shop, Own), BLOOM_KEY="all")
    done.refused("say which with --spider, or --from-set KEY")


def test_other_fingerprints_would_never_match(move: Call, client: Redis) -> None:
    fill(client, 3)
    theirs = {"REQUEST_FINGERPRINTER_CLASS": "scrapy.utils.request.RequestFingerprinter"}
    with unchanged(client, "{*"):
        move("--from-set", **theirs).refused(
            "REQUEST_FINGERPRINTER_CLASS is scrapy.utils.request.RequestFingerprinter",
            "Set it to 'scrapy_bloom.ScrapyRedisFingerprinter'",
        )
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
    move: Call, client: Redis, monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    """While it records (10), and while it verifies (60)."""
    fill(client, 2_000)
    scans, call = count(1), SetSource._call

    def interrupted(self: SetSource, command: Any, *args: Any, **options: Any) -> Any:
        if command.__name__ == "sscan" and next(scans) == batches:
            raise KeyboardInterrupt
        return call(self, command, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(SetSource, "_call", interrupted)
        done = move("--from-set")
    recorded = len(BloomFilter(client, KEY))
    assert 300 <= recorded <= 2_000
    done.refused(f"stopped after {recorded:,} were recorded: the same command can be repeated")
    done = move("--from-set", "--json")
    assert (done.code, done.json["new"], done.json["checked"]) == (0, 2_000 - recorded, 2_000)
    assert are_seen(client, range(2_000))


# -- what does not go well --


@pytest.mark.usefixtures("small_batches")
def test_what_is_not_seen_afterwards_is_counted(
    move: Call, client: Redis, monkeypatch: pytest.MonkeyPatch
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
    assert move("--from-set").code == 0
    assert are_seen(client, range(1_000))


@pytest.mark.parametrize("has_filter", [False, True])
def test_in_a_window_in_runs_a_migration_is_of_the_latest_run(
    move: Call, client: Redis, has_filter: bool
) -> None:
    fill(client, 3)
    if has_filter:
        BloomFilter(client, KEY, window="2 runs", run="1").open()
    assert move("--from-set", BLOOM_RECRAWL_AFTER="2 runs").code == 0
    for run, is_seen in ("2", True), ("3", False):
        BloomFilter(client, KEY, window="2 runs", run=run).open()
        assert are_seen(client, range(3)) is is_seen


def test_wrong_usage(move: Call, client: Redis) -> None:
    fill(client, 1)
    for arguments, message in (
        (["--from-set", "x"], "there is no SET 'x'"),
        (["--from-set", "--rate", "0"], "--rate is entries per second"),
        (["--from-urls", "x"], "--from-urls 'x' cannot be read: No such file"),
        (["--from-seen", "."], "--from-seen 'requests.seen' cannot be read"),
        (["--from-set", "--from-server", f"redis://:{SECRET}@[h"], "--from-server is not an addr"),
        (["--from-seen", "x", "--from-server", "redis://h"], "--from-server is where the SET"),
        ([], "one of the arguments --from-set --from-seen --from-urls is required"),
    ):
        done = move(*arguments)
        done.refused(message)
        assert SECRET not in done.err
    done = move("--from-set", "--window", "x", "--key", "k")
    done.refused("there is no filter 'k:x' on", code=1)
    assert not client.keys("*bloom*")


# -- before it begins --


def test_it_asks_before_it_records_and_a_dry_run_says_what_would_fit(
    move: Call, shop: Call, client: Redis, server: Server
) -> None:
    fill(client, 5_000)
    client.sadd(SET, "x")
    done = shop("migrate", "--from-set", REQUEST_FINGERPRINTER_CLASS=OURS, REDIS_URL=server.url)
    done.refused("Record about 5,001 entries of the SET", "add --yes")
    report = move("--from-set", "--dry-run", "--json").json
    assert [report[name] for name in ("dry_run", "skipped", "new", "seen")] == [True, 1, 0, 0]
    assert report["read"] >= 5_001
    done = move("--from-set", "--dry-run", BLOOM_CAPACITY=2_000)
    assert "will be made for 2,000 URLs: about 5,001 entries do not fit into one" in done.err
    assert "Set BLOOM_CAPACITY = 5_001 before" in done.err
    assert client.keys() == [SET.encode()]
    BloomFilter(client, KEY, capacity=6_000).add_many([digest(number) for number in range(5_000)])
    with unchanged(client, "{*"):
        report = move("--from-set", "--dry-run", "--json").json
    assert report["checked"] == report["seen"] >= 5_000


def test_the_rate_is_kept_until_there_is_no_room(
    move: Call, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, 2_000)
    slept: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=slept.append)
    monkeypatch.setattr(migrate, "time", clock)
    done = move("--from-set", "--rate", "500", "--no-verify", "--json")
    assert (done.code, done.json["checked"]) == (0, 0)
    assert slept[-1] == pytest.approx(done.json["read"] / 500)
    assert len(slept) >= 4
    BloomFilter(client, KEY).delete()
    done = move("--from-set", BLOOM_CAPACITY=1_000, BLOOM_GROWTH=0)
    done.refused("Set BLOOM_CAPACITY = 2_000 before", "is full and cannot grow")


# -- from requests.seen --


class OwnFingerprinter:
    def fingerprint(self, request: Request) -> bytes:
        return request.url.encode() * 20


def test_what_scrapy_has_seen_a_crawl_has_seen(move: Call, shop: Call, client: Redis) -> None:
    fingerprints = [OwnFingerprinter().fingerprint(Request(url)) for url in URLS]
    data = b"".join(len(one).to_bytes(2, "big") + one for one in fingerprints) + b"cut"
    Path("job").mkdir()
    Path("job/requests.seen").write_bytes(data)
    project = {"REQUEST_FINGERPRINTER_CLASS": OwnFingerprinter}
    done = move("--from-seen", "job", **project)
    assert done.code == 1
    assert "the file 'job/requests.seen': 301 entries" in done.out
    assert "1 are no fingerprints, and were skipped, such as entry 301" in done.out
    done = move("--from-seen", "job/requests.seen", "--json", **project)
    assert (done.json["read"], done.json["new"], done.json["skipped"]) == (301, 0, 1)
    assert Path("job/requests.seen").read_bytes() == data
    assert shop("check", *URLS, **project).code == 0
    assert "is never found with it" in move("--from-seen", "job").err


# -- from URLs --


def test_urls_of_a_file_and_of_a_pipe(
    move: Call, shop: Call, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "\n".join([*URLS, "", "no url"])
    Path("urls").write_text(lines)
    done = move("--from-urls", "urls")
    assert done.code == 1
    assert "1 are no URLs, and were skipped, such as line 302: 'no url' is no URL" in done.out
    assert "Verified: all 300 are seen" in done.out
    assert shop("check", *URLS, REQUEST_FINGERPRINTER_CLASS=OURS).code == 0
    BloomFilter(client, KEY).delete()
    give(monkeypatch, lines.encode())
    report = move("--from-urls", "-", "--json").json
    names = ("source", "skipped", "new", "checked")
    assert [report[name] for name in names] == ["the standard input", 1, 300, 300]


def test_urls_go_where_crawls_look_for_them(move: Call, shop: Call, client: Redis) -> None:
    rules = {"BLOOM_RECRAWL_RULES": [("/1", "1 day"), ("/2", "run")]}
    Path("urls").write_text("\n".join(URLS))
    done = move("--from-urls", "urls", **rules)
    assert "111 have the window 'run', which no filter remembers" in done.out
    assert f"189 recorded in '{KEY}:1-day', {KEY!r} on " in done.out
    assert len(BloomFilter(client, KEY)) == 78
    assert len(BloomFilter(client, f"{KEY}:1-day")) == 111
    urls = [url for url in URLS if "/2" not in url]
    assert shop("check", *urls, REQUEST_FINGERPRINTER_CLASS=OURS, **rules).code == 0
    done = move("--from-urls", "urls", "--window", "1-day", "--json", **rules)
    assert (done.json["read"], done.json["new"]) == (300, 189)
    client.sadd("shop:dupefilter", *(f"{number:040x}" for number in range(3)))
    assert "BLOOM_RECRAWL_RULES match URLs" in move("--from-set", **rules).err
    assert move("--from-set", "--window", "1-day", **rules).err == ""
    assert len(BloomFilter(client, f"{KEY}:1-day")) == 303


# -- sources --

W = "default"


def read(source: Source) -> tuple[set[bytes], list[str]]:
    """Return all that a source has, and what is no fingerprint."""
    found, wrong = set[bytes](), list[str]()
    for entry in source.entries():
        if isinstance(entry, str):
            wrong.append(entry)
        else:
            assert entry[0] == W
            found.add(entry[1])
    return found, wrong


@pytest.mark.parametrize("count", [1, 3_000])
def test_all_members_of_a_set(client: Redis, count: int) -> None:
    """What is no fingerprint loses none."""
    one = digest(0).hex().encode()
    others = [b"", b"x", b"\xff\xfe", digest(0), one[:-1], one + b"\n"]
    fill(client, count)
    client.sadd(SET, *others)
    source = SetSource(client, SET, "label", W)
    assert source.total == count + 6
    found, wrong = read(source)
    assert found == {digest(number) for number in range(count)}
    assert set(wrong) == {repr(other)[:60] for other in others}
    client.srem(SET, b"")
    with pytest.raises(StorageError, match=f"{count + 6:,} entries, of which {count + 5:,} are le"):
        read(source)


def test_errors_of_its_server_name_its_options(any_binary: str) -> None:
    def make(client: Redis, key: str = SET) -> SetSource:
        return SetSource(client, key, "label", W)

    with Server(any_binary) as server, server.client() as client:
        fill(client, 3)
        with user_of(server, "~*", "+@read", "-sscan") as reader:
            with pytest.raises(StorageError, match="grant the SET's key and .* SSCAN") as caught:
                read(make(reader))
            assert "filter" not in str(caught.value)
        source = make(client)
        client.delete(SET)
        client.set(SET, "x")
        for use in (lambda: read(source), lambda: make(client)):
            with pytest.raises(StorageError, match="under the SET's key: .*--from-set KEY"):
                use()
        remedy = "there is no SET '.*' on label: .*--from-set KEY .*its server with --from-server"
        with pytest.raises(ConfigurationError, match=remedy):
            make(client, "none")
        client.config_set("requirepass", "y")
        with server.client() as other:
            for end in (lambda: None, server.kill):
                end()
                with pytest.raises(StorageError, match="--from-server .or REDIS_URL") as caught:
                    make(other)
                assert "BLOOM" not in str(caught.value)


def test_a_set_on_a_cluster(cluster: RedisCluster) -> None:
    cluster.sadd(SET, *(digest(number).hex() for number in range(500)))
    found, _ = read(SetSource(cluster, SET, "label", W))
    assert found == {digest(number) for number in range(500)}


def test_requests_seen_that_is_written_to_is_read_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "requests.seen"
    path.write_bytes(b"0a\n")
    source = SeenSource(path, W)
    path.write_bytes(b"0b\n0c\n")
    assert read(source) == ({b"\x0a"}, [])
