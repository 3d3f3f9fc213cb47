"""Settings for any number of processes on any number of machines, which share one queue.

They need `pip install scrapy-redis`, and `SCRAPY_PROJECT=distributed` in the environment.
"""

import os

from magazine.settings import *  # noqa: F403
from magazine.settings import SPIDER_MODULES as _LOCAL_SPIDERS
from magazine.spiders.links import LISTING

# This spider needs scrapy-redis, so only these settings know of it.
SPIDER_MODULES = [*_LOCAL_SPIDERS, "magazine.queue_spider"]

# The queue stays in Redis when the last worker stops, so that the next one continues with it.
SCHEDULER = "scrapy_redis.scheduler.Scheduler"
SCHEDULER_PERSIST = True
REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379")
# May be another server than the queue's.
BLOOM_REDIS_URL = os.environ.get("BLOOM_REDIS_URL", REDIS_URL)

# Workers of the queue spider may run for weeks, and the window "run" lasts as long as they do. So
# listing pages are remembered for an hour: push the start URL again, and the workers look for new
# stories.
BLOOM_RECRAWL_RULES = [(LISTING, "1 hour")]

# A worker ends when it had nothing to do for so many seconds.
MAX_IDLE_TIME_BEFORE_CLOSE = 10
