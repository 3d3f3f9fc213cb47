"""``scrapy bloom recrawl``: what it leaves, and what it refuses. Crawls: test_recrawled_urls.py."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis
from scrapy import Spider
from support.cli import KEY, SECRET, Call, Own, everything, fingerprints, give
from support.servers import Server

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.client.exchanges import BaseDriver
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


def claims(client: Redis) -> dict[str, str]:
    return {
        field.decode(): value.decode()
        for key in client.keys("*:claims")
        for field, value in client.hgetall(key).items()
    }


def left(client: Redis) -> dict[str, Any]:
    """Return the requests by URL."""
    requests = [json.loads(claim.split(" ", 4)[4]) for claim in claims(client).values()]
    return {request["url"]: request for request in requests}


def test_a_url_is_left_with_its_request(recrawl: Call, bloom: BloomFilter, client: Redis) -> None:
    (item,) = fingerprints([URL])
    bloom.add(item)
    done = recrawl(URL)
    assert (done.code, done.err) == (0, "")
    line, total = done.out.splitlines()
    assert line == f"will be crawled  {URL}"
    left_for = (
        ": 1 URL is left for the next crawl of 'shop', or one that runs now. They go to parse: "
    )
    assert total.endswith(left_for + "--callback names another method")
    ((field, claim),) = claims(client).items()
    owner, _, time, attempt, request = claim.split(" ", 4)
    assert (field, owner, attempt) == (item.hex(), workers.failed_id("shop"), "0")
    assert int(time) <= int(client.time()[0])
    expected = {"url": URL, "dont_filter": True, "meta": {"bloom_claims": {f"default:{field}": 0}}}
    assert json.loads(request) == expected
    assert item in bloom
    before = left(client)
    done = recrawl(f"{URL}#fragment", "--json")
    assert [one["state"] for one in done.json["urls"]] == ["due"]
    assert left(client) == before
    for callback in ("parse_item", "parse"):  # the last one counts
        recrawl(URL, "--callback", callback)
        assert left(client)[URL]["callback"] == callback


@pytest.mark.parametrize("name", ["nothing", "not_a_method", "__init__", "from_crawler", "closed"])
def test_a_callback_that_the_spider_lacks_is_refused(
    recrawl: Call, bloom: BloomFilter, client: Redis, name: str
) -> None:
    done = recrawl(URL, "--callback", name)
    assert (done.code, done.out) == (2, "")
    assert f"--callback: callback {name!r} is not a method of the spider 'shop'" in done.err
    assert not claims(client)


def test_which_spider_must_be_clear(recrawl: Call, bloom: BloomFilter) -> None:
    """Also where all spiders share the filter: only one of them takes the URL over."""
    done = recrawl(URL, spiders=(Parsing, Own), BLOOM_KEY=KEY)
    assert (done.code, done.out) == (2, "")
    assert "--spider (there are: own, shop)" in done.err
    assert recrawl(URL, "--spider", "shop", spiders=(Parsing, Own), BLOOM_KEY=KEY).code == 0
    done = recrawl()
    assert done.code == 2
    assert "give URLs to crawl again, a file of them with --file, or --failed" in done.err


def test_if_one_line_is_wrong_nothing_is_left(
    recrawl: Call, bloom: BloomFilter, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = everything(client)
    long = f"https://example.com/{'x' * 70_000}"
    lines = [URL, "x", "", f"https://u:{SECRET}@/", "\ttab\tin\t", "\udcff", long]
    lines += ["example.com", "ftp://example.com/", "http://", "http://[x/", "file:///etc/passwd"]
    text = "\n".join(lines).encode("utf-8", "surrogateescape")
    give(monkeypatch, text)
    done = recrawl("--file", "-")
    assert (done.code, done.out) == (1, "")
    named = re.findall(r"^scrapy bloom: line (\d+): ", done.err, re.MULTILINE)
    assert named == ["2", *map(str, range(4, 13))]
    assert "10 URLs are wrong, and none is crawled again" in done.err
    assert "'ftp://example.com/' is no URL of a page" in done.err
    assert SECRET not in done.err
    assert len(done.err) < 3_000
    assert everything(client) == before


def test_ten_thousand_urls_take_few_round_trips(
    recrawl: Call, bloom: BloomFilter, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [f"https://example.com/{number}" for number in range(10_000)]
    give(monkeypatch, "\n".join(urls).encode())
    sent = count_calls(monkeypatch)
    done = recrawl("--file", "-", "--json")
    assert (done.code, done.json["left"], done.json["claimed"]) == (0, 10_000, 0)
    assert [one["url"] for one in done.json["urls"]] == urls
    assert left(client).keys() == set(urls)
    assert 10 <= sent() <= 60


def count_calls(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count rounds of calls; return what tells how many."""
    replies, count = BaseDriver._replies, 0

    def counted(self: BaseDriver, calls: Any) -> Any:
        nonlocal count
        count += 1
        return replies(self, calls)

    monkeypatch.setattr(BaseDriver, "_replies", counted)
    return lambda: count


def test_urls_for_which_there_is_no_room_are_not_left(
    recrawl: Call, bloom: BloomFilter, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [f"https://example.com/{number}" for number in range(5_000)]
    give(monkeypatch, "\n".join(urls).encode())
    done = recrawl("--file", "-", BLOOM_PENDING_MEMORY=300_000)
    assert (done.code, done.out) == (2, "")
    assert "raise BLOOM_PENDING_MEMORY" in done.err
    assert "of 5,000 URLs are done" in done.err
    assert 0 < len(left(client)) < 5_000  # each has a request


def test_a_server_that_fails_in_between_is_told(
    recrawl: Call, bloom: BloomFilter, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [f"https://example.com/{number}" for number in range(2_500)]
    give(monkeypatch, "\n".join(urls).encode())
    claim, times = claim_protocol.claim, 0

    def fail_late(*args: Any, **kwargs: Any) -> Any:
        nonlocal times
        times += 1
        if times == 2:
            raise StorageError("no answer")
        return claim(*args, **kwargs)

    monkeypatch.setattr(claim_protocol, "claim", fail_late)
    done = recrawl("--file", "-")
    assert (done.code, done.out) == (2, "")
    assert "1,000 of 2,500 URLs are done, and some of the next ones may be" in done.err
    assert len(left(client)) == 1_000


def test_the_filter_of_each_window_must_exist_before_anything_is_left(
    recrawl: Call, bloom: BloomFilter, client: Redis
) -> None:
    settings: dict[str, Any] = {"BLOOM_RECRAWL_RULES": [("/list", "1 day")]}
    done = recrawl(URL, "https://example.com/list", **settings)
    assert (done.code, done.out) == (1, "")
    assert "there is no filter 'shop:bloom:1-day'" in done.err
    assert not claims(client)
    BloomFilter(client, f"{KEY}:1-day", window="1 day").open()
    done = recrawl(URL, "https://example.com/list", "--json", **settings)
    assert [one["name"] for one in done.json["urls"]] == ["default", "1-day"]


def test_a_url_of_the_window_run_is_refused(recrawl: Call, bloom: BloomFilter) -> None:
    done = recrawl(URL, BLOOM_RECRAWL_RULES=[("/a", "run")])
    assert (done.code, done.out) == (1, "")
    assert f"{URL!r} has the window 'run' by BLOOM_RECRAWL_RULES" in done.err
