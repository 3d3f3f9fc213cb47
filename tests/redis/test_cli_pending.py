"""``scrapy bloom pending``: what it lists of claims, and which it ends."""

import re
from collections import Counter
from typing import Any

import pytest
from redis import Redis
from scrapy import Request
from support.cli import KEY, Call, Done, Own, Shop, claim, everything, fail, register
from support.servers import Server

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.protocol import claim_protocol
from scrapy_bloom.crawl import workers
from scrapy_bloom.crawl.request_codec import dump

URL = "https://example.com/"
REQUEST = dump(Request(URL, meta={"key": "a value"}), None)
TAG = workers.tag("shop")
FAILED = f"-{TAG}"


def owners(client: Redis) -> Counter[str]:
    claims = [value for key in client.keys("*:claims") for value in client.hvals(key)]
    return Counter(claim.decode().split(" ")[0] for claim in claims)


@pytest.fixture
def every(bloom: BloomFilter, client: Redis) -> dict[str, str]:
    """Two claims of each kind of owner, and three that failed; returns the owners."""
    found = {
        "worker": register(bloom),
        "unknown": workers.worker_id("shop"),
        "queue": workers.queue_id("shop", "a"),
        "strange": "x",
    }
    for name, owner in found.items():
        claim(bloom, owner, [f"{name} {number}" for number in range(2)], REQUEST)
    fail(bloom, ["due 1", "due 2"], 0, REQUEST)
    fail(bloom, ["later"], 600, REQUEST)
    return found


def listed(done: Done) -> int:
    return len({(claim["block"], claim["field"]) for claim in done.json["claims"]})


# -- listing --


def test_all_claims_are_listed(shop: Call, client: Redis, every: dict[str, str]) -> None:
    before = everything(client)
    done, text = shop("pending", "--json"), shop("pending")
    assert everything(client) == before
    assert (done.code, done.err, text.code, text.err) == (0, "", 0, "")
    document = done.json
    assert (document["name"], document["key"], len(document["claims"])) == ("default", KEY, 11)
    found = {claim["owner"]: claim for claim in document["claims"]}
    for name in ("worker", "unknown", "queue"):
        one = found[every[name]]
        assert (one["url"], one["spider"]) == (URL, "shop")
        assert one["worker"] == ("host-1:4711" if name == "worker" else "")
        assert (one["attempts"], one["due"], one["due_utc"]) == (0, 0, None)
        assert one["since_utc"].endswith("Z")
    assert found["x"]["spider"] == ""
    failed = [claim for claim in document["claims"] if claim["due"]]
    assert {(one["owner"], one["attempts"], one["since"]) for one in failed} == {(FAILED, 1, 0)}
    times = sorted(one["due"] for one in failed)
    assert 590 <= times[2] - times[0] <= 610

    heading, *lines, end = text.out.splitlines()
    assert heading.split()[0] == "attempts"
    assert end.endswith(": 11 claims")
    rows = Counter(re.sub("20[0-9-]+T[0-9:]+Z", "TIME", " ".join(line.split())) for line in lines)
    assert rows[f"0 TIME host-1:4711 shop {URL}"] == 2
    assert rows[f"0 TIME {every['unknown']} shop {URL}"] == 2
    assert rows[f"1 due TIME {FAILED} shop {URL}"] == 3
    assert rows.total() == 11


@pytest.mark.parametrize(
    ("owner", "count"),
    [("host-1:4711", 2), ("shop", 9), (FAILED, 3), ("x", 2), ("host-1", 0), ("other", 0)],
)
def test_claims_of_an_owner(
    shop: Call, every: dict[str, str], client: Redis, owner: str, count: int
) -> None:
    option = f"--owner={owner}"  # an owner may begin with a dash
    assert listed(shop("pending", "--json", option)) == count
    # The same claims are released.
    done = shop("pending", "--release", "-y", "--json", option)
    assert (done.code, done.err, done.json["released"]) == (0, "", count)
    assert owners(client).total() == 11 - count


