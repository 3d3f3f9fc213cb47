"""``scrapy bloom pending``: what it shows of claims, which it ends, and how."""

import io
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import redis
import test_cli
from servers import Server
from test_cli import KEY, SECRET, Call, Done, Own, Shop, everything, free_port

from scrapy_bloom import BloomFilter
from scrapy_bloom.cli import pending as command
from scrapy_bloom.cli import tables
from scrapy_bloom.clients.connection import connect
from scrapy_bloom.core import pending
from scrapy_bloom.core.pending import Failure, field_of
from scrapy_bloom.crawl import workers
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.crawl.takeover import Found, Takeover
from scrapy_bloom.crawl.workers import Process, Worker

call, shop, logging_as_before = test_cli.call, test_cli.shop, test_cli.logging_as_before

ELSEWHERE = Process("host-1", 4711, "another boot", 1)
HEARTBEAT = 10.0
REQUEST = '{"url": "https://example.com/"}'
TAG = workers.tag("shop")
FAILED = f"-{TAG}"


@pytest.fixture
def bloom(client: redis.Redis) -> BloomFilter:
    bloom = BloomFilter(client, KEY, blocks=3)
    bloom.open()
    return bloom


def claim(
    bloom: BloomFilter, owner: str, items: Sequence[str], request: str = REQUEST
) -> list[bytes]:
    """Claim items for an owner."""
    encoded = [item.encode() for item in items]
    requests = [request] * len(items)
    verdicts = bloom.run(lambda view: pending.take(view, encoded, requests, owner, "nonce"))
    assert verdicts == "1" * len(items)
    return encoded


def fail(bloom: BloomFilter, items: Sequence[str], seconds: int, request: str = REQUEST) -> None:
    """Claim items, and have them fail."""
    owner = workers.worker_id("shop")
    encoded = claim(bloom, owner, items, request)
    failure = Failure(FAILED, seconds, 5)
    bloom.run(lambda view: pending.release(view, encoded, owner, failure))


def register(
    bloom: BloomFilter,
    life: int = 21,
    *,
    owner: str = "",
    process: Process = ELSEWHERE,
    queue: str = "",
) -> str:
    """Make a worker that is good for ``life`` seconds; return its id."""
    worker = Worker(owner or workers.worker_id("shop"), 0, HEARTBEAT, process, queue)
    beat = partial(pending.beat, worker=worker.id, life=life, description=worker.describe())
    bloom.run(beat)
    return worker.id


def stored(client: redis.Redis) -> dict[str, list[str]]:
    """Return all claims: field -> owner, nonce, time, attempt, request."""
    return {
        field.decode(): value.decode().split(" ", 4)
        for key in client.keys("*:claims")
        for field, value in client.hgetall(key).items()
    }


def owners(client: redis.Redis) -> Counter[str]:
    return Counter(value[0] for value in stored(client).values())


def age(client: redis.Redis, owner: str, seconds: int) -> None:
    """Make the claims of an owner so much older."""
    for key in client.keys("*:claims"):
        for field, value in client.hgetall(key).items():
            name, nonce, made, rest = value.decode().split(" ", 3)
            if name == owner:
                client.hset(key, field, f"{name} {nonce} {int(made) - seconds} {rest}")


def states(done: Done) -> dict[str, int]:
    return {group["state"]: group["claims"] for group in done.json["owners"]}


@pytest.fixture
def every(bloom: BloomFilter, client: redis.Redis) -> dict[str, str]:
    """Claims in every state; returns their owners."""
    queue, unused = workers.queue_id("shop", "a"), workers.queue_id("shop", "b")
    found = {
        "alive": register(bloom, queue=queue),
        "silent": register(bloom, life=5),
        "dead": register(bloom, life=-3600),
        "gone": register(bloom, process=Process("here", 2**30, Process.own().place, 1)),
        "stopped": register(bloom, life=0),
        "paused": register(bloom, life=0, queue="dir /x"),
        "starting": workers.worker_id("shop"),
        "unknown": workers.worker_id("shop"),
        "used": queue,
        "waiting": unused,
        "strange": "x",
    }
    for state, owner in found.items():
        claim(bloom, owner, [f"{state} {number}" for number in range(2)])
    age(client, found["unknown"], 3600)
    fail(bloom, ["due 1", "due 2", "due 3"], 0)
    fail(bloom, ["later 1"], 600)
    fail(bloom, ["later 2"], 1200)
    return found


