"""Crawl the site from link to link."""

from collections.abc import AsyncIterator

from scrapy import Request

from magazine.site_spider import SiteSpider


class LinksSpider(SiteSpider):
    """Starts at the home page and follows every link."""

    name = "links"

    async def start(self) -> AsyncIterator[Request]:
        """The home page. A start request is remembered for this run only, without being told to."""
        yield Request(f"{self.site_url}/")
