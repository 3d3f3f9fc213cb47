"""``scrapy bloom failed``, ``gone`` and ``pending``: pages they list, and claims they end."""

import re
import time
from collections import Counter
from functools import partial

import pytest
from redis import Redis
from scrapy import Request, Spider
from support.cli import KEY, SECRET, Call, Done, Own, Shop, claim, fail, register, unchanged
from support.servers import Server

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.crawl import workers
from scrapy_bloom.crawl.request_codec import dump


class Other(Spider):
    name = "other"


def test_a_page_with_all_that_is_known(shop: Call, bloom: BloomFilter, client: Redis) -> None:
    """What is claimed is not listed."""
    claim(bloom, workers.worker_id("shop"), ["https://example.com/"])
    done = shop("failed")
    assert (done.code, done.err) == (0, "")
    assert ": 0 pages failed, 0 of them are due\n" in done.out
    fail(bloom, ["https://example.com/a?x=1"])
    with unchanged(client):
        (page,) = shop("failed", "--json").json["pages"]
        done = shop("failed")
    known = [page[name] for name in ("url", "reason", "name", "spider", "attempts")]
    assert known == ["https://example.com/a?x=1", "HTTP 503", "default", "shop", 1]
    assert 540 < page["due"] - int(client.time()[0]) <= 600
    heading, line, total = done.out.splitlines()
    assert heading.split() == ["attempts", "next", "try", "(UTC)", "reason", "URL"]
    assert line.endswith("  HTTP 503  https://example.com/a?x=1")
    assert ": 1 page failed, 0 of them are due; scrapy bloom recrawl --failed" in total


def test_pages_that_are_due_come_first(shop: Call, bloom: BloomFilter) -> None:
    """And --limit lists these; all claims are read, page by page."""
    urls = [f"https://example.com/{place}" for place in range(4)]
    for place in (3, 1, 2, 0):
        fail(bloom, [urls[place]], seconds=1_000 * place)
    fail(bloom, [f"https://example.com/more/{place}" for place in range(700)], seconds=9_000)
    document = shop("failed", "--json").json
    assert ([page["url"] for page in document["pages"][:4]], len(document["pages"])) == (urls, 100)
    assert (document["failed"], document["due"]) == (704, 1)
    assert "; 702 are not shown (--limit 0 shows all)" in shop("failed", "--limit", "2").out
    assert len(shop("failed", "--json", "--limit", "0").json["pages"]) == 704


def test_odd_pages(shop: Call, bloom: BloomFilter, client: Redis) -> None:
    """A request that is no longer kept, no reason, secrets, and a time beyond the calendar."""
    fail(bloom, ["https://example.com/a"], attempts=1)
    fail(bloom, ["https://example.com/b"], reason="")
    fail(bloom, [f"https://user:{SECRET}@example.com/c"], reason="\x1b[31m red")
    late = f'{workers.failed_id("shop")} !HTTP+503 999999999999 1 {{"url":"http://x/"}}'
    client.hset(Keys(KEY).claims(0), "ab", late)
    document, text = shop("failed", "--json"), shop("failed").out
    pages = {page["url"]: page for page in document.json["pages"]}
    assert (pages[None]["reason"], pages["https://example.com/b"]["reason"]) == ("HTTP 503", "")
    assert "(its request is not kept)" in text
    assert "  (not known)  " in text
    assert pages["http://x/"]["due"] <= time.time(), "as BLOOM_RETRY_AFTER allows no such time"
    assert "https://***@example.com/c" in text
    for hidden in (SECRET, "\x1b", "999999999999"):
        assert hidden not in text
    for listed in (document, shop("pending"), shop("pending", "--json")):
        assert SECRET not in listed.out


