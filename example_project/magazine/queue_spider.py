"""Crawl with many workers, which read start URLs from Redis (needs scrapy-redis)."""

from scrapy import Spider
from scrapy_redis.spiders import RedisSpider

from magazine.spiders.links import LinksSpider


class QueueSpider(RedisSpider, LinksSpider):
    """Waits for start URLs in the Redis list `queue:start_urls` and follows every link.

    To start the crawl: `redis-cli rpush queue:start_urls '{"url": "http://127.0.0.1:8000/"}'`

    Each page is fetched by whichever worker is first. The listings have the window that the rule
    in `settings_distributed.py` gives them. With "run", which lasts as long as a worker lives, each
    worker would fetch them once, and then never look again.
    """

    name = "queue"
    listing_meta = {}
    start = Spider.start  # which reads the list
