"""``scrapy bloom migrate``: every entry is seen afterwards, whatever happens in between."""

import argparse
import ast
import hashlib
import io
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import redis
from scrapy import Request
from scrapy.dupefilters import RFPDupeFilter
from scrapy.settings import Settings
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.test import get_crawler
from scrapy_redis.dupefilter import RFPDupeFilter as RedisDupeFilter
from support.cli import KEY, SECRET, Call, Done, Own, Shop, give
from support.servers import Server, contents, free_port

from scrapy_bloom import BloomDupeFilter, BloomFilter
from scrapy_bloom.cli import migrate
from scrapy_bloom.cli.command import BloomCommand
from scrapy_bloom.migrate.sources import SetSource

KIND = "REQUEST_FINGERPRINTER_CLASS"
OURS = "scrapy_bloom.fingerprinter.ScrapyRedisFingerprinter"
SET = "shop:dupefilter"
URLS = [f"https://example.com/{number}" for number in range(300)]
#: Members of the SET that is migrated with kills.
MANY = int(os.environ.get("MIGRATION_MEMBERS", "100000"))


def digest(number: int) -> bytes:
    return hashlib.sha1(str(number).encode()).digest()


def fill(client: redis.Redis, count: int, key: str = SET) -> None:
    """Make a SET of fingerprints."""
    for start in range(0, count, 10_000):
        client.sadd(key, *(digest(n).hex() for n in range(start, min(count, start + 10_000))))


def filters(client: redis.Redis) -> dict[bytes, object]:
    """Return all that is stored of filters."""
    found = contents(client, "{*")
    return {key: (value, client.expiretime(key)) for key, value in found.items()}


def are_seen(client: redis.Redis, numbers: Iterable[int], key: str = KEY) -> bool:
    return all(BloomFilter(client, key).contains([digest(number) for number in numbers]))


@pytest.fixture
def move(shop: Call, server: Server) -> Call:
    """Migrates without asking, in a project with scrapy-redis's fingerprints."""

    def move(*arguments: str, **settings: Any) -> Done:
        project = {"REQUEST_FINGERPRINTER_CLASS": OURS, "REDIS_URL": server.url, **settings}
        return shop("migrate", "--yes", *arguments, **project)

    return move


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate.Pace, "batch", 40)


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
    assert (report["new"], report["known"], report["skipped"]) == (302, 0, 0)
    assert (report["checked"], report["missing"]) == (302, 0)
    settings = {"BLOOM_REDIS_URL": server.url, "REQUEST_FINGERPRINTER_CLASS": OURS}
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


def test_it_says_what_it_did(move: Call, client: redis.Redis) -> None:
    fill(client, 300)
    client.sadd(SET, "no fingerprint")
    BloomFilter(client, KEY, window="3 months").add_many([digest(n) for n in range(100)])
    done = move("--from-set")
    assert done.code == 1
    for text in (
        "301 entries",
        f"200 recorded in {KEY!r} on unix://",
        "100 were there already",
        "1 are no fingerprints, and were skipped, such as b'no fingerprint'",
        "Verified: all 300 are seen",
        "crawled again between 2 months and 3 months later",
        "scrapy bloom check URL",
    ):
        assert text in done.out
    assert are_seen(client, range(300))
    done = move("--from-set", "--json")
    assert (done.code, done.json["new"], done.json["known"]) == (1, 0, 300)
    assert len(BloomFilter(client, KEY)) == 300


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


def test_the_key_is_scrapy_redis_s(move: Call, call: Call, client: redis.Redis) -> None:
    fill(client, 3, "seen/shop")
    assert move("--from-set", SCHEDULER_DUPEFILTER_KEY="seen/%(spider)s").code == 0
    assert move("--from-set", SCHEDULER_DUPEFILTER_KEY="seen/shop").code == 0
    assert are_seen(client, range(3))
    done = move("--from-set", SCHEDULER_DUPEFILTER_KEY="seen/%(other)s")
    assert done.code == 2
    assert "SCHEDULER_DUPEFILTER_KEY is a string" in done.err
    done = move("--from-set", spiders=(Shop, Own), BLOOM_KEY="all")
    assert done.code == 2
    assert "say which with --spider, or --from-set KEY" in done.err
    assert not client.keys("*all*")
    done = move("--from-set", "--spider", "shop", spiders=(Shop, Own), BLOOM_KEY="all")
    assert done.code == 2
    assert f"the key {SET!r} on" in done.err


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