def test_windows_are_named_if_there_are_several(
    shop: Call, bloom: BloomFilter, client: Redis
) -> None:
    windows = {"BLOOM_RECRAWL_RULES": [("/l", "1 day"), ("/unused", "1 week")]}
    fail(bloom, ["https://example.com/a"], seconds=60)
    fail(BloomFilter(client, f"{KEY}:1-day", blocks=3), ["https://example.com/l"], seconds=30)
    for word, line in zip(
        ("window", "1-day", "default", f"{KEY}, {KEY}:1-day on "),
        shop("failed", **windows).out.splitlines(),
        strict=True,
    ):
        assert word in line
    (page,) = shop("failed", "--json", "--window", "1-day", **windows).json["pages"]
    assert (page["name"], page["url"]) == ("1-day", "https://example.com/l")


def test_spiders_that_share_a_filter(call: Call, bloom: BloomFilter, server: Server) -> None:
    fail(bloom, ["https://example.com/a"])
    fail(bloom, ["https://example.com/b"], spider="other")
    shared = {"spiders": (Shop, Other), "BLOOM_REDIS_URL": server.unix_url, "BLOOM_KEY": KEY}
    pages = call("failed", "--json", **shared).json["pages"]
    assert {page["spider"] for page in pages} == {"shop", "other"}
    (page,) = call("failed", "--json", "--spider", "other", **shared).json["pages"]
    assert page["url"] == "https://example.com/b"


def note(client: Redis, url: str, *, times: int = 2, first: int = 0, why: str = "HTTP+404") -> None:
    """Note a missing page, as prelude_ledger.lua does. That scripts do: test_ledger_protocol.py."""
    since = 1_800_000_000 + first
    value = f"{since} {since + 100} {times} !{why} {url}"
    client.hset(Keys(KEY).missing(len(url) % 3), f"{url}-field".encode().hex(), value)


def test_a_page_that_is_gone_with_all_that_is_known(
    shop: Call, bloom: BloomFilter, client: Redis
) -> None:
    text = ": 0 pages are gone; crawls note them with BLOOM_LEDGER = True\n"
    assert shop("gone").out.endswith(text)
    assert shop("gone", BLOOM_LEDGER=True).out.endswith(": 0 pages are gone\n")
    note(client, "https://example.com/a?x=1")
    note(client, "https://example.com/once", times=1)
    with unchanged(client):
        document = shop("gone", "--json").json
        heading, line, total = shop("gone").out.splitlines()
    assert (document["gone"], document["missing"]) == (1, 2)
    (page,) = document["pages"]
    known = [page[name] for name in ("url", "reason", "name", "windows", "first", "last_utc")]
    assert known == [
        *("https://example.com/a?x=1", "HTTP 404", "default", 2),
        *(1_800_000_000, "2027-01-15T08:01:40Z"),
    ]
    assert heading.split() == [*("windows", "since", "(UTC)", "last", "(UTC)", "reason", "URL")]
    assert line.startswith(" " * 6 + "2  2027-01-15 ")
    assert total.endswith("1 page is gone; 1 was missing in one window so far (--all lists them)")


def test_pages_that_are_missing_longest_come_first_and_notes_are_deleted(
    shop: Call, bloom: BloomFilter, client: Redis
) -> None:
    urls = [f"https://example.com/{'x' * place}" for place in range(4)]
    for place in (3, 1, 2, 0):
        note(client, urls[place], first=place)
    secret = f"https://user:{SECRET}@example.com/\x1b[31m"
    note(client, secret, first=9, why="%1B[31m+red")
    document, text = shop("gone", "--json"), shop("gone").out
    assert [page["url"] for page in document.json["pages"][:4]] == urls
    assert SECRET not in document.out + text
    assert "\x1b" not in text
    limited = shop("gone", "--json", "--limit", "2").json
    assert ([page["url"] for page in limited["pages"]], limited["gone"]) == (urls[:2], 5)
    assert "; 3 are not shown (--limit 0 shows all)" in shop("gone", "--limit", "2").out
    assert "5 pages are gone; the notes are deleted" in shop("gone", "--forget").out
    assert not client.keys("*missing*")
    assert shop("gone", "--forget", "--json").json["forgotten"] is True


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


