"""Crawls that serve their stats, scraped while they run (``BLOOM_METRICS_PORT``)."""

import re
import socket
from pathlib import Path

import pytest
import redis
from example_site.serve import SiteServer
from scrapy import Request
from support.crawling import crawl_and_act
from support.dupefilters import Make
from support.prometheus import fetch, parse
from support.servers import Server

SPIDER = (("spider", "links"),)
PAGE = re.compile(r"INFO: Bloom filter: metrics at (http://\S+)")


def page_of(log: Path) -> str:
    match = PAGE.search(log.read_text())
    assert match is not None, log.read_text()
    return match[1]


def test_a_crawl_is_scraped_while_it_runs(
    web: SiteServer, server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    settings = {"BLOOM_REDIS_URL": server.url, "BLOOM_METRICS_PORT": "0"}
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


def test_the_port_is_open_for_one_crawl_and_then_for_the_next(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Where it is in use, there is one warning, and the crawl goes on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert not make(BLOOM_METRICS_PORT=port).request_seen(Request("https://example.com/"))
    (warning,) = [text for text in caplog.messages if "BLOOM_METRICS_PORT" in text]
    assert f"BLOOM_METRICS_PORT = 127.0.0.1:{port} cannot be used" in warning
    assert "Address already in use" in warning
    caplog.clear()
    for _ in range(2):
        dupefilter = make(BLOOM_METRICS_PORT=port)
        assert is_open(port)
        dupefilter.close("finished")
        assert not is_open(port)
    assert "cannot be used" not in caplog.text


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
