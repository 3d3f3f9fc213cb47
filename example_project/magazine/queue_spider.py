"""Crawl with many workers, which read start URLs from Redis (needs scrapy-redis)."""

from collections.abc import Mapping

from scrapy_redis.spiders import RedisSpider

from magazine.site_spider import SiteSpider


class QueueSpider(RedisSpider, SiteSpider):
    """Waits for start URLs in the Redis list `queue:start_urls` and follows every link.

    To start the crawl: `redis-cli rpush queue:start_urls '{"url": "http://127.0.0.1:8000/"}'`

    Each page is fetched by whichever worker is first. The listings have the window that the rule
    in `settings_distributed.py` gives them: with "run", which is a worker's own memory for as long
    as it lives, each worker would fetch them once, and then never look again.
    """

    name = "queue"
    listing_meta: Mapping[str, str] = {}
