"""Real crawls: with scrapy-redis, with bad settings, of several spiders in one process."""

import re
from collections import Counter
from pathlib import Path

import pytest
import redis
from example_site.build import Site
from example_site.serve import SiteServer
from scrapy import version_info
from support.crawling import (
    options,
    run,
    run_scrapy,
    run_together,
    taken_over,
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


@pytest.mark.parametrize("persist", [pytest.param(True, marks=pytest.mark.slow), False])
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
        assert not expected - fetched
        assert (fetched - expected).total() <= sum(map(taken_over, logs))
        bloom = BloomFilter(client, "once:bloom")
        assert len(bloom) >= len(truth.lasting | truth.hubs)
        for log in logs:
            assert "ERROR" not in log
            warnings = [line for line in log.splitlines() if "Warning: " in line]
            assert not [line for line in warnings if "scrapy_bloom" in line]
            assert ("at the end of a worker is ignored" in log) is not persist


# -- bad input: an error before any request is lost --


def test_a_bad_setting_stops_the_crawl_before_it_fetches(web: SiteServer, redis_url: str) -> None:
    """What else is bad is in unit/test_settings.py."""
    refused(
        *(web, "BLOOM_CAPACITY is the number of URLs to remember", "configuration"),
        BLOOM_REDIS_URL=redis_url,
        BLOOM_CAPACITY="many",
    )


def test_a_server_that_cannot_be_used_stops_the_crawl_before_it_fetches(
    web: SiteServer, any_binary: str
) -> None:
    with Server(any_binary, "--requirepass", "s3cret") as server:
        url = f"redis://:wr0ng@127.0.0.1:{server.port}"
        message = "refuses the user name or the password"
        assert "wr0ng" not in refused(web, message, "storage", BLOOM_REDIS_URL=url)


def test_a_filter_that_differs_stops_the_crawl_before_it_fetches(
    web: SiteServer, redis_url: str
) -> None:
    with redis.Redis.from_url(redis_url) as client:
        BloomFilter(client, "links:bloom").open()
    refused(web, "BLOOM_BLOCKS", "mismatch", BLOOM_REDIS_URL=redis_url, BLOOM_BLOCKS="3")


def refused(web: SiteServer, message: str, code: str, **settings: str) -> str:
    """Crawl, expecting an error in one line with this message, the last one; return the log."""
    done = run_scrapy("crawl", "links", *options(web, settings))
    last = done.stderr.strip().splitlines()[-1]
    assert message in last, done.stderr
    assert "[scrapy_bloom.dupefilter] " in last
    assert last.endswith(f" [bloom-{code}]")
    assert "exception was the direct cause" not in done.stderr
    assert "During handling of the above" not in done.stderr
    assert not web.hits(), "requests were lost"
    # Scrapy 2.13 ends with exit code 0 whatever goes wrong while a spider opens.
    assert done.returncode != 0 or version_info < (2, 14)
    return done.stderr


def test_other_errors_of_scrapy_keep_their_tracebacks(web: SiteServer, redis_url: str) -> None:
    settings = {"BLOOM_REDIS_URL": redis_url, "DOWNLOADER": "nowhere.Nothing"}
    done = run_scrapy("crawl", "links", *options(web, settings))
    assert "Traceback" in done.stderr
    assert "No module named 'nowhere'" in done.stderr


# -- several spiders --

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
