"""Real crawls: under both schedulers, with bad settings, in developer commands."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import redis
from example_site.build import Site
from example_site.serve import SiteServer
from scrapy import version_info
from support.crawling import (
    PLAIN_SCRAPY,
    crawl,
    options,
    run,
    run_scrapy,
    run_together,
)
from support.servers import Server

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.client.embedded import is_free

#: Like the magazine's queue spider, but every page has the lasting window.
ONCE_SPIDER = """
from magazine.queue_spider import QueueSpider
from scrapy import Request

class OnceSpider(QueueSpider):
    name = "once"

    def follow(self, url):
        return Request(url, callback=self.parse)
"""


@pytest.mark.parametrize("persist", [True, False])
def test_two_processes_under_scrapy_redis_fetch_every_page_once_in_total(
    site: Site, web: SiteServer, redis_url: str, tmp_path: Path, persist: bool
) -> None:
    """Nothing is wiped at close, also where scrapy-redis flushes, and no warning is ours."""
    spider = tmp_path / "once.py"
    spider.write_text(ONCE_SPIDER)
    with redis.Redis.from_url(redis_url) as client:
        client.rpush("once:start_urls", f'{{"url": "{web.url}/"}}')
        settings = {
            "MAX_IDLE_TIME_BEFORE_CLOSE": 2,
            "SCHEDULER_PERSIST": persist,
            "BLOOM_RECRAWL_RULES": "[]",  # an hour could end while they run
        }
        command = ["-W", "always", "-m", "scrapy", "runspider", str(spider)]
        logs = run_together(
            2,
            [*command, *options(web, settings)],
            tmp_path,
            SCRAPY_PROJECT="distributed",
            REDIS_URL=redis_url,
        )
        truth = site.truth()
        # The start request carries dont_filter: it is not recorded, and linked from other pages.
        expected = Counter(truth.crawl() - {"/robots.txt"}) + Counter(["/"])
        fetched = web.hits()
        del fetched["/robots.txt"]  # each worker reads it
        # Of the requests that wait for it, Scrapy 2.19 checks the first only, and lets others pass.
        for path in truth.forbidden:
            assert fetched.pop(path, 0) <= 1
        assert fetched == expected
        bloom = BloomFilter(client, "once:bloom")
        assert len(bloom) >= len(truth.lasting | truth.hubs)
        for log in logs:
            assert "ERROR" not in log
            warnings = [line for line in log.splitlines() if "Warning: " in line]
            assert not [line for line in warnings if "scrapy_bloom" in line]
            assert ("at the end of a worker is ignored" in log) is not persist


@pytest.mark.parametrize(
    "settings",
    [
        {"TWISTED_REACTOR": "twisted.internet.selectreactor.SelectReactor"},
        {"TWISTED_REACTOR_ENABLED": "False"},  # from Scrapy 2.19 on; older ones do not know it
    ],
)
def test_a_crawl_without_the_asyncio_reactor_settles_all_its_claims(
    site: Site, web: SiteServer, redis_url: str, tmp_path: Path, settings: dict[str, str]
) -> None:
    crawl("links", web, tmp_path, BLOOM_REDIS_URL=redis_url, **settings)
    assert web.hits() == Counter(site.truth().crawl())
    with redis.Redis.from_url(redis_url) as client:
        bloom = BloomFilter(client, "links:bloom")
        assert len(bloom) == len(site.truth().lasting)
        assert bloom.info().claims == 0
        assert not client.keys("*:heartbeats")


def test_a_plain_crawl_under_scrapys_scheduler_drops_every_duplicate(
    site: Site, web: SiteServer, redis_url: str, tmp_path: Path
) -> None:
    settings = {"BLOOM_BATCH": 0, "BLOOM_CACHE_SIZE": 0}
    stats = crawl("links", web, tmp_path, BLOOM_REDIS_URL=redis_url, **settings)
    assert web.hits() == Counter(site.truth().crawl())
    dropped = stats["bloom/seen"] + stats["bloom/run/seen"]
    assert stats["dupefilter/filtered"] == dropped
    assert stats["scheduler/enqueued"] >= stats["bloom/new"] + stats["bloom/run/new"]
    lookups = stats["bloom/new"] + stats["bloom/seen"]
    assert lookups <= stats["bloom/round_trips"] <= lookups + 100


@pytest.mark.parametrize(
    "reactor",
    [
        "twisted.internet.selectreactor.SelectReactor",
        "twisted.internet.asyncioreactor.AsyncioSelectorReactor",
    ],
)
def test_any_reactor_will_do(
    site: Site, web: SiteServer, redis_url: str, tmp_path: Path, reactor: str
) -> None:
    crawl("links", web, tmp_path, BLOOM_REDIS_URL=redis_url, TWISTED_REACTOR=reactor)
    assert web.hits() == Counter(site.truth().crawl())


#: Gives every page a key of its own, also those that have moved.
KEY_SPIDER = """
from magazine.site_spider import SiteSpider
from scrapy import Request

