"""``SitemapVersions``: crawls, again and again, of a site with true ``lastmod`` in its sitemaps."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.utils.request import fingerprint
from support.clock import MovedServer
from support.odd_site import Done, Lab, Reply, page, serve

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.fingerprinter import versioned

GROUPS, SIZE = 5, 8
SPIDER = """
from scrapy.http import Response
from scrapy.spiders import SitemapSpider
from scrapy_bloom import SitemapVersions

class NewsSpider(SitemapVersions, SitemapSpider):
    name = "odd"
    custom_settings = {"CONCURRENT_REQUESTS": 3, "CONCURRENT_REQUESTS_PER_DOMAIN": 3}

    @property
    def sitemap_urls(self):
        return [self.settings["SITE_URL"] + "/index.xml"]

    def parse(self, response: Response):
        yield from response.follow_all(css="a")
"""
NAMESPACE = "http://www.sitemaps.org/schemas/sitemap/0.9"


@dataclass
class News:
    """A site whose pages change, with sitemaps that say so.

    Attributes:
        pages: path of a page -> its ``lastmod``.
        sitemaps: path of a sitemap -> its ``lastmod``.
    """

    lab: Lab
    pages: dict[str, str] = field(default_factory=dict)
    sitemaps: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        start = datetime(2026, 1, 1, tzinfo=UTC)
        self._times = ((start + timedelta(minutes=n)).isoformat() for n in count())

    def change(self, *paths: str) -> None:
        """Change pages, or add them, one after the other."""
        for path in paths:
            self.pages[path] = self.sitemaps[self.sitemap_of(path)] = next(self._times)
        self.publish()

    def sitemap_of(self, path: str) -> str:
        return f"/{path.split('-', maxsplit=1)[0].strip('/')}.xml"

    def publish(self) -> None:
        urls = self.lab.site.url
        site: dict[str, Reply | Sequence[Reply]] = {}
        for sitemap in self.sitemaps:
            entries = {p: v for p, v in self.pages.items() if self.sitemap_of(p) == sitemap}
            body = xml("urlset", "url", urls, entries)
            site[sitemap] = Reply(body=body)
            site |= dict.fromkeys(entries, page())
        site["/index.xml"] = Reply(body=xml("sitemapindex", "sitemap", urls, self.sitemaps))
        self.lab.site.pages = site

    def crawl(self, **settings: Any) -> Done:
        done = self.lab.crawl(SPIDER, **settings)
        assert done.hits["/index.xml"] == 1
        assert "] ERROR: " not in done.log, done.log
        return done

    def items(self) -> dict[str, bytes]:
        """Return what filters hold of the newest version of each page."""
        return {
            path: versioned(fingerprint(Request(self.lab.site.url + path)), version.encode())
            for path, version in self.pages.items()
        }

    def missing(self) -> set[str]:
        """Return the pages whose newest versions the filter does not remember now."""
        items = self.items()
        found = BloomFilter(self.lab.client, "odd:bloom").contains(list(items.values()))
        return {path for path, is_there in zip(items, found, strict=True) if not is_there}


def xml(root: str, kind: str, site: str, entries: dict[str, str]) -> bytes:
    """Return a sitemap, or an index, of paths and their ``lastmod``."""
    lines = "".join(
        f"<{kind}><loc>{site}{path}</loc><lastmod>{lastmod}</lastmod></{kind}>\n"
        for path, lastmod in entries.items()
    )
    return f'<?xml version="1.0"?>\n<{root} xmlns="{NAMESPACE}">\n{lines}</{root}>\n'.encode()


@pytest.fixture
def news(moved: MovedServer, tmp_path: Path) -> Iterator[News]:
    """A site, and crawls of it that remember on an empty server."""
    with serve({}) as site, Lab(site, moved.url, tmp_path) as lab:
        news = News(lab)
        news.change(*(f"/s{group}-{number}" for group in range(GROUPS) for number in range(SIZE)))
        yield news


def test_what_has_changed_and_what_is_due_is_fetched_and_nothing_else(
    news: News, moved: MovedServer
) -> None:
    """Sitemaps are remembered for ever, but some of their pages are not."""
    given = {"BLOOM_RECRAWL_RULES": r'[["/s0-", "1 month"]]'}
    every_run = Counter(["/index.xml"])
    assert news.crawl(**given).hits == every_run + Counter([*news.sitemaps, *news.pages])
    assert news.crawl(**given).hits == every_run
    news.change("/s2-3", "/s4-new")
    changed = Counter(["/s2.xml", "/s2-3", "/s4.xml", "/s4-new"])
    assert news.crawl(**given).hits == every_run + changed
    assert not news.missing() - {path for path in news.pages if path.startswith("/s0-")}
    moved.move(31 * 86_400)
    hits = news.crawl(**given).hits
    assert {path for path in hits if "-" in path} == {f"/s0-{n}" for n in range(SIZE)}
    assert max(hits.values()) == 1
    assert news.crawl(**given).hits == every_run


#: Its pages have an item, but for the first of each sitemap.
LISTINGS = f"""{SPIDER}
        if not response.url.endswith("-0"):
            yield {{"url": response.url}}
"""


def test_listings_in_sitemaps_are_read_in_each_run_and_articles_are_not(news: News) -> None:
    """A listing changes, and neither its own ``lastmod`` nor that of its sitemap does."""
    lab, given = news.lab, {"BLOOM_REMEMBER": "items"}
    lab.crawl(LISTINGS, **given)
    lab.site.pages |= {"/s1-0": page("/s1-1", "/article"), "/article": page()}
    each_run = Counter(["/index.xml", *news.sitemaps, *(f"/s{group}-0" for group in range(GROUPS))])
    assert lab.crawl(LISTINGS, **given).hits == each_run + Counter(["/article"])
    news.change("/s2-3")
    assert lab.crawl(LISTINGS, **given).hits == each_run + Counter(["/s2-3"])


def test_a_killed_crawl_loses_no_page_of_a_sitemap(news: News) -> None:
    """A sitemap that counts as read has no page that is neither crawled nor claimed."""
    lab = news.lab
    first = lab.kill_midway(15, SPIDER, BLOOM_HEARTBEAT=1)
    claimed = {
        name.decode() for key in lab.client.scan_iter("*:claims") for name in lab.client.hkeys(key)
    }
    missing, items, bloom = news.missing(), news.items(), BloomFilter(lab.client, "odd:bloom")
    read = set()
    for sitemap, lastmod in news.sitemaps.items():
        item = fingerprint(Request(lab.site.url + sitemap))
        if versioned(item, f"{lastmod} default:0".encode()) in bloom:
            read.add(sitemap)
            mine = {path for path in missing if news.sitemap_of(path) == sitemap}
            assert {field_of(items[path]) for path in mine} <= claimed
    assert read
    second = news.crawl(BLOOM_HEARTBEAT=1).hits
    assert not news.missing()
    assert {*first, *second} >= {*news.pages, *news.sitemaps}
    assert not read & second.keys()
    assert news.crawl(BLOOM_HEARTBEAT=1).hits == {"/index.xml": 1}
