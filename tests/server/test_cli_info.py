"""``scrapy bloom info`` and ``check``: what they say of filters and URLs."""

from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime

import pytest
from redis import Redis
from scrapy import Request, Spider
from scrapy.utils.request import RequestFingerprinter
from support.cli import KEY, URLS, Call, claim, fail, fingerprints, give, unchanged
from support.clock import MovedServer
from support.polling import PATIENCE
from support.servers import Server

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.schedule import Schedule
from scrapy_bloom.bloom.protocol.notes import note_crawl
from scrapy_bloom.cli.stored import StoredFilter

DAY = {"1-day": Schedule.of("1 day")}
RULES = {"BLOOM_RECRAWL_RULES": [["/1$", "1 day"], ["/2$", "run"]]}


def test_generations_and_windows(call: Call, moved: MovedServer) -> None:
    """In January, February and March of 2027: what is remembered of each, and until when."""
    settings = {"BLOOM_RECRAWL_AFTER": "3 months", **RULES, "BLOOM_TIMEOUT": PATIENCE}
    settings |= {"BLOOM_REDIS_URL": moved.url, "BLOOM_KEY": "k"}
    with moved.client() as client:
        for month in (1, 2, 3, 4):
            moved.set_time(datetime(2027, month, 20, tzinfo=UTC))
            bloom = BloomFilter(client, "k", window="3 months", windows=DAY, blocks=3)
            bloom.extend(fingerprints(URLS[5 * month - 5 : 5 * month]))
        bloom.run(bloom.session.add([("1-day", item) for item in fingerprints(URLS[1:2])]))
        with unchanged(client):
            done, text = call("info", "--json", **settings), call("info", **settings)
            checked = call("check", URLS[0], URLS[1], URLS[2], *URLS[5:7], **settings)
        info = bloom.info()
    total, *months, day = done.json["rows"]
    assert [(row["generation"], row["urls"], row["forgotten"]) for row in (total, *months)] == [
        ("all", 15, ""),
        ("2027-04-01 00:00", 5, "2027-07-01 00:00"),
        ("2027-03-01 00:00", 5, "2027-06-01 00:00"),
        ("2027-02-01 00:00", 5, "2027-05-01 00:00"),
    ]
    assert (day["window"], day["urls"], day["forgotten"]) == ("1-day", 1, "2027-04-21 00:00")
    assert total["error_rate"] == info.windows["default"].error_rate
    assert total["memory"] == sum(row["memory"] for row in months)
    heading, first, *_ = text.out.splitlines()
    assert heading.split()[:5] == ["window", "generation", "urls", "fill", "error"]
    assert first.split()[:3] == ["default", "all", "15"]
    assert "MiB" in first
    assert checked.code == 1
    rows = [line.split() for line in checked.out.splitlines()[1:6]]
    assert [row[0] for row in rows] == ["not", "remembered", "crawled", "remembered", "remembered"]
    assert rows[1][1:5] == ["2027-04-20", "00:00", "2027-04-21", "00:00"]
    assert rows[3][1:5] == ["2027-02-01", "00:00", "2027-05-01", "00:00"]


def test_pending_and_failed_requests_are_counted(shop: Call, bloom: BloomFilter) -> None:
    """Those of all spiders."""
    claim(bloom, URLS[:3])
    fail(bloom, URLS[3:5])
    bloom.run(note_crawl(bloom.session, "zoo"))
    (head,) = shop("info", "--json").json["filters"]
    assert (head["filter"], head["pending"], head["failed"]) == (KEY, 5, 2)
    assert shop("info").out.endswith(": 5 pending requests, 2 of them failed\n")


def test_all_filters_of_the_server(shop: Call, bloom: BloomFilter, client: Redis) -> None:
    """With the windows of their last crawls; those that can't be read are told, and left out."""
    other = BloomFilter(client, "other:0", window="2 months")
    other.run(note_crawl(other.session, "spider"))
    other.add("x")
    BloomFilter(client, "library", window="2 months").add("x")
    client.hset("{broken:0}:ring", "spec", "nonsense")
    client.hset("{newer:0}:ring", "spec", '{"format": 99}')
    done = shop("info", "--all", "--json")
    assert [one["filter"] for one in done.json["filters"]] == ["library", "other:0", KEY]
    of_library, first, second = done.json["rows"]
    assert (first["urls"], second["urls"], second["forgotten"]) == (1, 0, "never")
    assert of_library["forgotten"] == first["forgotten"] != "never"
    assert "'{broken:0}:ring' can't be used" in done.err
    assert "'newer' can't be read, because another version" in done.err
    assert done.err.count("choose another BLOOM_KEY\n") == 2
    heading, *_ = shop("info", "--all").out.splitlines()
    assert heading.split()[0] == "filter"