# -- showing --


def test_where_there_are_no_claims(shop: Call, bloom: BloomFilter) -> None:
    done = shop("pending")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("shop:bloom on ")
    assert done.out.endswith("(window 'lasting'): there are no claims\n")
    done = shop("pending", "--json")
    assert (done.code, done.json["claims"], done.json["owners"]) == (0, 0, [])
    for option, text in (("--release", "0 claims released"), ("--requeue", "0 claims requeued")):
        # There is nothing to be asked.
        done = shop("pending", option)
        assert (done.code, done.err) == (0, "")
        assert done.out.endswith(f": {text}\n")


def test_where_there_is_no_filter(shop: Call, client: redis.Redis) -> None:
    for options in ([], ["--release"], ["--requeue", "-y"], ["--json"], ["--owner", "w"]):
        done = shop("pending", *options)
        assert (done.code, done.out) == (1, "")
        assert "there is no filter" in done.err
        assert len(done.err.splitlines()) == 1
    assert client.keys() == []


def test_every_state(shop: Call, client: redis.Redis, every: dict[str, str]) -> None:
    before = everything(client)
    done = shop("pending", "--json")
    text = shop("pending")
    assert everything(client) == before
    assert (done.code, done.err, text.code, text.err) == (0, "", 0, "")
    document = done.json
    groups = {(group["owner"], group["state"]): group for group in document["owners"]}
    assert {(owner, state) for owner, state in groups if owner != FAILED} == {
        (every["alive"], "alive"),
        (every["silent"], "silent"),
        (every["dead"], "dead"),
        (every["gone"], "dead"),
        (every["stopped"], "stopped"),
        (every["paused"], "stopped"),
        (every["starting"], "starting"),
        (every["unknown"], "unknown"),
        (every["used"], "alive"),
        (every["waiting"], "waiting"),
        ("x", "unknown"),
    }
    assert document["claims"] == sum(group["claims"] for group in groups.values()) == 27
    assert document["bytes"] == 27 * len(REQUEST)
    assert (document["not_kept"], document["damaged"]) == (0, 0)
    assert (document["name"], document["key"]) == ("lasting", KEY)
    kinds = {group["owner"][0]: group["kind"] for group in groups.values()}
    assert kinds == {"w": "worker", "q": "queue", "-": "failed", "x": "unknown"}
    assert {group["spider"] for group in groups.values()} == {"shop", None}
    assert groups[FAILED, "due"]["claims"] == 3
    later = groups[FAILED, "not due"]
    assert (later["claims"], later["oldest"], later["oldest_utc"]) == (2, 0, None)
    assert 590 <= later["next_due"] - document["now"] <= 600
    assert 1190 <= later["last_due"] - document["now"] <= 1200
    assert later["last_due_utc"].endswith("Z")
    unknown = groups[every["unknown"], "unknown"]
    assert 3600 <= document["now"] - unknown["oldest"] <= 3610
    assert unknown["oldest_utc"] < document["now_utc"]
    assert (unknown["host"], unknown["pid"]) == (None, None)
    dead = groups[every["dead"], "dead"]
    assert (dead["host"], dead["pid"], dead["has_queue"]) == ("host-1", 4711, False)
    assert 3600 <= dead["silent"] <= 3640
    assert groups[every["paused"], "stopped"]["has_queue"] is True

    lines = [" ".join(line.split()) for line in text.out.splitlines()]
    assert lines[0].endswith(": 27 claims")
    size = f" 0 {2 * len(REQUEST)} bytes"
    for state, row in {
        "alive": "host-1:4711 shop alive 2 ",
        "silent": "host-1:4711 shop silent for 1",
        "dead": "host-1:4711 shop dead, silent for 60 min 2 ",
        "gone": f"here:{2**30} shop dead",
        "stopped": "host-1:4711 shop stopped 2 ",
        "paused": "host-1:4711 shop stopped, has a queue 2 ",
        "starting": "worker shop starting 2 ",
        "unknown": "worker shop unknown 2 60 min 60 min",
        "used": "queue shop alive 2 ",
        "waiting": "queue shop waiting 2 ",
        "strange": "unknown unknown 2 ",
    }.items():
        # As much of the id is shown as tells them apart.
        (line,) = [line for line in lines if line and every[state].startswith(line.split()[0])]
        assert line.split(" ", 1)[1].startswith(row)
        assert line.endswith(size)
    failed = [line for line in lines if line.startswith("failed")]
    assert failed[0].startswith("failed shop due 3 ")
    assert failed[1].startswith("failed shop not due 2 in ")
    assert f"total 27 0 {27 * len(REQUEST)} bytes" in lines


