"""The library: Bloom filters in Redis, without Scrapy.

Start with ``filter.BloomFilter``, or ``filter.AsyncBloomFilter`` for asyncio.
"""