def test_two_filters_of_one_name_are_on_two_servers(
    call: Call, client: Redis, server: Server, any_binary: str
) -> None:
    with Server(any_binary) as other:
        own = {
            name: {"name": name, "custom_settings": {"BLOOM_REDIS_URL": url}}
            for name, url in (("first", server.url), ("second", other.url))
        }
        for url in (server.url, other.url):
            with closing(BloomFilter(url, KEY)) as bloom:
                bloom.open()
        spiders = tuple(type(name, (Spider,), fields) for name, fields in own.items())
        done = call("info", "--json", spiders=spiders, BLOOM_KEY=KEY)
    assert len({one["address"] for one in done.json["filters"]}) == 2


# -- check --


def test_states_of_urls(shop: Call, bloom: BloomFilter, client: Redis) -> None:
    claim(bloom, [URLS[1], URLS[6]])
    bloom.extend(fingerprints([URLS[0], URLS[4], URLS[6]]))
    fail(bloom, URLS[3:4])
    assert shop("recrawl", URLS[4]).code == 0
    with unchanged(client):
        done = shop("check", *URLS[:7], "--json", **RULES)
    assert (done.code, done.json["remembered"]) == (1, 3)
    rows = done.json["rows"]
    assert [row["url"] for row in rows] == URLS[:7]
    assert [(row["state"], row["window"]) for row in rows] == [
        ("remembered", "default"),
        ("pending", "1-day"),
        ("crawled by each run", "run"),
        ("failed", "default"),
        ("will be crawled", "default"),
        ("not remembered", "default"),
        ("pending", "default"),
    ]
    assert rows[0]["until"] == "never"
    assert [row["reason"] for row in rows] == [*[None] * 3, "HTTP-503", *[None] * 3]
    assert rows[3]["next_try"] > rows[4]["next_try"]
    assert shop("check", URLS[0], URLS[4]).code == 0


def test_a_post_is_found_by_its_method_and_body(shop: Call, bloom: BloomFilter) -> None:
    bloom.add(RequestFingerprinter().fingerprint(Request(URLS[0], method="POST", body="q=1")))
    for options, code in (("", 1), ("--method POST", 1), ("--method post --body q=1", 0)):
        assert shop("check", URLS[0], *options.split()).code == code


def test_a_url_is_remembered_by_its_newest_generation(call: Call, moved: MovedServer) -> None:
    """A run with a shorter window has crawled it again."""
    settings = {"BLOOM_REDIS_URL": moved.url, "BLOOM_KEY": "k", "BLOOM_TIMEOUT": PATIENCE}
    settings |= {"BLOOM_RECRAWL_AFTER": "4 days", "BLOOM_ROTATE_EVERY": "1 day"}
    with moved.client() as client:
        for day, window in ((20, "4 days"), (22, "1 day")):
            moved.set_time(datetime(2027, 1, day, tzinfo=UTC))
            bloom = BloomFilter(client, "k", window=window, period="1 day", blocks=1)
            assert bloom.extend(fingerprints(URLS[:1])) == 1
    (row,) = call("check", URLS[0], "--json", **settings).json["rows"]
    assert (row["since"], row["until"]) == ("2027-01-22 00:00", "2027-01-26 00:00")


def test_urls_are_found_while_the_filter_grows(client: Redis) -> None:
    bloom, items = BloomFilter(client, KEY, blocks=1, capacity=50), fingerprints(URLS)
    bloom.extend(items)
    stored = StoredFilter(client, KEY, "", {})
    bloom.extend(str(number) for number in range(100))
    keys = [("default", item) for item in items]
    assert stored.remembered(keys).keys() == {*keys}


class Starting(Spider):
    name = "shop"
    start_urls = [*URLS[:1], "nonsense"]  # noqa: RUF012 - as people write it
    sitemap_urls = URLS[1:2]


class Listing(Starting):
    async def start(self) -> AsyncIterator[Request]:
        yield Request(URLS[0])


def test_start_urls_are_crawled_by_each_run(shop: Call, bloom: BloomFilter) -> None:
    """Unless the spider requests them by a method of its own, where a rule may count."""
    bloom.extend(fingerprints(URLS[:1]))

    def states(spider: type[Spider]) -> list[str]:
        done = shop("check", *URLS[:3], "--json", spiders=(spider,))
        return [row["state"] for row in done.json["rows"]]

    assert states(Starting) == ["crawled by each run", "crawled by each run", "not remembered"]
    assert states(Listing) == ["remembered", "not remembered", "not remembered"]


def test_urls_are_read_from_stdin(
    shop: Call, bloom: BloomFilter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of them; each counts once, however it's written."""
    urls = [f"https://example.com/{place}" for place in range(3_000)]
    bloom.extend(fingerprints(urls))
    lines = "\n\n".join([*urls, f" {urls[0]}\r", "https://example.com/new"])
    give(monkeypatch, f"\ufeff{lines}".encode())
    done = shop("check", "-", "--json")
    assert [row["url"] for row in done.json["rows"]] == [*urls, "https://example.com/new"]
    assert (done.code, done.json["remembered"]) == (1, 3_000)
    give(monkeypatch, f"{urls[0]}\nhttps://[\n".encode())
    shop("check", "-").refused("'https://[' isn't the URL of a page")
