"""Settings for one crawling process; those of scrapy-bloom come second and third."""

BOT_NAME = "magazine"
SPIDER_MODULES = ["magazine.spiders"]

# The one line that scrapy-bloom needs.
DUPEFILTER_CLASS = "scrapy_bloom.BloomDupeFilter"
# A Valkey server of the project's own, with its data in .scrapy/: nothing to install or to start.
# Have a server already? "redis://localhost:6379".
BLOOM_REDIS_URL = "embedded:"
# That is all: whatever a run has scheduled, the next one does not fetch again. Start requests and
# sitemaps are the exception, because they change; for listings the spider asks for the same with
# meta={"bloom_recrawl_after": "run"} (see magazine/site_spider.py).

# With this, a page that was first seen in January is fetched again from the 1st of June on, however
# often it is seen until then. Instead of months there are days, hours, ... and runs: "5 runs" goes
# with -s BLOOM_RUN=2027-01-31, an id that is new for each run and the same for all its workers.
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