def test_one_owner(shop: Call, every: dict[str, str]) -> None:
    owner = every["stopped"]
    document = shop("pending", "--owner", owner[:20], "--json").json
    assert [(group["owner"], group["claims"]) for group in document["owners"]] == [(owner, 2)]
    assert states(shop("pending", "--owner", "failed", "--json")) == {"due": 3, "not due": 2}
    assert states(shop("pending", f"--owner={FAILED}", "--json")) == {"due": 3, "not due": 2}
    for options in ([], ["--release"], ["--requeue"], ["--release", "-y"], ["--json"]):
        done = shop("pending", "--owner", "w-nobody", *options)
        assert (done.code, done.out) == (1, "")
        assert "has no claims whose owner begins with 'w-nobody'" in done.err


def test_it_says_whose_request_is_not_kept(shop: Call, bloom: BloomFilter) -> None:
    owner = register(bloom)
    claim(bloom, owner, ["a", "b", "c"], "")
    claim(bloom, owner, ["d"], "x" * 3000)
    (group,) = shop("pending", "--json").json["owners"]
    assert (group["claims"], group["not_kept"], group["bytes"]) == (4, 3, 3000)
    total = next(line for line in shop("pending").out.splitlines() if "total" in line)
    assert total.split() == ["total", "4", "3", "2.9", "KiB"]


def test_a_shared_filter(call: Call, client: redis.Redis, server: Server) -> None:
    bloom = BloomFilter(client, "special")
    bloom.open()
    for spider in ("shop", "own", "of another project"):
        claim(bloom, workers.worker_id(spider), [spider])
    where = {"BLOOM_REDIS_URL": server.url}
    done = call("pending", "--json", "--key", "special", **where, spiders=(Shop, Own))
    tag = workers.tag("of another project")
    spiders = {(group["spider"], group["tag"]) for group in done.json["owners"]}
    assert spiders == {("shop", TAG), ("own", workers.tag("own")), (None, tag)}
    done = call("pending", "--key", "special", **where)
    assert all(workers.tag(name) in done.out for name in ("shop", "own", "of another project"))


def test_other_windows(shop: Call, client: redis.Redis) -> None:
    BloomFilter(client, KEY).open()
    bloom = BloomFilter(client, f"{KEY}:news", window="1 day")
    bloom.open()
    claim(bloom, register(bloom), ["a"])
    windows = {"BLOOM_WINDOWS": {"news": "1 day"}}
    assert shop("pending", "--json", **windows).json["claims"] == 0
    assert shop("pending", "--json", "--window", "news", **windows).json["claims"] == 1
    assert shop("pending", "--key", f"{KEY}:news", "--json").json["claims"] == 1
    assert shop("pending", "--window", "typo", **windows).code == 2