def test_a_shared_filter(call: Call, client: Redis, server: Server) -> None:
    bloom = BloomFilter(client, "special")
    bloom.open()
    for spider in ("shop", "own", "of another project"):
        claim(bloom, workers.worker_id(spider), [spider])
    where = {"BLOOM_REDIS_URL": server.url}
    done = call("pending", "--json", "--key", "special", **where, spiders=(Shop, Own))
    tag = workers.tag("of another project")
    assert {claim["spider"] for claim in done.json["claims"]} == {"shop", "own", tag}
    for owner, count in ((tag, 1), ("of another project", 1), ("of no project", 0)):
        done = call("pending", "--key", "special", "--owner", owner, "--json", **where)
        assert listed(done) == count


# -- damage --


def test_absurd_claims(shop: Call, bloom: BloomFilter, client: Redis) -> None:
    """They can be read, but no crawl writes them."""
    absurd = {
        b"\xff\x1b[31m": "w n 9999999999 999999999 x",
        b"": f"{FAILED} n 9999999999 0 {{}}",
        b"z" * 3000: f"{FAILED} n 0 0 ",
        b"y": f"{'~' * 60} n 0 0 [1]",
        b"x": '-nobody n 1 0 {"url": 5}',
        b"v": f'q{TAG} n 000000000001 0 {{"url": "\\u001b[31m\\u202e"}}',
        b"u": "w n 1 0 " + "[" * 50_000,
    }
    for field, value in absurd.items():
        client.hset(f"{{{KEY}:2}}:claims", field, value)
    done = shop("pending", "--json")
    assert (done.code, listed(done)) == (0, 7)
    assert {claim["url"] for claim in done.json["claims"]} == {None, "\x1b[31m\u202e"}
    done = shop("pending")
    assert (done.code, done.err) == (0, "")
    assert "\x1b" not in done.out
    assert "\\x1b[31m\\u202e" in done.out
    assert shop("pending", "--release", f"--owner={FAILED}", "-y").code == 0
    assert owners(client).total() == 5


# -- options --


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--release"], "say whose claims to release: --release with --owner"),
        (["--release", "--owner", "", "-y"], "say whose claims to release"),
        (["--release", "--owner", "shop"], "There is no terminal to ask at: add --yes"),
    ],
)
def test_wrong_options(
    shop: Call, bloom: BloomFilter, client: Redis, options: list[str], message: str
) -> None:
    claim(bloom, register(bloom, life=-5), ["a"])
    before = everything(client)
    done = shop("pending", *options)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert everything(client) == before


# -- release --


def test_released_urls_are_new(
    shop: Call, every: dict[str, str], client: Redis, bloom: BloomFilter
) -> None:
    workers_before = client.zrange(f"{{{KEY}:0}}:heartbeats", 0, -1, withscores=True)
    for owner, count in (("shop", 9), ("x", 2)):
        done = shop("pending", "--release", "--owner", owner, "-y")
        assert (done.code, done.err) == (0, "")
        assert f": {count} claims released; their pages are crawled only if" in done.out
    assert not owners(client)
    assert client.zrange(f"{{{KEY}:0}}:heartbeats", 0, -1, withscores=True) == workers_before
    assert not bloom.contains(["queue 0"])[0]
    claim(bloom, every["worker"], ["queue 0", "later"])


@pytest.mark.parametrize("what", ["settled", "taken over"])
def test_a_claim_that_changes_during_release_is_left_alone(
    *,
    shop: Call,
    bloom: BloomFilter,
    client: Redis,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    owner, other = register(bloom), register(bloom)
    claim(bloom, owner, ["a", "b", "c"])
    scan = claim_protocol.scan
    changes = {
        "settled": lambda session: claim_protocol.release(session, [b"b"], owner),
        "taken over": lambda session: claim_protocol.hold(session, [b"b"], other, "n"),
    }

    def scan_slowly(*args: Any, **kwargs: Any) -> Any:
        page = yield from scan(*args, **kwargs)
        if any(part.claims for part in page.values()):
            BloomFilter(client, KEY).run(changes[what])
        return page

    monkeypatch.setattr(claim_protocol, "scan", scan_slowly)
    assert shop("pending", "--release", "-y", "--owner", owner).code == 0
    assert owners(client) == ({} if what == "settled" else {other: 1})
