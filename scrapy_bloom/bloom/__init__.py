"""The library: Bloom filters in Redis, without Scrapy.

Start with ``filter.BloomFilter``, or ``async_filter.AsyncBloomFilter`` for asyncio.
"""
