"""Crawl the site from link to link."""

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

from scrapy import Request, Spider
from scrapy.http import TextResponse
from scrapy.linkextractors import LinkExtractor

#: Listings end with a slash. Stories don't.
LISTING = r"/$"


class LinksSpider(Spider):
    """Starts at the home page, follows every link, and reads the stories."""

    name = "links"
    links = LinkExtractor()
    #: A listing is remembered for this run only, because the next one finds new stories there.
    listing_meta = {"bloom_recrawl_after": "run"}

    async def start(self) -> AsyncIterator[Request]:
        """The home page. A start request is remembered for this run only, without being told to."""
        yield Request(self.crawler.settings["SITE_URL"])

    def parse(self, response: TextResponse) -> Iterator[Any]:
        """A page: the story, if it is one, and a request for each of its links."""
        if not re.search(LISTING, response.url):
            yield {"url": response.url, "title": response.css("h1::text").get()}
        for link in self.links.extract_links(response):
            meta = dict(self.listing_meta) if re.search(LISTING, link.url) else {}
            # Duplicates are the dupefilter's business, not the spider's.
            yield Request(link.url, callback=self.parse, meta=meta)
