"""Runs the test suites of Scrapy and scrapy-redis, as they are and with ``BloomDupeFilter``."""
