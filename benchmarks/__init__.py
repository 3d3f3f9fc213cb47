"""Benchmarks of scrapy-bloom beside the Redis dupefilters people use: ``python -m benchmarks``."""