def test_killed_and_started_again_every_member_is_seen(
    move: Call, client: redis.Redis, server: Server, tmp_path: Path
) -> None:
    fill(client, MANY)
    arguments = ("--key", KEY, "-s", f"BLOOM_REDIS_URL={server.unix_url}", "-s", f"{KIND}={OURS}")
    source = ("--from-set", SET, "--from-server", server.unix_url)
    process = subprocess.Popen(
        [sys.executable, "-m", "scrapy", "bloom", "migrate", "-y", *source, *arguments],
        cwd=tmp_path,
    )
    bloom = BloomFilter(client, KEY)
    while bloom.look() is None or len(bloom) < MANY // 4:
        assert process.poll() is None
        time.sleep(0.005)
    process.kill()
    assert process.wait() == -9
    recorded = len(BloomFilter(client, KEY))
    assert recorded < MANY
    done = move("--from-set", "--json")
    assert done.code == 0
    assert (done.json["new"], done.json["missing"]) == (MANY - recorded, 0)
    assert are_seen(client, range(MANY))
    assert not any(tmp_path.iterdir())


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("batches", [10, 60])
def test_ctrl_c_says_how_many_are_recorded(
    move: Call, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    """While it records (10), and while it verifies (60)."""
    fill(client, 2_000)
    left = iter(range(batches))

    def spend(self: migrate.Pace, entries: int) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(migrate.Pace, "spend", spend)
        done = move("--from-set")
    recorded = len(BloomFilter(client, KEY))
    assert (done.code, 400 <= recorded <= 2_000) == (2, True)
    text = f"stopped after {recorded:,} were recorded: the same command can be repeated"
    assert text in done.err
    done = move("--from-set", "--json")
    assert (done.code, done.json["new"], done.json["checked"]) == (0, 2_000 - recorded, 2_000)
    assert are_seen(client, range(2_000))


def test_a_project_without_scrapy_cfg(
    move: Call, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings by SCRAPY_SETTINGS_MODULE alone, as in containers: it is a project to Scrapy."""
    fill(client, 3)
    module = ModuleType("settings_of_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv("SCRAPY_SETTINGS_MODULE", module.__name__)
    for arguments in (["--from-set"], ["--from-set", "--no-verify"]):
        assert move(*arguments).code == 0
    assert are_seen(client, range(3))


# -- a SET that is not left alone --


def at_call(monkeypatch: pytest.MonkeyPatch, number: int, action: Callable[[], object]) -> None:
    """Do something before the SET is scanned for the n-th time."""
    scan, calls = SetSource._scan, iter(range(1, 10_000))

    def disturbed(self: SetSource, cursor: int, size: int) -> Any:
        if next(calls) == number:
            action()
        return scan(self, cursor, size)

    monkeypatch.setattr(SetSource, "_scan", disturbed)


def count_scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the cursors that are asked for."""
    cursors: list[int] = []
    scan = SetSource._scan

    def counted(self: SetSource, cursor: int, size: int) -> Any:
        cursors.append(cursor)
        return scan(self, cursor, size)

    monkeypatch.setattr(SetSource, "_scan", counted)
    return cursors


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("how", ["deleted", "flushed", "made anew", "shrunk"])
@pytest.mark.parametrize("number", [2, 25, 40])  # 25 for each pass, about
@pytest.mark.parametrize("more", [[], ["--no-verify"], ["--dry-run"]])
def test_a_set_that_loses_entries_is_never_a_success(
    move: Call,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    *,
    how: str,
    number: int,
    more: list[str],
) -> None:
    fill(client, 1_000)

    def lose() -> None:
        if how == "flushed":
            client.flushall()
        elif how == "shrunk":
            client.spop(SET, 1)
        else:
            client.delete(SET)
        if how == "made anew":
            client.sadd(SET, *(digest(number).hex() for number in range(5_000, 5_100)))

    scans: list[int] = []
    with monkeypatch.context() as patch:
        at_call(patch, number, lose)
        scans = count_scans(patch)
        done = move("--from-set", *more)
    assert (done.code == 2) == (len(scans) >= number)
    if done.code == 2 and how != "flushed":  # which takes the filter, too
        assert "had 1,000 entries, of which" in done.err
        assert "Verified" not in done.out


@pytest.mark.usefixtures("small_batches")
def test_a_set_that_grows_is_verified_with_what_came_in(
    move: Call, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, 1_000)
    at_call(monkeypatch, 10, lambda: fill(client, 1_500))
    done = move("--from-set", "--json")
    assert done.code in (0, 2)
    assert done.json["checked"] == 1_500
    assert bool(done.json["missing"]) == (done.code == 2)
    assert are_seen(client, range(1_000))


def test_a_source_that_is_not_there_names_its_options(
    move: Call, client: redis.Redis, any_binary: str
) -> None:
    with Server(any_binary, "--requirepass", SECRET) as other:
        wrong = f"redis://:wrong@127.0.0.1:{other.port}"
        for where in ({"arguments": ["--from-server", wrong]}, {"REDIS_URL": wrong}):
            done = move("--from-set", *where.pop("arguments", []), **where)
            assert done.code == 2
            assert "correct them in --from-server (or REDIS_URL, REDIS_PARAMS)" in done.err
            assert "BLOOM" not in done.err
    done = move("--from-set", REDIS_URL=f"redis://127.0.0.1:{free_port()}")
    assert "start a server there or name the SET's with --from-server" in done.err


def test_messages_name_only_options_that_there_are() -> None:
    parser = argparse.ArgumentParser()
    command = BloomCommand()
    command.settings = Settings()
    command.add_options(parser)
    (subparsers,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    known = {
        option
        for one in [parser, *subparsers.choices.values()]
        for option in one._option_string_actions
    }
    package = Path(migrate.__file__).parents[1]
    for path in [*package.glob("cli/*.py"), *package.glob("migration/*.py")]:
        texts = [
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", "\n".join(texts)))
        assert named <= known, path


# -- what does not go well --


@pytest.mark.usefixtures("small_batches")
def test_what_is_not_seen_afterwards_is_counted(
    move: Call, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, 1_000)
    look_up = migrate._Migration._look_up

    def lose_a_block(self: Any, batch: Any) -> None:
        client.delete("{shop:bloom:3}:0.0")
        look_up(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(migrate._Migration, "_look_up", lose_a_block)
        done = move("--from-set")
    assert done.code == 2
    assert "NOT ALL THERE: " in done.out
    assert "of 1,000 are not seen" in done.out
    assert "run the same command again" in done.out
    assert move("--from-set").code == 0
    assert are_seen(client, range(1_000))


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("at", ["_record", "_look_up"])
def test_a_file_that_is_written_to_meanwhile(
    move: Call, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    path = Path("requests.seen")
    path.write_bytes(b"".join(b"\0\x14" + digest(number) for number in range(500)))
    original = getattr(migrate._Migration, at)

    def write(self: Any, batch: Any) -> None:
        with path.open("ab") as file:
            file.write(b"\0\x14" + digest(500))
        original(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(migrate._Migration, at, write)
        done = move("--from-seen", "requests.seen")
    assert done.code == 2
    assert "has changed while it was read" in done.err
    assert "were recorded: the same command can be repeated" in done.err
    done = move("--from-seen", "requests.seen", "--json")
    assert (done.code, done.json["missing"]) == (0, 0)
    assert are_seen(client, range(501))


def test_a_filter_that_has_no_room(move: Call, client: redis.Redis) -> None:
    fill(client, 3_000)
    done = move("--from-set", BLOOM_CAPACITY=1_000, BLOOM_GROWTH=0)
    assert done.code == 2
    assert "set BLOOM_CAPACITY = 3,000 (or BLOOM_GROWTH, BLOOM_MAX_MEMORY)" in done.err
    assert not client.keys("*bloom*")
    BloomFilter(client, KEY, capacity=1_000, growth=0).open()
    done = move("--from-set")
    assert done.code == 2
    assert "is full and cannot grow" in done.err
    assert done.out == ""


def test_a_window_in_runs_needs_a_run(move: Call, client: redis.Redis) -> None:
    fill(client, 3)
    done = move("--from-set", BLOOM_RECRAWL_AFTER="2 runs")
    assert done.code == 2
    assert 'its window, "2 runs", counts runs: ' in done.err
    BloomFilter(client, KEY, window="2 runs", run="1").open()
    assert move("--from-set", BLOOM_RECRAWL_AFTER="2 runs").code == 0
    assert are_seen(client, range(3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from-set", "x"], "and its server with --from-server"),
        (["--from-set", "--rate", "0"], "--rate is entries per second"),
        (["--from-urls", "."], "--from-urls '.' cannot be read: Is a directory"),
        (["--from-urls", "x"], "--from-urls 'x' cannot be read: No such file"),
        (["--from-seen", "x"], "--from-seen 'x' cannot be read: No such file"),
        (["--from-seen", "."], "--from-seen 'requests.seen' cannot be read"),
        (["--from-set", "--from-server", f"redis://:{SECRET}@[h"], "--from-server is not an addr"),
        (["--from-seen", "x", "--from-server", "redis://h"], "--from-server is where the SET"),
        (["--from-set", "--from-seen", "x"], "not allowed with argument"),
        ([], "one of the arguments --from-set --from-seen --from-urls is required"),
        (["--from-set", "--window", "x"], "--window 'x' is not in BLOOM_WINDOWS"),
        (["--from-set", "--window", "x", "--key", "k"], "does not say how to make one"),
    ],
)
def test_wrong_usage(
    move: Call, client: redis.Redis, arguments: Sequence[str], message: str
) -> None:
    if message.startswith("does not say"):
        fill(client, 1)
    done = move(*arguments)
    assert done.code == 2
    assert message in done.err
    assert SECRET not in done.err
    assert not client.keys("*bloom*")


def test_it_asks_before_it_records(
    shop: Call, client: redis.Redis, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, 3)
    project = {"REQUEST_FINGERPRINTER_CLASS": OURS, "REDIS_URL": server.url}
    done = shop("migrate", "--from-set", **project)
    assert done.code == 2
    assert "Record about 3 entries of the SET" in done.err
    assert "add --yes" in done.err
    stdin = io.StringIO("n\n")
    monkeypatch.setattr(stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", stdin)
    assert shop("migrate", "--from-set", **project).code == 1
    assert client.keys("*bloom*") == []


# -- before it begins --


def test_a_dry_run_changes_nothing(move: Call, client: redis.Redis) -> None:
    fill(client, 5_000)
    client.sadd(SET, "x")
    before = filters(client)
    for _ in range(2):
        done = move("--from-set", "--dry-run", "--json")
        assert done.code == 1
        assert done.json["dry_run"]
        assert not {"new", "known", "checked", "missing"} & done.json.keys()
        assert (done.json["skipped"], done.json["seen"]) == (1, 0)
        assert done.json["read"] >= 5_001
        assert filters(client) == before
    assert not list(Path.cwd().iterdir())
    BloomFilter(client, KEY).add_many([digest(number) for number in range(5_000)])
    before = filters(client)
    done = move("--from-set", "--dry-run", "--json")
    assert 0 < done.json["asked"] == done.json["seen"] < 5_000
    assert "were looked up are seen" in move("--from-set", "--dry-run").out
    assert filters(client) == before


def test_the_capacity_that_would_fit_is_said_before(move: Call, client: redis.Redis) -> None:
    fill(client, 12_345)
    done = move("--from-set", "--dry-run", BLOOM_CAPACITY=2_000)
    assert "will be made for 2,000 URLs: about 12,345 entries do not fit into one" in done.err
    assert "With BLOOM_CAPACITY = 13_000 they take 46.6 KiB. Set it before" in done.err
    assert move("--from-set", "--dry-run", BLOOM_CAPACITY=13_000).err == ""
    assert move("--from-set", BLOOM_CAPACITY=13_000).err == ""
    info = BloomFilter(client, KEY).info()
    assert (info.generations[0].layers, info.capacity) == (1, 13_000)


def test_settings_do_not_change_a_filter_that_is_there(move: Call, client: redis.Redis) -> None:
    BloomFilter(client, KEY, capacity=5_000, window="3 months").open()
    fill(client, 10)
    assert move("--from-set", BLOOM_CAPACITY=77, BLOOM_RECRAWL_AFTER="1 day").code == 0
    info = BloomFilter(client, KEY).info()
    assert (info.capacity, info.window, info.count) == (5_000, "3 months", 10)


def test_the_rate_is_kept(move: Call, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(client, 2_000)
    slept = []
    pace = migrate.Pace
    monkeypatch.setattr(migrate, "Pace", lambda rate: pace(rate, lambda: 0.0, slept.append))
    done = move("--from-set", "--rate", "500", "--no-verify", "--json")
    assert done.code == 0
    assert slept[-1] == pytest.approx(done.json["read"] / 500)
    assert len(slept) >= 4


# -- from requests.seen --


class OwnFingerprinter:
    def fingerprint(self, request: Request) -> bytes:
        return request.url.encode() * 20


@pytest.mark.parametrize("name", ["text", "binary"])
@pytest.mark.parametrize("own", [False, True])
def test_what_scrapy_has_seen_a_crawl_has_seen(
    move: Call, client: redis.Redis, name: str, own: bool
) -> None:
    fingerprinter = OwnFingerprinter() if own else RequestFingerprinter()
    fingerprints = [fingerprinter.fingerprint(Request(url)) for url in URLS]
    write = {
        "text": lambda one: one.hex().encode() + b"\n",
        "binary": lambda one: len(one).to_bytes(2, "big") + one,
    }
    data = b"".join(map(write[name], fingerprints))
    Path("job").mkdir()
    Path("job/requests.seen").write_bytes(data + data[:9])
    project = {"REQUEST_FINGERPRINTER_CLASS": type(fingerprinter)}
    done = move("--from-seen", "job", **project)
    assert done.code == 1
    assert "the file 'job/requests.seen': 301 entries" in done.out
    assert "1 are no fingerprints, and were skipped, such as entry 301" in done.out
    done = move("--from-seen", "job/requests.seen", "--json", **project)
    assert (done.json["known"], done.json["skipped"]) == (300, 1)
    assert Path("job/requests.seen").read_bytes() == data + data[:9]


def test_scrapys_own_file_and_check_agree(
    move: Call, shop: Call, client: redis.Redis, tmp_path: Path
) -> None:
    project = {"REQUEST_FINGERPRINTER_CLASS": "scrapy.utils.request.RequestFingerprinter"}
    scrapys = RFPDupeFilter(str(tmp_path), fingerprinter=RequestFingerprinter())
    assert not any(scrapys.request_seen(Request(url)) for url in URLS)
    scrapys.close("finished")
    assert move("--from-seen", ".", **project).code == 0
    assert shop("check", *URLS, **project).code == 0
    assert shop("check", "https://example.com/new", **project).code == 1
    assert "is never found with it" in move("--from-seen", ".").err


# -- from URLs --


def test_urls_of_a_file(move: Call, shop: Call, client: redis.Redis) -> None:
    Path("urls").write_text("\n".join([*URLS, "", "no url"]))
    done = move("--from-urls", "urls", REQUEST_FINGERPRINTER_CLASS=OwnFingerprinter)
    assert done.code == 1
    assert "1 are no URLs, and were skipped, such as line 302: 'no url' is no URL" in done.out
    assert "Verified: all 300 are seen" in done.out
    assert shop("check", *URLS, REQUEST_FINGERPRINTER_CLASS=OwnFingerprinter).code == 0


@pytest.mark.parametrize("verify", [True, False])
def test_urls_of_a_pipe(
    move: Call, shop: Call, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, verify: bool
) -> None:
    give(monkeypatch, "".join(f"{url}\n" for url in URLS).encode())
    done = move("--from-urls", "-", "--json", *([] if verify else ["--no-verify"]))
    assert (done.code, done.err, done.json["source"]) == (0, "", "the standard input")
    assert (done.json["new"], done.json["checked"]) == (300, 300 if verify else 0)
    assert shop("check", *URLS, REQUEST_FINGERPRINTER_CLASS=OURS).code == 0
    assert not list(Path.cwd().iterdir())


class Picky:
    def fingerprint(self, request: Request) -> bytes:
        if request.url.endswith("/7"):
            raise ZeroDivisionError("no bad")
        return request.url.encode()


def test_a_fingerprinter_that_fails_for_a_url_costs_that_one(
    move: Call, client: redis.Redis
) -> None:
    Path("urls").write_text("\n".join(URLS))
    done = move("--from-urls", "urls", "--json", REQUEST_FINGERPRINTER_CLASS=Picky)
    assert (done.code, done.json["new"], done.json["skipped"]) == (1, 299, 1)
    assert done.json["example"] == (
        "line 8: 'https://example.com/7', for which test_cli_migrate.Picky fails with "
        "ZeroDivisionError: no bad"
    )


def test_urls_of_a_named_pipe(move: Call, client: redis.Redis) -> None:
    os.mkfifo("pipe")
    with subprocess.Popen(["sh", "-c", f"echo {URLS[0]} > pipe"]):
        done = move("--from-urls", "pipe", "--json")
    assert (done.code, done.json["new"], done.json["checked"]) == (0, 1, 1)


def test_urls_go_where_crawls_look_for_them(move: Call, shop: Call, client: redis.Redis) -> None:
    rules = {
        "BLOOM_WINDOWS": {"news": "1 day"},
        "BLOOM_WINDOW_RULES": [("/1", "news"), ("/2", "run")],
    }
    Path("urls").write_text("\n".join(URLS))
    done = move("--from-urls", "urls", **rules)
    assert done.code == 0
    assert "111 have the window 'run', which no filter remembers" in done.out
    assert f"{KEY!r}: they are not crawled again: the filter has no window" in done.out
    assert f"'{KEY}:news': they count as first seen now: crawled again at most 1 day" in done.out
    assert len(BloomFilter(client, KEY)) == 78
    assert len(BloomFilter(client, f"{KEY}:news")) == 111
    urls = [url for url in URLS if "/2" not in url]
    assert shop("check", *urls, REQUEST_FINGERPRINTER_CLASS=OURS, **rules).code == 0
    done = move("--from-urls", "urls", "--window", "news", "--json", **rules)
    assert (done.json["new"], done.json["known"]) == (189, 111)
    fill(client, 3)
    assert "BLOOM_WINDOW_RULES go by URLs" in move("--from-set", **rules).err
    assert move("--from-set", "--window", "news", **rules).err == ""
    assert len(BloomFilter(client, f"{KEY}:news")) == 303


def test_it_is_an_option_of_the_command(call: Call) -> None:
    done = call("migrate", "--help")
    assert done.code == 0
    for option in ("--from-set [KEY]", "--from-seen PATH", "--from-urls FILE", "--dry-run"):
        assert option in done.out
