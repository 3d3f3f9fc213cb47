"""docs/reference/meta.md."""

from scrapy_bloom.crawl.meta_keys import META_KEYS
from tools.reference.markdown import block, bullets, document

INTRODUCTION = """\
Keys of `Request.meta`. They are for one request: do not hand them on with `meta=response.meta`.
Requests with `dont_filter=True` do not come to the dupefilter at all."""
EXAMPLE = """\
yield Request(url, meta={"bloom_recrawl_after": "run"})  # crawl it in every run
yield Request(url, meta={"bloom_key": product_id})  # one page, whatever its URL
yield Request(url, meta={"bloom_version": lastmod})  # crawl it again when it has changed
yield Request(url, meta={"bloom_enabled": False})  # neither tested nor recorded"""


def page() -> str:
    """Return the page."""
    sections = [
        f"## `{name}`\n\n{key.meaning}\n\n{bullets(Accepts=key.takes, Default=key.default)}"
        for name, key in META_KEYS.items()
    ]
    introduction = (INTRODUCTION, block(EXAMPLE, "python"))
    return document("Meta keys", "scrapy_bloom/crawl/meta_keys.py", *introduction, *sections)
