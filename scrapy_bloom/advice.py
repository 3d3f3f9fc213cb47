"""What a user should be told when a crawl opens its filter. Each function: a sentence, or None."""

from scrapy.settings import BaseSettings

from scrapy_bloom.info import FilterInfo


def on_eviction(policy: str) -> str | None:
    """Advise on the server's ``maxmemory-policy``."""
    if not policy.startswith("allkeys"):
        return None
    return (
        f"the Redis server's maxmemory-policy is {policy}: when its memory is full it may delete a "
        "part of the filter, and the URLs in it are crawled again. Set it to noeviction (or a "
        "volatile-* policy), or give the filter a server of its own with BLOOM_REDIS_URL"
    )


def on_http_cache(settings: BaseSettings) -> str | None:
    """Advise on an HTTP cache that serves old pages for ever."""
    policy = str(settings.get("HTTPCACHE_POLICY"))
    if not settings.getbool("HTTPCACHE_ENABLED") or "DummyPolicy" not in policy:
        return None
    if settings.getint("HTTPCACHE_EXPIRATION_SECS") > 0:
        return None
    return (
        "HTTPCACHE_ENABLED with HTTPCACHE_EXPIRATION_SECS = 0 never expires: a later crawl reads "
        "the old pages from the cache. Set an expiration shorter than the time between crawls"
    )


def on_fingerprinter(stored: str, ours: str) -> str | None:
    """Advise on fingerprints of another kind than those in the filter."""
    if stored in ("", ours):
        return None
    return (
        f"the filter was filled with fingerprints of {stored}, and this crawl uses {ours} "
        "(REQUEST_FINGERPRINTER_CLASS): URLs that are in it look new. Use the same class, or "
        "another BLOOM_KEY"
    )


def on_config(info: FilterInfo, capacity: int | None, error_rate: float | None) -> str | None:
    """Advise on a size that differs from that of the filter as it is stored."""
    asked = []
    if capacity not in (None, info.capacity):
        asked.append(f"BLOOM_CAPACITY = {capacity:,} (stored: {info.capacity:,})")
    if error_rate not in (None, info.error_rate):
        asked.append(f"BLOOM_ERROR_RATE = {error_rate:g} (stored: {info.error_rate:g})")
    if not asked:
        return None
    return (
        f"{' and '.join(asked)} cannot change the bitmaps that are there: the filter stays as it "
        "is stored until it is cleared; to use another size now, set another BLOOM_KEY"
    )


def on_capacity(info: FilterInfo) -> str | None:
    """Advise on a filter that is nearly full."""
    if info.count < 0.8 * info.capacity:
        return None
    return (
        f"the filter holds {info.count:,} URLs and is made for {info.capacity:,}: URLs beyond that "
        "are remembered for one run only. Set a larger BLOOM_CAPACITY with another BLOOM_KEY"
    )
