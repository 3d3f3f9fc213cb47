"""The example project: its site tells the truth, and crawls of it fetch what they should."""

import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from example_site.build import Site
from example_site.serve import SiteServer
from support.crawling import PLAIN_SCRAPY, crawl, options, run_scrapy
from support.nursery import shared_nursery
from support.polling import until


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A magazine that is large enough to have all kinds of pages."""
    return Site.build(tmp_path / "site", count=104)


# -- the project, with Scrapy's own filter --


def test_truth_is_what_scrapy_fetches(site: Site, web: SiteServer, tmp_path: Path) -> None:
    """A crawl without scrapy-bloom fetches each URL of the truth once, and nothing else."""
    truth = site.truth()
    stats = crawl("links", web, tmp_path, **PLAIN_SCRAPY)
    assert web.hits() == Counter(truth.crawl())
    assert stats["item_scraped_count"] == stats["pages/stories"] == len(truth.stories)
    assert stats["pages/listings"] == len(truth.hubs)
    assert stats["robotstxt/forbidden"] == len(truth.forbidden)
    assert stats["offsite/filtered"] == len(truth.stories)  # one link on each
    links = stats["dupefilter/filtered"] + stats["scheduler/enqueued"]
    assert stats["dupefilter/filtered"] / links > 0.96


# -- the project, with scrapy-bloom --


def test_second_sitemap_crawl_fetches_sitemaps_and_new_stories(
    site: Site, web: SiteServer, redis_url: str, tmp_path: Path
) -> None:
    """Sitemaps are looked at in each run, although a lasting filter remembers the stories."""
    known = site.truth()
    crawl("sitemap", web, tmp_path, BLOOM_REDIS_URL=redis_url)
    first = web.hits()
    assert first == Counter(known.stories | known.sitemaps | {"/robots.txt"})

    truth = site.publish(3).truth()
    crawl("sitemap", web, tmp_path, BLOOM_REDIS_URL=redis_url)
    new = truth.stories - known.stories
    assert web.hits() - first == Counter(new | truth.sitemaps | {"/robots.txt"})


#: What Scrapy reads outside of the project's directory, where the files of a crawl belong.
ELSEWHERE = {"SCRAPY_SETTINGS_MODULE": "magazine.settings"}


def written(directory: Path) -> Counter[str]:
    """Count the stories in all files of items, by path."""
    lines = [
        line for path in directory.glob("items/*.jsonl") for line in path.read_text().splitlines()
    ]
    return Counter(urlsplit(json.loads(line)["url"]).path for line in lines)


def test_nightly_crawls_write_what_is_new(
    site: Site, web: SiteServer, redis_url: str, tmp_path: Path
) -> None:
    """Each night's files have what is new; the second night reads the listings and that."""
    known = site.truth()
    command = ("crawl", "nightly", *options(web, {"BLOOM_REDIS_URL": redis_url}))
    run_scrapy(*command, directory=tmp_path, **ELSEWHERE)
    first, items = web.hits(), written(tmp_path)
    assert items == Counter(known.stories)
    assert len([*tmp_path.glob("items/*.jsonl")]) == 2  # 100 items a file

    truth = site.publish(3).truth()
    run_scrapy(*command, directory=tmp_path, **ELSEWHERE)
    assert written(tmp_path) - items == Counter(truth.stories - known.stories)
    assert web.hits() - first == Counter(truth.crawl(known))


def test_a_killed_bulk_crawl_loses_no_story(
    site: Site, web: SiteServer, redis_url: str, tmp_path: Path
) -> None:
    """It dies before its first transaction; all its stories are in those of the next run."""
    command = ("crawl", "bulk", *options(web, {"BLOOM_REDIS_URL": redis_url}))
    log = tmp_path / "log"
    pid = shared_nursery().start([*command], log, tmp_path, environment=ELSEWHERE)
    until(lambda: web.hits().total() > 60, "it has begun")
    shared_nursery().kill(pid)
    run_scrapy(*command, directory=tmp_path, **ELSEWHERE)
    with closing(sqlite3.connect(tmp_path / "stories.db")) as database:
        rows = database.execute("SELECT url FROM stories").fetchall()
    assert Counter(urlsplit(url).path for (url,) in rows) == Counter(site.truth().stories)