class KeySpider(SiteSpider):
    name = "keys"

    async def start(self):
        for path in self.settings["PATHS"].split(","):
            yield Request(
                self.site_url + path, meta={"bloom_key": path, "is_start_request": False}
            )

    def parse(self, response):
        yield {"title": response.url}
"""


def test_pages_behind_a_redirect_are_fetched_although_meta_is_copied(
    site: Site, web: SiteServer, redis_url: str, tmp_path: Path
) -> None:
    spider = tmp_path / "keys.py"
    spider.write_text(KEY_SPIDER)
    redirects = site.truth().redirects
    settings = {"PATHS": ",".join(redirects), "BLOOM_REDIS_URL": redis_url}
    for expected in (Counter([*redirects, *redirects.values()]), Counter()):
        before = web.hits()
        done = scrapy(web, "runspider", str(spider), **settings)
        assert "ERROR" not in done.stderr
        fetched = web.hits() - before
        del fetched["/robots.txt"]
        assert fetched == expected


def test_the_log_at_info_is_a_handful_of_lines(
    web: SiteServer, redis_url: str, tmp_path: Path
) -> None:
    done = scrapy(web, "crawl", "links", BLOOM_REDIS_URL=redis_url)
    ours = [line for line in done.stderr.splitlines() if "[scrapy_bloom" in line]
    assert len(ours) == 2, "\n".join(ours)
    assert "remembers 0 URLs" in ours[0]
    assert " new, " in ours[1]


def test_an_embedded_crawl_leaves_nothing_running(
    site: Site, web: SiteServer, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    for expected in (Counter(site.truth().crawl()), Counter(site.truth().crawl(site.truth()))):
        before = web.hits()
        crawl("links", web, tmp_path, BLOOM_REDIS_URL=f"embedded:{data}")
        assert web.hits() - before == expected
        assert is_free(data / "server.lock"), "the server still runs"


# -- bad input: an error before any request is lost --


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("BLOOM_CAPACITY", "0"),
        ("BLOOM_CAPACITY", "-1"),
        ("BLOOM_CAPACITY", "many"),
        ("BLOOM_ERROR_RATE", "0"),
        ("BLOOM_ERROR_RATE", "1"),
        ("BLOOM_ERROR_RATE", "2"),
        ("BLOOM_BLOCKS", "0"),
        ("BLOOM_SEEDS", "[]"),
        ("BLOOM_SEEDS", "[7, 7]"),
        ("BLOOM_KEY", "{x}"),
        ("BLOOM_ENABLED", "garbage"),
        ("BLOOM_TIMEOUT", "garbage"),
        ("BLOOM_START_RECRAWL_AFTER", "garbage"),
        ("BLOOM_RECRAWL_AFTER", "garbage"),
        ("BLOOM_RECRAWL_AFTER", "1 run"),  # without BLOOM_RUN
        ("BLOOM_ROTATE_EVERY", "1 month"),  # without a window
        ("BLOOM_RECRAWL_RULES", '[["/page/", "nowhere"]]'),
        ("BLOOM_RECRAWL_RULES", '[["/page/", "2 runs"]]'),  # without BLOOM_RUN
        ("BLOOM_WINDOWS", "{}"),
        ("BLOOM_MAX_MEMORY", "1000"),
        ("BLOOM_REDIS_URL", "garbage"),
        ("BLOOM_REDIS_PARAMS", "garbage"),
        ("BLOOM_GARBAGE", "garbage"),
    ],
)
def test_a_bad_setting_stops_the_crawl_before_it_fetches(
    web: SiteServer, redis_url: str, setting: str, value: str
) -> None:
    refused(web, setting, **{"BLOOM_REDIS_URL": redis_url, setting: value})


def test_settings_that_contradict_each_other_are_refused(web: SiteServer, redis_url: str) -> None:
    contradictions = [
        {"BLOOM_REDIS_PARAMS": '{"socket_timeout": 30}'},
        {"BLOOM_REDIS_URL": f"{redis_url}?socket_timeout=30"},
    ]
    for settings in contradictions:
        refused(web, "BLOOM_TIMEOUT", **{"BLOOM_REDIS_URL": redis_url, **settings})
    refused(web, "512 MiB", BLOOM_REDIS_URL=redis_url, BLOOM_CAPACITY="1e9", BLOOM_BLOCKS="1")
    window = {"BLOOM_RECRAWL_AFTER": "5 months", "BLOOM_ROTATE_EVERY": "2 months"}
    refused(web, 'set BLOOM_ROTATE_EVERY to "1 month"', BLOOM_REDIS_URL=redis_url, **window)


def test_a_server_that_cannot_be_used_stops_the_crawl_before_it_fetches(
    web: SiteServer, any_binary: str
) -> None:
    refused(web, "is not there: start a server", BLOOM_REDIS_URL="redis://127.0.0.1:1")
    with Server(any_binary, "--requirepass", "s3cret") as server:
        url = f"redis://:wr0ng@127.0.0.1:{server.port}"
        log = refused(web, "refuses the user name or the password", BLOOM_REDIS_URL=url)
        assert "wr0ng" not in log
        refused(web, "requires a password", BLOOM_REDIS_URL=server.url)


def test_a_replica_or_a_foreign_key_stops_the_crawl_before_it_fetches(
    web: SiteServer, redis_url: str
) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.set("{links:bloom:0}:header", "mine")
        refused(web, "{links:bloom:0}:header' holds a string", BLOOM_REDIS_URL=redis_url)
        assert client.get("{links:bloom:0}:header") == b"mine"
        client.delete("{links:bloom:0}:header")
        BloomFilter(client, "links:bloom").open()
        for setting, value in (("BLOCKS", "3"), ("STAGGER", "True")):
            asked = {f"BLOOM_{setting}": value}
            refused(web, f"BLOOM_{setting}", BLOOM_REDIS_URL=redis_url, **asked)
        client.replicaof("127.0.0.1", "1")
        refused(web, "read-only replica", BLOOM_REDIS_URL=redis_url)


def test_bad_settings_are_refused_under_scrapy_redis_too(web: SiteServer, redis_url: str) -> None:
    refused(
        web,
        "BLOOM_CAPACITY",
        spider="queue",
        environment={"SCRAPY_PROJECT": "distributed", "REDIS_URL": redis_url},
        BLOOM_CAPACITY="0",
    )


# -- developer commands do no harm --


def test_scrapy_parse_filters_as_scrapy_alone_and_records_nothing(
    site: Site, web: SiteServer, redis_url: str
) -> None:
    """What an earlier command has parsed, it parses again."""
    story = f"{web.url}{min(site.truth().stories)}"
    arguments = ("parse", "--spider", "links", "-d", "2", story)
    scrapy(web, *arguments, **PLAIN_SCRAPY)
    plain = web.hits()
    assert max(plain.values()) == 1
    for times in (2, 3):
        done = scrapy(web, *arguments, BLOOM_REDIS_URL=redis_url)
        assert "'title'" in done.stdout
        assert "Bloom filter off (developer command): nothing is read or written" in done.stderr
        assert web.hits() == Counter(dict.fromkeys(plain, times))
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0


@pytest.mark.parametrize("line", [{}, {"DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter"}])
def test_scrapy_shell_neither_filters_nor_records(
    web: SiteServer, redis_url: str, line: dict[str, str]
) -> None:
    code = "[fetch(scrapy.Request(response.url)), response.status]"
    done = scrapy(web, "shell", f"{web.url}/", "-c", code, BLOOM_REDIS_URL=redis_url, **line)
    assert "[None, 200]" in done.stdout
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0


def scrapy(web: SiteServer, *arguments: str, **settings: Any) -> Any:
    return run_scrapy(*arguments, *options(web, settings))


def refused(
    web: SiteServer,
    message: str,
    spider: str = "links",
    environment: dict[str, str] | None = None,
    **settings: str,
) -> str:
    """Crawl, expecting an error with this message; return the log."""
    command = ("crawl", spider, *options(web, settings))
    done = run_scrapy(*command, **(environment or {}))
    assert message in done.stderr.strip().splitlines()[-1], done.stderr
    assert not web.hits(), "requests were lost"
    # Scrapy 2.13 ends with exit code 0 whatever goes wrong while a spider opens.
    assert done.returncode != 0 or version_info < (2, 14)
    return done.stderr


TWO_SPIDERS = """
import sys
from magazine.spiders.links import LinksSpider
from scrapy.crawler import CrawlerProcess
from scrapy.utils.project import get_project_settings

settings = get_project_settings()
settings.setdict(dict(pair.split("=", 1) for pair in sys.argv[1:]), "cmdline")
process = CrawlerProcess(settings)
for name in ("first", "second"):
    process.crawl(type("Named", (LinksSpider,), {"name": name}))
process.start()
"""


def test_spiders_in_one_process_have_filters_of_their_own(
    site: Site, web: SiteServer, tmp_path: Path
) -> None:
    """On one embedded server, which the second of them stops; nothing is left open."""
    data = tmp_path / "data"
    settings = {"SITE_URL": web.url, "BLOOM_REDIS_URL": f"embedded:{data}"}
    pairs = [f"{name}={value}" for name, value in settings.items()]
    done = run("-X", "dev", "-c", TWO_SPIDERS, *pairs)
    assert done.returncode == 0
    assert "ERROR" not in done.stderr
    assert "scrapy_bloom" not in "".join(re.findall(r".*Warning: .*", done.stderr))
    pages = Counter(site.truth().crawl())
    assert web.hits() == pages + pages
    assert is_free(data / "server.lock"), "the server still runs"
