"""A Scrapy dupefilter on blocks of Redis bitmaps, and the Bloom filter it is made of."""

from scrapy_bloom.addon import Addon
from scrapy_bloom.async_filter import AsyncBloomFilter
from scrapy_bloom.core.info import FilterInfo, GenerationInfo, ItemInfo
from scrapy_bloom.core.measurement import Measurement
from scrapy_bloom.dupefilter import BloomDupeFilter
from scrapy_bloom.errors import (
    ArchiveError,
    BloomError,
    ConfigurationError,
    FilterMismatchError,
    SaturatedError,
    StorageError,
)
from scrapy_bloom.files.saving import Saved
from scrapy_bloom.filter import BloomFilter
from scrapy_bloom.fingerprinter import ScrapyRedisFingerprinter

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
    "ItemInfo",
    "Measurement",
    "SaturatedError",
    "Saved",
    "ScrapyRedisFingerprinter",
    "StorageError",
]
