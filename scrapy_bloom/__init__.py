"""A Scrapy dupefilter on blocks of Redis bitmaps, and the Bloom filter it is made of."""

from scrapy_bloom.addon import Addon
from scrapy_bloom.bloom.errors import (
    ArchiveError,
    BloomError,
    ConfigurationError,
    FilterMismatchError,
    SaturatedError,
    StorageError,
)
from scrapy_bloom.bloom.extras.save import Saved
from scrapy_bloom.bloom.filter import AsyncBloomFilter, BloomFilter
from scrapy_bloom.bloom.protocol.info import FilterInfo, GenerationInfo, ItemInfo, Measurement
from scrapy_bloom.crawl.delivery import Hold, hold
from scrapy_bloom.dupefilter import BloomDupeFilter
from scrapy_bloom.fingerprinter import ScrapyRedisFingerprinter
from scrapy_bloom.sitemaps import SitemapVersions

__version__ = "0.1.0"

__all__ = [
    "Addon",
    "ArchiveError",
    "AsyncBloomFilter",
    "BloomDupeFilter",
    "BloomError",
    "BloomFilter",
    "ConfigurationError",
    "FilterInfo",
    "FilterMismatchError",
    "GenerationInfo",
    "Hold",
    "ItemInfo",
    "Measurement",
    "SaturatedError",
    "Saved",
    "ScrapyRedisFingerprinter",
    "SitemapVersions",
    "StorageError",
    "hold",
]