def test_many_claims(
    shop: Call, bloom: BloomFilter, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, alive = register(bloom, life=-5), register(bloom)
    claim(bloom, dead, [f"dead {number}" for number in range(15_000)])
    claim(bloom, alive, [f"alive {number}" for number in range(5_000)])
    assert states(shop("pending", "--json")) == {"dead": 15_000, "alive": 5_000}
    monkeypatch.setenv("FORCE_COLOR", "1")  # to rich, a terminal
    assert "claims read" in shop("pending").err
    monkeypatch.delenv("FORCE_COLOR")
    done = shop("pending", "--release", "-y")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith(": 15,000 claims released\n")
    assert owners(client) == {alive: 5_000}
    done = shop("pending", "--requeue", "--owner", alive, "-y", "--json")
    assert done.json["requeued"] == 5_000
    (heir,) = owners(client)
    assert heir != alive
    assert bloom.info().claims == 5_000


def test_any_number_of_owners(
    shop: Call, bloom: BloomFilter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "MAX_OWNERS", 10)
    for number in range(30):
        claim(bloom, f"w{TAG}{number:016x}", [f"{number}"])
    document = shop("pending", "--json").json
    assert document["claims"] == 30
    assert len(document["owners"]) == 11
    assert document["owners"][0]["owner"] == "(others)"
    assert document["owners"][0]["claims"] == 20
    # Their ids are shown as far as is needed to tell them apart.
    rows = [
        line.split()[0]
        for line in shop("pending").out.splitlines()
        if " unknown " in line or "starting" in line
    ]
    assert {len(owner) for owner in rows} == {len("(others)"), 25}


# -- damage --


DAMAGED = {
    "a": "",
    "b": "nonsense",
    "c": "w 1 2",
    "d": "\x1b[31mred n 1 0 x",
    "e": f"w{TAG} n 9999999999999 0 x",
    "f": b"\xff\xfe",
}


@pytest.mark.parametrize("options", [[], ["--json"], ["--release", "-y"], ["--requeue", "-y"]])
def test_damaged_claims(
    shop: Call, bloom: BloomFilter, client: redis.Redis, options: list[str]
) -> None:
    key = f"{{{KEY}:1}}:claims"
    client.hset(key, mapping=DAMAGED)
    owner = register(bloom, life=-5)
    claim(bloom, owner, ["whole"])
    done = shop("pending", *options)
    assert (done.code, done.err) == (0, "")
    assert "\x1b" not in done.out
    assert client.hgetall(key).keys() >= {field.encode() for field in DAMAGED}
    if not options:
        assert "6 more cannot be read" in done.out
    elif options == ["--json"]:
        assert (done.json["claims"], done.json["damaged"]) == (1, 6)


def test_absurd_claims(shop: Call, bloom: BloomFilter, client: redis.Redis) -> None:
    """As they can be read, but nobody writes them."""
    absurd = {
        b"\xff\x1b[31m": "w n 999999999999 999999999 x",
        b"": f"{FAILED} n 999999999999 0 x",
        b"z" * 3000: f"{FAILED} n 0 0 ",
        b"y": f"{'~' * 60} n 0 0 x",
        b"x": "-nobody n 1 0 x",
        b"v": f"q{TAG} n 000000000001 0 x",
    }
    client.hset(f"{{{KEY}:2}}:claims", mapping=absurd)
    done = shop("pending", "--json")
    assert (done.code, done.json["claims"]) == (0, 6)
    groups = {(group["owner"], group["state"]): group for group in done.json["owners"]}
    assert groups[FAILED, "not due"]["next_due_utc"] is None
    assert groups["~" * 60, "unknown"]["kind"] == "unknown"
    done = shop("pending")
    assert (done.code, done.err) == (0, "")
    assert "\x1b" not in done.out
    for option in ("--requeue", "--release"):
        assert shop("pending", option, "-y").code == 0
    assert shop("pending", "--release", "-y", "--owner", "w").code == 0


HOSTS = ["\x1b[31mred\x07", "a\nb\tc", "\ud800", "\u202eabc\x9b", "x" * 1900, "[red]x[/]", "\x7f"]


@pytest.mark.parametrize("host", HOSTS)
def test_absurd_hosts(shop: Call, bloom: BloomFilter, host: str) -> None:
    owner = register(bloom, process=Process(host, 1, "", 0))
    claim(bloom, owner, ["a"])
    done = shop("pending")
    assert (done.code, done.err) == (0, "")
    assert all(character.isprintable() for character in done.out.replace("\n", ""))
    assert len([line for line in done.out.splitlines() if owner[: command.MIN_SHOWN] in line]) == 1
    (group,) = shop("pending", "--json").json["owners"]
    assert group["host"] == host


@pytest.mark.parametrize(
    "entry",
    ["", "x", "0", "0 []", "0 {", "999999999999 {}", "-1 {}", "0 " + "[" * 1900, b"\xff\xff"],
)
def test_damaged_workers(
    shop: Call, bloom: BloomFilter, client: redis.Redis, entry: str | bytes
) -> None:
    owner = register(bloom)
    claim(bloom, owner, ["a"])
    workers_key = f"{{{KEY}:0}}:workers"
    client.hset(workers_key, owner, entry)
    client.hset(workers_key, "\x1b[31m", entry)
    assert states(shop("pending", "--json")) == {"starting": 1}
    age(client, owner, 3600)
    assert states(shop("pending", "--json")) == {"unknown": 1}
    done = shop("pending")
    assert (done.code, "\x1b" in done.out) == (0, False)


@pytest.mark.parametrize("until", ["1", "999999999999"])
def test_absurd_lives(shop: Call, bloom: BloomFilter, client: redis.Redis, until: str) -> None:
    owner = register(bloom)
    claim(bloom, owner, ["a"])
    key = f"{{{KEY}:0}}:workers"
    client.hset(key, owner, f"{until} {client.hget(key, owner).decode().split(' ', 1)[1]}")
    assert states(shop("pending", "--json")) == {"dead" if until == "1" else "alive": 1}
    assert shop("pending").code == 0


def test_claims_of_a_lost_block(shop: Call, bloom: BloomFilter, client: redis.Redis) -> None:
    claim(bloom, register(bloom), [str(number) for number in range(30)])
    client.delete(f"{{{KEY}:1}}:ring")
    assert shop("pending", "--json").json["claims"] == 30


@pytest.mark.parametrize("key", [f"{{{KEY}:1}}:claims", f"{{{KEY}:0}}:workers"])
def test_a_key_of_another_type(
    shop: Call, bloom: BloomFilter, client: redis.Redis, key: str
) -> None:
    client.lpush(key, "x")
    done = shop("pending")
    assert (done.code, done.out) == (2, "")
    assert "WRONGTYPE" in done.err or repr(key) in done.err
    assert len(done.err.splitlines()) == 1


# -- options --


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--release", "--requeue"], "not allowed with"),
        (["--owner"], "expected one argument"),
        (["--owner", ""], "--owner takes the beginning of an owner's id"),
        (["--owner", " ", "--release", "-y"], "--owner takes the beginning of an owner's id"),
        (["surplus"], "unrecognized arguments"),
        (["--release"], "Nobody can be asked here: add --yes"),
        (["--requeue", "--json"], "Nobody can be asked here: add --yes"),
    ],
)
def test_wrong_options(
    shop: Call, bloom: BloomFilter, client: redis.Redis, options: list[str], message: str
) -> None:
    claim(bloom, register(bloom, life=-5, owner=f"w{TAG}{0:016x}"), ["a"])
    claim(bloom, workers.queue_id("shop", "a"), ["b"])
    fail(bloom, ["c"], 600)
    before = everything(client)
    done = shop("pending", *options)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert everything(client) == before


