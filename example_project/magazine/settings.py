"""Settings for one crawling process; those of scrapy-bloom come second and third."""

BOT_NAME = "magazine"
SPIDER_MODULES = ["magazine.spiders"]

# The one line that scrapy-bloom needs.
DUPEFILTER_CLASS = "scrapy_bloom.BloomDupeFilter"
# Starts a private Valkey server with its data in .scrapy/. For your own: "redis://localhost:6379".
BLOOM_REDIS_URL = "embedded:"
# That is all: the next run skips every page that this one has crawled. It reads start pages and
# sitemaps again, because they change. For listing pages, the spider asks for the same with
# meta={"bloom_recrawl_after": "run"} (see magazine/site_spider.py).

# With this, a page that was first seen in January is fetched again from the 1st of June on, however
# often it is seen until then.
# BLOOM_RECRAWL_AFTER = "5 months"


# The site, which `python -m example_site serve DIRECTORY` puts there; or `-s SITE_URL=...`.
SITE_URL = "http://127.0.0.1:8000"
# robots.txt keeps us out of a calendar that has no last month.
ROBOTSTXT_OBEY = True
# Polite enough for a server on this machine. Be slower elsewhere.
CONCURRENT_REQUESTS_PER_DOMAIN = 16
DOWNLOAD_DELAY = 0
LOG_LEVEL = "INFO"

# Writes the final stats as JSON to the file that STATS_FILE names; unset, it does nothing.
EXTENSIONS = {"magazine.extensions.StatsFile": 500}
STATS_FILE = None
