"""Crawl what the sitemap lists."""

from collections.abc import AsyncIterator, Iterator

from scrapy import Request
from scrapy.http import TextResponse
from scrapy.spiders import SitemapSpider

from magazine.items import Story
from magazine.site_spider import SiteSpider


class StoriesSpider(SitemapSpider, SiteSpider):
    """Reads the stories that the sitemaps list, and follows no links."""

    name = "sitemap"

    async def start(self) -> AsyncIterator[Request]:
        """The sitemap index. It and its sitemaps are fetched in each run, without being told to."""
        self.sitemap_urls = [f"{self.site_url}/sitemap.xml"]
        async for request in super().start():
            yield request

    def parse(self, response: TextResponse) -> Iterator[Story]:
        """A story."""
        self.crawler.stats.inc_value("pages/stories")
        yield Story.from_response(response)
