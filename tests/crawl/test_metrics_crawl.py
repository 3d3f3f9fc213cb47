"""Crawls that serve their stats, scraped while they run (``BLOOM_METRICS_PORT``)."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from example_site.serve import SiteServer
from support.crawling import crawl_and_act, run
from support.prometheus import fetch, parse
from support.servers import Server

SPIDER = (("spider", "links"),)
PAGE = re.compile(r"INFO: Bloom filter: metrics at (http://\S+)")


@pytest.fixture
def settings(server: Server, client: redis.Redis) -> dict[str, str]:
    return {"BLOOM_REDIS_URL": server.url, "BLOOM_METRICS_PORT": "0"}


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that something listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def page_of(log: Path) -> str:
    match = PAGE.search(log.read_text())
    assert match is not None, log.read_text()
    return match[1]


def test_a_crawl_is_scraped_while_it_runs(
    web: SiteServer, settings: dict[str, str], tmp_path: Path
) -> None:
    texts: list[str] = []

    def scrape() -> None:
        texts.append(fetch(page_of(tmp_path / "log")))

    stats = crawl_and_act(web, tmp_path, {20: scrape, 60: scrape}, **settings)
    first, second = map(parse, texts)
    for name in ("new", "seen", "crawled"):
        metric = f"scrapy_bloom_{name}_total", SPIDER
        # Which page comes when is up to the crawl: the first pages may have only new links.
        assert first[metric] < second[metric] <= stats[f"bloom/{name}"], name
    assert first["scrapy_bloom_new_total", SPIDER] > 0
    assert first["scrapy_bloom_outages_total", SPIDER] == 0
    assert first["scrapy_bloom_generations", SPIDER] == 1
    round_trips = "scrapy_bloom_round_trips", SPIDER
    assert 0 < first[round_trips] < second[round_trips]
    log = (tmp_path / "log").read_text()
    assert page_of(tmp_path / "log").startswith("http://127.0.0.1:")
    assert log.count("WARNING: Bloom filter: no metrics") == 0


def test_a_port_in_use_is_one_warning_and_the_crawl_goes_on(
    web: SiteServer, settings: dict[str, str], tmp_path: Path, taken: int
) -> None:
    settings["BLOOM_METRICS_PORT"] = str(taken)
    stats = crawl_and_act(web, tmp_path, {}, **settings)
    log = (tmp_path / "log").read_text()
    warnings = [
        line for line in log.splitlines() if "BLOOM_METRICS_PORT" in line and "WARN" in line
    ]
    assert len(warnings) == 1
    assert f"BLOOM_METRICS_PORT = 127.0.0.1:{taken} cannot be used" in warnings[0]
    assert "Address already in use" in warnings[0]
    assert "or 0 for any free one" in warnings[0]
    assert stats["finish_reason"] == "finished"
    assert stats["bloom/crawled"] > 20


#: Two crawls on one port, one after the other; prints whether it is open in each, and afterwards.
TWICE = """
import socket
import sys
from magazine.spiders.links import LinksSpider
from scrapy import signals
from scrapy.crawler import CrawlerRunner
from scrapy.utils.project import get_project_settings
from scrapy.utils.reactor import install_reactor

settings = get_project_settings()
settings.setdict(dict(pair.split("=", 1) for pair in sys.argv[1:]), "cmdline")
install_reactor(settings["TWISTED_REACTOR"])
from twisted.internet import defer, reactor, task

port = int(settings["BLOOM_METRICS_PORT"])


def is_open():
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@defer.inlineCallbacks
def crawl_twice():
    runner = CrawlerRunner(settings)
    for _ in range(2):
        crawler = runner.create_crawler(LinksSpider)
        crawler.signals.connect(opened, signals.spider_opened)
        yield runner.crawl(crawler)
        print(is_open(), flush=True)


def opened():
    print(is_open(), flush=True)


crawl_twice().addBoth(lambda _: reactor.stop())
reactor.run()
"""


def test_the_port_is_open_for_one_crawl_and_then_for_the_next(
    web: SiteServer, settings: dict[str, str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings["BLOOM_METRICS_PORT"] = str(listener.getsockname()[1])
    pairs = [f"{name}={value}" for name, value in {**settings, "SITE_URL": web.url}.items()]
    done = run("-X", "dev", "-c", TWICE, *pairs)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "False"] * 2, done.stderr
    assert "cannot be used" not in done.stderr
