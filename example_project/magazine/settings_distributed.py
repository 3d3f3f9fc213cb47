"""Settings for any number of processes on any number of machines, which share one queue.

They need `pip install scrapy-redis`, and `SCRAPY_PROJECT=distributed` in the environment.
"""

import os

from magazine.settings import *  # noqa: F403
from magazine.settings import SPIDER_MODULES as _LOCAL_SPIDERS
from magazine.site_spider import LISTING

# This spider needs scrapy-redis, so only these settings know of it.
SPIDER_MODULES = [*_LOCAL_SPIDERS, "magazine.queue_spider"]

# The queue is in Redis, and stays there when the last worker stops: what is in the filter is then
# still in the queue. Without it a stop would leave pages that are marked and never fetched.
SCHEDULER = "scrapy_redis.scheduler.Scheduler"
SCHEDULER_PERSIST = True
REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379")
# May be another server than the queue's.
BLOOM_REDIS_URL = os.environ.get("BLOOM_REDIS_URL", REDIS_URL)

# A run of the queue spider has no end, so "for this run only" says nothing there. Its listings are
# forgotten at each full hour instead: push the start URL again, and the workers look for new
# stories. They have a filter of their own, which is small.
BLOOM_RECRAWL_RULES = [(LISTING, {"recrawl_after": "1 hour", "capacity": 10_000})]

# A worker ends when it had nothing to do for so many seconds.
MAX_IDLE_TIME_BEFORE_CLOSE = 10
