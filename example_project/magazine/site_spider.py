"""What the spiders of the magazine have in common."""

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.http import TextResponse
from scrapy.linkextractors import LinkExtractor

from magazine.items import Story

#: Listings end with a slash (`/hiking/?page=2`), save for the archive and the calendar.
LISTING = r"^https?://[^/]+(/(?:[^?#]*/)?|/archive|/calendar)(?:[?#]|$)"


class SiteSpider(Spider):
    """Reads stories, and follows every link to find them."""

    site_url: str
    allowed_domains: list[str | None]
    links = LinkExtractor()
    #: A listing is remembered for this run only, as it is where the next one finds new stories.
    listing_meta: Mapping[str, str] = {"bloom_recrawl_after": "run"}

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> "SiteSpider":
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.site_url = crawler.settings["SITE_URL"].rstrip("/")
        spider.allowed_domains = [urlsplit(spider.site_url).hostname]
        return spider

    def parse(self, response: TextResponse) -> Iterator[Request | Story]:
        """A page: the story, if it is one, and a request for each of its links."""
        if is_listing(response.url):
            self.crawler.stats.inc_value("pages/listings")
        else:
            self.crawler.stats.inc_value("pages/stories")
            yield Story.from_response(response)
        for link in self.links.extract_links(response):
            yield self.follow(link.url)

    def follow(self, url: str) -> Request:
        """The request for a link. Duplicates are the dupefilter's business, not the spider's."""
        meta = dict(self.listing_meta) if is_listing(url) else {}
        return Request(url, callback=self.parse, meta=meta)


def is_listing(url: str) -> bool:
    """Whether a page lists stories: whether it changes when a story is published."""
    return re.match(LISTING, url) is not None