def test_no_server(call: Call) -> None:
    url = f"redis://:{SECRET}@127.0.0.1:{free_port()}"
    for options in ([], ["--release", "-y"], ["--requeue", "-y"]):
        done = call("pending", *options, "--key", "k", "-s", f"BLOOM_REDIS_URL={url}")
        assert (done.code, done.out) == (2, "")
        assert "start a server there" in done.err
        assert SECRET not in done.err


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1), ("", 1)])
@pytest.mark.parametrize("option", ["--release", "--requeue"])
def test_confirmation(
    *,
    shop: Call,
    every: dict[str, str],
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    code: int,
    option: str,
) -> None:
    before = everything(client)
    stdin = io.StringIO(answer)
    monkeypatch.setattr(stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", stdin)
    done = shop("pending", option)
    assert done.code == code
    assert done.err.endswith("? [y/N] ")
    assert (everything(client) == before) == bool(code)


def test_the_question(shop: Call, every: dict[str, str], bloom: BloomFilter) -> None:
    assert "Release 17 claims of 'shop:bloom' on " in shop("pending", "--release").err
    # Those of dead and stopped workers are crawled anyway; the strange owner is no spider's.
    assert "Requeue 9 claims of 'shop:bloom' on " in shop("pending", "--requeue").err
    assert (
        "; 2 without a request or a spider are released instead;"
        in shop("pending", "--requeue").err
    )
    claim(bloom, every["dead"], ["no request"], "")
    assert "; 3 without a request or" in shop("pending", "--requeue").err
    error = shop("pending", "--release", "--owner", "w").err
    assert "Release 17 claims" in error
    assert ", 6 of them of living workers" in error
    error = shop("pending", "--requeue", "--owner", every["alive"]).err
    assert "Requeue 2 claims" in error
    assert ", 2 of them of living workers" in error
    assert "without a request" not in error
    assert ", 2 of them of living" in shop("pending", "--release", "--owner", every["used"]).err
    assert "living" not in shop("pending", "--release", "--owner", every["waiting"]).err


# -- release --


def test_release_ends_what_nobody_will_settle(
    shop: Call, every: dict[str, str], client: redis.Redis, bloom: BloomFilter
) -> None:
    workers_before = client.hgetall(f"{{{KEY}:0}}:workers")
    done = shop("pending", "--release", "-y", "--json")
    assert (done.code, done.err) == (0, "")
    counts = {name: done.json[name] for name in ("released", "requeued", "already", "missed")}
    assert counts == {"released": 17, "requeued": 0, "already": 0, "missed": 0}
    assert done.json["key"] == KEY
    left = {every[state] for state in ("alive", "silent", "starting", "used", "waiting")}
    assert set(owners(client)) == left
    assert client.hgetall(f"{{{KEY}:0}}:workers") == workers_before
    # They are not seen, and can be claimed again.
    assert not bloom.contains(["dead 0"])[0]
    claim(bloom, every["alive"], ["dead 0", "later 1"])
    assert "0 claims released" in shop("pending", "--release", "-y").out


@pytest.mark.parametrize(
    "state", ["alive", "silent", "dead", "stopped", "starting", "unknown", "used", "waiting"]
)
def test_release_of_one_owner(
    shop: Call, every: dict[str, str], client: redis.Redis, state: str
) -> None:
    before = owners(client)
    done = shop("pending", "--release", "-y", "--owner", every[state][:20])
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith(": 2 claims released\n")
    del before[every[state]]
    assert owners(client) == before


def test_release_of_failed_urls(shop: Call, every: dict[str, str], client: redis.Redis) -> None:
    before = owners(client)
    done = shop("pending", "--release", "-y", "--owner", "failed")
    assert done.out.endswith(": 5 claims released\n")
    del before[FAILED]
    assert owners(client) == before


# -- requeue --


def test_requeue_of_everything_left(
    shop: Call, every: dict[str, str], client: redis.Redis, bloom: BloomFilter
) -> None:
    claim(bloom, every["unknown"], ["kept nowhere"], "")
    age(client, every["unknown"], 3600)
    before, now = stored(client), int(time.time())
    done = shop("pending", "--requeue", "-y")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith(
        ": 7 claims requeued, 8 left to the next worker as they were, 3 released instead "
        "(without a request or a spider)\n"
    )
    after = stored(client)
    gone = {field_of(b"kept nowhere"), field_of(b"strange 0"), field_of(b"strange 1")}
    assert before.keys() - after.keys() == gone
    (heir,) = {value[0] for value in after.values()} - {value[0] for value in before.values()}
    assert heir.startswith(f"w{TAG}")
    assert len(heir) == len(workers.worker_id("shop"))
    for field, (owner, _, made, _, request) in after.items():
        if owner == heir:
            assert (before[field][0] in (FAILED, every["unknown"]), request) == (True, REQUEST)
            assert now - 1 <= int(made) <= now + 10
        else:
            assert before[field] == after[field]
    _, entries = bloom.run(pending.beat)
    worker = workers.parse_all(entries)[heir]
    assert (worker.until, worker.queue, worker.process.pid) == (0, "", os.getpid())
    # A second time, there is nothing to do, and nothing to be asked.
    done = shop("pending", "--requeue")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith(": 0 claims requeued, 15 left to the next worker as they were\n")
    assert stored(client) == after


@pytest.mark.parametrize("state", ["alive", "silent", "starting", "unknown", "used", "waiting"])
def test_requeue_of_one_owner(
    shop: Call, every: dict[str, str], client: redis.Redis, state: str
) -> None:
    before = owners(client)
    done = shop("pending", "--requeue", "-y", "--json", "--owner", every[state])
    assert (done.code, done.err, done.json["requeued"]) == (0, "", 2)
    assert before[every[state]] == 2
    assert every[state] not in owners(client)
    assert owners(client).total() == before.total()


@pytest.mark.parametrize("state", ["dead", "gone", "stopped", "paused"])
def test_what_is_left_behind_need_not_be_requeued(
    shop: Call, every: dict[str, str], client: redis.Redis, state: str
) -> None:
    before = everything(client)
    done = shop("pending", "--requeue", "--json", "--owner", every[state])
    assert (done.code, done.json["requeued"], done.json["already"]) == (0, 0, 2)
    assert everything(client) == before


def test_of_each_spider_its_own(call: Call, client: redis.Redis, server: Server) -> None:
    bloom = BloomFilter(client, "special")
    bloom.open()
    for spider in ("shop", "own"):
        claim(bloom, workers.worker_id(spider), [f"{spider} {number}" for number in range(5)])
    where = {"BLOOM_REDIS_URL": server.url}
    done = call("pending", "--key", "special", "--requeue", "-y", "--owner", "w", **where)
    assert "10 claims requeued" in done.out
    after = owners(client)
    assert sorted(after.values()) == [5, 5]
    assert {owner[1:9] for owner in after} == {TAG, workers.tag("own")}


@pytest.fixture
def taken_over(bloom: BloomFilter, server: Server) -> Iterator[Callable[[], set[str]]]:
    """Has a worker of the spider look; returns the fields of what it has taken over."""
    found: list[Found] = []
    me = Worker(workers.worker_id("shop"), 0, 1.0, Process.own())
    chore = Takeover(
        me, "shop", found=found.append, dropped=print, wanted=lambda: None, looked=lambda: None
    )
    filters = Filters({"lasting": bloom}, connect(server.url))

    def look() -> set[str]:
        found.clear()
        time.sleep(1.1)  # until its next sign of life
        chore.is_hungry = True
        chore.run(filters)
        while chore.is_looking:
            chore.is_hungry = True
            chore.run(filters)
        return {field for part in found for field in part.requests}

    yield look
    filters.close()


def test_the_next_worker_takes_over_what_was_requeued(
    shop: Call, bloom: BloomFilter, client: redis.Redis, taken_over: Callable[[], set[str]]
) -> None:
    assert taken_over() == set()
    alive = register(bloom)
    claim(bloom, alive, ["a", "b"])
    fail(bloom, ["c", "d"], 600)
    queue = workers.queue_id("shop", "a")
    register(bloom, queue=queue)
    claim(bloom, queue, ["e"])
    # It has looked at all claims before, and has no reason to do so again.
    assert taken_over() == set()
    for owner, items in ((alive, ["a", "b"]), ("failed", ["c", "d"]), ("q", ["e"])):
        assert shop("pending", "--requeue", "-y", "--owner", owner).code == 0
        assert taken_over() == {field_of(item.encode()) for item in items}
    # The heirs are forgotten.
    _, entries = bloom.run(pending.beat)
    assert len(entries) == 3


# -- races --


@pytest.mark.parametrize("option", ["--release", "--requeue"])
@pytest.mark.parametrize("what", ["settled", "taken over"])
def test_what_changes_hands_meanwhile_is_left_alone(
    *,
    shop: Call,
    bloom: BloomFilter,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    what: str,
) -> None:
    owner, other = register(bloom), register(bloom)
    claim(bloom, owner, ["a", "b", "c"])
    scan = pending.scan
    meanwhile = {
        "settled": lambda view: pending.release(view, [b"b"], owner),
        "taken over": lambda view: pending.hold(view, [b"b"], other, "n"),
    }

    def scan_slowly(*args: Any, **kwargs: Any) -> Any:
        page = yield from scan(*args, **kwargs)
        if page.claims:
            BloomFilter(client, KEY).run(meanwhile[what])
        return page

    monkeypatch.setattr(pending, "scan", scan_slowly)
    done = shop("pending", option, "-y", "--owner", owner)
    assert done.code == 0
    after = stored(client)
    if what == "settled":
        assert field_of(b"b") not in after
    else:
        assert after[field_of(b"b")][0] == other
    assert owner not in owners(client)


def test_killed_half_way(
    shop: Call, bloom: BloomFilter, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = register(bloom)
    claim(bloom, owner, [str(number) for number in range(100)])
    adopt, calls = pending.adopt, []

    def adopt_once(*args: Any, **kwargs: Any) -> Any:
        if calls:
            raise KeyboardInterrupt
        calls.append(args)
        return (yield from adopt(*args, **kwargs))

    monkeypatch.setattr(pending, "adopt", adopt_once)
    done = shop("pending", "--requeue", "-y", "--owner", owner)
    assert (done.code, done.err) == (2, "scrapy bloom: interrupted\n")
    after = owners(client)
    assert after.total() == 100
    (heir,) = after.keys() - {owner}
    # It is known to all workers already.
    _, entries = bloom.run(pending.beat)
    assert workers.parse_all(entries)[heir].until == 0
    monkeypatch.undo()


def test_a_worker_that_is_back_keeps_its_claims(
    shop: Call, bloom: BloomFilter, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = register(bloom, life=-5)
    claim(bloom, owner, ["a"])
    stdin = io.StringIO("y\n")
    monkeypatch.setattr(stdin, "isatty", lambda: register(bloom, owner=owner))
    monkeypatch.setattr(sys, "stdin", stdin)
    done = shop("pending", "--release")
    assert (done.code, "Release 1 claims" in done.err) == (0, True)
    assert done.out.endswith(": 0 claims released\n")
    assert owners(client) == {owner: 1}


# -- the other subcommands --


def test_info_says_how_many_are_pending(
    shop: Call, bloom: BloomFilter, client: redis.Redis
) -> None:
    assert "pending       none" in shop("info").out
    claim(bloom, register(bloom), ["a", "b"])
    done = shop("info")
    assert "pending       2 URLs claimed, not settled yet (scrapy bloom pending shows" in done.out
    (document,) = shop("info", "--json").json["filters"]
    assert document["claims"] == 2
    blocks = shop("info", "--json", "-v").json["filters"][0]["per_block"]
    assert sum(block["claims"] for block in blocks) == 2


def test_clear_says_that_claims_go_too(shop: Call, bloom: BloomFilter, client: redis.Redis) -> None:
    bloom.add("x")
    assert "forgets all its 1 URLs? Nobody" in shop("clear").err
    claim(bloom, register(bloom), ["a", "b"])
    assert "forgets all its 1 URLs and 2 claims? Nobody" in shop("clear").err
    assert shop("clear", "-y").code == 0
    assert client.keys("*:claims") == []


def test_without_rich_there_are_plain_columns_and_json(
    shop: Call, every: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "rich", None)
    done = shop("pending")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[1].startswith("owner")
    for options in ([], ["--release", "-y"]):
        done = shop("pending", "--json", *options)
        assert (done.code, done.err) == (0, "")
        assert json.loads(done.out)


def test_no_digit_is_lost_on_a_narrow_terminal(
    shop: Call, every: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = shop("pending")
    table = done.out.splitlines()[1:]
    assert max(map(len, table)) == 80
    assert "…" not in done.out
    assert f"{27 * len(REQUEST)} bytes" in done.out
