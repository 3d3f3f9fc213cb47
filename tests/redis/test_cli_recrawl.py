"""``scrapy bloom recrawl``: what it leaves, and what it refuses. Crawls: test_recrawled_urls.py."""

import json
from typing import Any

import pytest
from redis import Redis
from scrapy import Spider
from support.calls import script_calls
from support.cli import KEY, SECRET, Call, Own, fingerprints, give, unchanged
from support.servers import Server

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.errors import StorageError
from scrapy_bloom.bloom.protocol import claim_protocol
from scrapy_bloom.crawl import workers

URL = "https://example.com/a"


class Parsing(Spider):
    name = "shop"

    def __init__(self, needed: str) -> None:
        raise AssertionError("a spider may need arguments, and is not made")

    def parse(self, response: Any) -> None: ...

    def parse_item(self, response: Any) -> None: ...

    not_a_method = 7


@pytest.fixture
def recrawl(call: Call, server: Server) -> Call:
    """Calls the subcommand in the project of a spider with callbacks."""

    def recrawl(*arguments: str, **settings: Any) -> Any:
        given = {"spiders": (Parsing,), "BLOOM_REDIS_URL": server.unix_url, **settings}
        return call("recrawl", *arguments, **given)

    return recrawl


def left(client: Redis) -> dict[str, Any]:
    """Return the requests by URL."""
    claims = [claim for key in client.keys("*:claims") for claim in client.hvals(key)]
    requests = [json.loads(claim.decode().split(" ", 4)[4]) for claim in claims]
    return {request["url"]: request for request in requests}


def test_a_url_is_left_with_its_request(
    recrawl: Call, shop: Call, bloom: BloomFilter, client: Redis
) -> None:
    (item,) = fingerprints([URL])
    bloom.add(item)
    done = recrawl(URL)
    assert (done.code, done.err) == (0, "")
    line, total = done.out.splitlines()
    assert line == f"will be crawled  {URL}"
    assert ": 1 URL is left for the next crawl of 'shop', or one that runs now. They go" in total
    (key,) = client.keys("*:claims")
    ((field, claim),) = client.hgetall(key).items()
    owner, _, time, attempt, request = claim.decode().split(" ", 4)
    assert (field.decode(), owner, attempt) == (item.hex(), workers.failed_id("shop"), "0")
    assert int(time) <= int(client.time()[0])
    meta = {"bloom_claims": {f"default:{item.hex()}": 0}}
    assert json.loads(request) == {"url": URL, "dont_filter": True, "meta": meta}
    assert item in bloom
    (answer,) = shop("check", URL, "--json").json["answers"]
    assert (answer["state"], answer["attempts"]) == ("seen", 0)
    assert "pending: a crawl fetches it again" in shop("check", URL).out
    before = left(client)
    done = recrawl(f"{URL}#fragment", "--json")
    assert [one["state"] for one in done.json["urls"]] == ["due"]
    assert left(client) == before
    for callback in ("parse_item", "parse"):  # the last one counts
        recrawl(URL, "--callback", callback)
        assert left(client)[URL]["callback"] == callback


def test_what_is_not_clear_is_refused(recrawl: Call, bloom: BloomFilter, client: Redis) -> None:
    """Where all spiders share the filter, only one of them takes the URL over."""
    two = {"spiders": (Parsing, Own), "BLOOM_KEY": KEY}
    run = {"BLOOM_RECRAWL_RULES": [("/a", "run")]}
    for arguments, settings, code, message in (
        ([URL, "--callback", "not_a_method"], {}, 2, "callback 'not_a_method' is not a method"),
        ([URL, "--callback", "closed"], {}, 2, "callback 'closed' is not a method of the spider"),
        ([URL], two, 2, "--spider (there are: own, shop)"),
        ([], {}, 2, "give URLs to crawl again, a file of them with --file, or --failed"),
        ([URL], run, 1, f"{URL!r} has the window 'run' by BLOOM_RECRAWL_RULES"),
    ):
        recrawl(*arguments, **settings).refused(message, code=code)
    assert not left(client)
    assert recrawl(URL, "--spider", "shop", **two).code == 0


def test_if_one_line_is_wrong_nothing_is_left(
    recrawl: Call, bloom: BloomFilter, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = f"https://example.com/{'x' * 70_000}"
    lines = [
        *(URL, "x", "", f"https://u:{SECRET}@/"),
        *("\udcff", long, "ftp://example.com/", "http://[x/"),
    ]
    give(monkeypatch, "\n".join(lines).encode("utf-8", "surrogateescape"))
    with unchanged(client):
        done = recrawl("--file", "-")
    texts = [f"scrapy bloom: line {number}: " for number in (2, 4, 5, 6, 7, 8)]
    done.refused(*texts, "6 URLs are wrong, and none is crawled again", code=1)
    assert SECRET not in done.err
    assert len(done.err) < 3_000


def many(monkeypatch: pytest.MonkeyPatch, count: int) -> list[str]:
    """Have the standard input give URLs."""
    urls = [f"https://example.com/{number}" for number in range(count)]
    give(monkeypatch, "\n".join(urls).encode())
    return urls


def test_thousands_of_urls_take_few_round_trips(
    recrawl: Call, bloom: BloomFilter, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = many(monkeypatch, 3_000)
    before = script_calls(client)
    done = recrawl("--file", "-", "--json")
    assert (done.code, done.json["left"], done.json["claimed"]) == (0, 3_000, 0)
    assert [one["url"] for one in done.json["urls"]] == urls
    assert left(client).keys() == set(urls)
    assert script_calls(client) - before <= 18 * bloom.blocks


def test_what_is_done_is_told_if_there_is_no_room_or_the_server_fails(
    recrawl: Call, bloom: BloomFilter, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    many(monkeypatch, 2_500)
    done = recrawl("--file", "-", BLOOM_PENDING_MEMORY=300_000)
    done.refused("raise BLOOM_PENDING_MEMORY", "of 2,500 URLs are done")
    assert 0 < len(left(client)) < 2_500  # each has a request
    claim, results = claim_protocol.claim, iter([False, True])

    def fail_late(*args: Any, **kwargs: Any) -> Any:
        if next(results):
            raise StorageError("no answer")
        return claim(*args, **kwargs)

    monkeypatch.setattr(claim_protocol, "claim", fail_late)
    bloom.clear(claims_only=True)
    many(monkeypatch, 2_500)
    text = "1,000 of 2,500 URLs are done, and some of the next ones may be"
    recrawl("--file", "-").refused(text)
    assert len(left(client)) == 1_000


def test_the_filter_of_each_window_must_exist_before_anything_is_left(
    recrawl: Call, bloom: BloomFilter, client: Redis
) -> None:
    settings: dict[str, Any] = {"BLOOM_RECRAWL_RULES": [("/list", "1 day")]}
    done = recrawl(URL, "https://example.com/list", **settings)
    done.refused("there is no filter 'shop:bloom:1-day'", code=1)
    assert not left(client)
    BloomFilter(client, f"{KEY}:1-day", window="1 day").open()
    done = recrawl(URL, "https://example.com/list", "--json", **settings)
    assert [one["name"] for one in done.json["urls"]] == ["default", "1-day"]
