"""The keys of ``Request.meta`` that a crawl reads."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MetaKey:
    """A key of ``Request.meta``. Markdown.

    Args:
        takes: the values.
        default: what holds without it.
        meaning: what it does.
    """

    takes: str
    default: str
    meaning: str


#: The keys. A test compares them with those that the package reads.
META_KEYS: Mapping[str, MetaKey] = {
    "bloom_key": MetaKey(
        "a non-empty str or bytes",
        "the fingerprint of the request",
        "Identifies the page instead of its URL, for instance by a product number. Redirects of "
        "the request are identified by their own URLs.",
    ),
    "bloom_version": MetaKey(
        "a non-empty str of at most 200 bytes in UTF-8",
        "none",
        "The version of the page, such as the `lastmod` of a sitemap or a date in a listing. A "
        "page is new if its version is none of those that are remembered. A request without a "
        "version is seen if any version of the page was crawled. The window `run` ignores "
        "versions. A redirect keeps the version; requests that a callback makes with "
        "`meta=response.meta` have it as well: do not hand it on.",
    ),
    "bloom_recrawl_after": MetaKey(
        "`run`, `default`, `never`, or a time as in `BLOOM_RECRAWL_AFTER`, which is also that of "
        "another setting or rule",
        "`BLOOM_START_RECRAWL_AFTER` for start requests and sitemaps, else the first of "
        "`BLOOM_RECRAWL_RULES` that matches, else `default`",
        "The window of the page. `run` remembers it in this process and for this run only; "
        "`default` is the window of `BLOOM_RECRAWL_AFTER`. The filters of a crawl are opened when "
        "it begins, so a window that no setting has is warned about, and the rules count.",
    ),
    "bloom_has_item": MetaKey(
        "`True` or `False`",
        "whether the callback, or the errback, yields an item",
        'For `BLOOM_REMEMBER = "items"`: whether the page counts as one with an item, whatever its '
        "callback yields. The callback may set it in `response.meta`.",
    ),
    "bloom_enabled": MetaKey(
        "`False`",
        "`True`",
        "`False` neither tests nor records the request.",
    ),
    "bloom_filtered_start": MetaKey(
        "set by the crawl",
        "none",
        "Belongs to scrapy-bloom: a start request that was looked up though it has `dont_filter`. "
        "Do not set or copy it.",
    ),
    "bloom_claims": MetaKey(
        "set by the crawl",
        "none",
        "Belongs to scrapy-bloom: the claims of a request that is pending. Do not set or copy it.",
    ),
    "bloom_set_later": MetaKey(
        "set by the crawl",
        "none",
        "Belongs to scrapy-bloom, as `bloom_claims`: names of what middlewares of the downloader "
        "had set on a request that became a redirect or a retry.",
    ),
}