def test_all_claims_are_listed(shop: Call, client: Redis, every: dict[str, str]) -> None:
    with unchanged(client):
        document, text = shop("pending", "--json").json, shop("pending")
    assert (text.code, text.err) == (0, "")
    assert (document["name"], document["key"], len(document["claims"])) == ("default", KEY, 11)
    found = {claim["owner"]: claim for claim in document["claims"]}
    for name in ("worker", "unknown", "queue"):
        one = found[every[name]]
        assert (one["url"], one["spider"]) == (URL, "shop")
        assert one["worker"] == ("host-1:4711" if name == "worker" else "")
        assert (one["attempts"], one["due"], one["due_utc"]) == (0, 0, None)
    assert found["x"]["spider"] == ""
    failed = [claim for claim in document["claims"] if claim["due"]]
    assert {(one["owner"], one["attempts"], one["since"]) for one in failed} == {(FAILED, 1, 0)}
    times = sorted(one["due"] for one in failed)
    assert 590 <= times[2] - times[0] <= 610

    _, *lines, end = text.out.splitlines()
    assert end.endswith(": 11 claims")
    rows = Counter(re.sub("20[0-9-]+T[0-9:]+Z", "TIME", " ".join(line.split())) for line in lines)
    assert rows[f"0 TIME host-1:4711 shop {URL}"] == 2
    assert rows[f"0 TIME {every['unknown']} shop {URL}"] == 2
    assert rows[f"1 due TIME none shop {URL}"] == 3
    assert rows.total() == 11


@pytest.mark.parametrize(
    ("owner", "count"), [("host-1:4711", 2), ("shop", 9), (FAILED, 3), ("host-1", 0)]
)
def test_claims_of_an_owner_are_listed_and_released(
    shop: Call, every: dict[str, str], client: Redis, owner: str, count: int
) -> None:
    heartbeats = partial(client.zrange, f"{{{KEY}:0}}:heartbeats", 0, -1, withscores=True)
    before = heartbeats()
    option = f"--owner={owner}"  # an owner may begin with a dash
    assert listed(shop("pending", "--json", option)) == count
    done = shop("pending", "--release", "-y", option)
    assert (done.code, done.err) == (0, "")
    assert f": {count} claims released; their pages are crawled only if" in done.out
    assert owners(client).total() == 11 - count
    assert heartbeats() == before


def test_a_shared_filter(call: Call, client: Redis, server: Server) -> None:
    for spider in ("shop", "own", "of another project"):
        claim(BloomFilter(client, "special"), workers.worker_id(spider), [spider])
    where = {"BLOOM_REDIS_URL": server.url}
    done = call("pending", "--json", "--key", "special", **where, spiders=(Shop, Own))
    tag = workers.tag("of another project")
    assert {claim["spider"] for claim in done.json["claims"]} == {"shop", "own", tag}
    for owner, count in ((tag, 1), ("of another project", 1), ("of no project", 0)):
        done = call("pending", "--key", "special", "--owner", owner, "--json", **where)
        assert listed(done) == count


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
    client.hset(f"{{{KEY}:2}}:claims", mapping=absurd)  # type: ignore[arg-type]
    done, text = shop("pending", "--json"), shop("pending").out
    assert listed(done) == 7
    assert {claim["url"] for claim in done.json["claims"]} == {None, "\x1b[31m\u202e"}
    assert "\x1b" not in text
    assert "\\x1b[31m\\u202e" in text
    for options, message in (
        (["--release"], "say whose claims to release: --release with --owner"),
        (["--release", "--owner", "", "-y"], "say whose claims to release"),
        (["--release", "--owner", "shop"], "There is no terminal to ask at: add --yes"),
    ):
        shop("pending", *options).refused(message)
    assert owners(client).total() == 7
    assert shop("pending", "--release", f"--owner={FAILED}", "-y").code == 0
    assert owners(client).total() == 5
