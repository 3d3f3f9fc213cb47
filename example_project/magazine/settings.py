"""Settings for one crawling process; those of scrapy-bloom come second and third."""

BOT_NAME = "magazine"
SPIDER_MODULES = ["magazine.spiders"]

# The one line that scrapy-bloom needs.
DUPEFILTER_CLASS = "scrapy_bloom.BloomDupeFilter"
# Starts a private Valkey server with its data in .scrapy/. For your own: "redis://localhost:6379".
BLOOM_REDIS_URL = "embedded:"
# That is all: the next run skips every page that this one has crawled. It reads start pages again,
# because they change. For listing pages, the spider asks for the same with
# meta={"bloom_recrawl_after": "run"} (see magazine/spiders/links.py).

# With this, a page that was first seen in January is fetched again from the 1st of June on, however
# often it is seen until then.
# BLOOM_RECRAWL_AFTER = "5 months"

# The site, which `python -m example_site` puts there; or `-s SITE_URL=...`.
SITE_URL = "http://127.0.0.1:8000/"
ROBOTSTXT_OBEY = True
# Polite enough for a server on this machine. Be slower elsewhere.
CONCURRENT_REQUESTS_PER_DOMAIN = 16
DOWNLOAD_DELAY = 0
LOG_LEVEL = "INFO"
