"""Crawl with many workers, which read start URLs from Redis (needs scrapy-redis)."""

from scrapy_redis.spiders import RedisSpider

from magazine.site_spider import SiteSpider


class QueueSpider(RedisSpider, SiteSpider):
    """Waits for start URLs in the Redis list `queue:start_urls` and follows every link.

    To start the crawl: `redis-cli rpush queue:start_urls '{"url": "http://127.0.0.1:8000/"}'`

    Stories are fetched once, by whichever worker is first. The window "run" is each worker's own
    memory, so a listing may be fetched once by each of them; they need a restart to look again.
    """

    name = "queue"
