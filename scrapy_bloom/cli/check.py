"""``scrapy bloom check``: says whether URLs are remembered, pending or failed.

A URL is remembered by its generation, so it was crawled at the time that is shown, or later. It's
remembered until the time at which a run with these settings forgets it, but a window that you have
just set counts from the next run on. Every run reads the URLs in `start_urls` and `sitemap_urls`
and, with `BLOOM_ITEMS_ONLY`, pages without an item, which aren't remembered. A page with a key
(`meta["bloom_key"]`) isn't found by its URL. To find a request that isn't a plain GET, add its
`--method` and its `--body`.
"""

import argparse
from contextlib import suppress
from typing import Any

from scrapy import Request, Spider
from scrapy.settings import Settings

from scrapy_bloom.bloom.client.address import without_credentials
from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.protocol.claims import StoredClaim
from scrapy_bloom.bloom.protocol.session import Key
from scrapy_bloom.cli.output import minute, plural, report
from scrapy_bloom.cli.project import read_urls, target
from scrapy_bloom.cli.stored import Memory
from scrapy_bloom.crawl.identity import Identity
from scrapy_bloom.rules import RUN

HELP = "say whether URLs are remembered, pending or failed"
EXAMPLES = """\
scrapy bloom check https://example.com/a https://example.com/b
# many URLs, one per line
scrapy bloom check - < urls.txt
scrapy bloom check https://example.com/search --method POST --body q=shoes"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's own options."""
    parser.add_argument(
        "urls", nargs="+", metavar="URL", help="look up these URLs (- reads them from stdin)"
    )
    text = "look up requests with this method (default GET)"
    parser.add_argument("--method", default="GET", help=text)
    parser.add_argument("--body", default="", help="look up requests with this body")


def run(settings: Settings, opts: argparse.Namespace) -> bool:
    """Print for each URL how the filter knows it; return whether all are remembered."""
    chosen, urls = target(settings, opts), read_urls(opts.urls)
    if not urls:
        raise ConfigurationError("There are no URLs. Give some, or - to read them from stdin")
    identity = chosen.identity()
    keys = {url: identity.key(Request(url, None, opts.method, body=opts.body)) for url in urls}
    with chosen.connect() as stored:
        known = [key for key in keys.values() if key[0] != RUN]
        memories = stored.remembered(known)
        claims = stored.find_claims(stored.spider(chosen.spider), known)
    rules, starts = chosen.settings.recrawl_rules, _starts(chosen.crawler.spidercls, identity)
    rows = [
        {
            **_state(key, memories.get(key), claims.get(key), is_start=key[1] in starts),
            "rule": next((pattern.pattern for pattern, _ in rules if pattern.search(url)), None),
            "url": without_credentials(url),
        }
        for url, key in keys.items()
    ]
    count = sum(key in memories for key in keys.values())
    text = f"{stored}: {count:,} of {plural(len(rows), 'URL')} remembered"
    report(opts, {**stored.head, "remembered": count}, rows, text)
    return count == len(rows)


def _starts(spider: type[Spider], identity: Identity) -> set[bytes]:
    """Return the fingerprints of a class's start URLs, if Scrapy's own method requests them."""
    methods = [getattr(spider, name, Spider.start) for name in ("start", "start_requests")]
    if not all(method.__module__.startswith("scrapy.") for method in methods):
        return set()
    lists = [getattr(spider, name, ()) for name in ("start_urls", "sitemap_urls")]
    keys = set[bytes]()
    for url in [url for urls in lists if isinstance(urls, list | tuple) for url in urls]:
        with suppress(TypeError, ValueError):  # it isn't one
            keys.add(identity.key(Request(url))[1])
    return keys


def _state(
    key: Key, memory: Memory | None, claim: StoredClaim | None, *, is_start: bool
) -> dict[str, Any]:
    """Return the row of a URL."""
    state = "remembered" if memory else "not remembered"
    if is_start or key[0] == RUN:
        state = "crawled by each run"
    elif claim and claim.waits:
        state = "failed" if claim.has_failed else "will be crawled"
    elif claim:
        state = "pending"
    return {
        "state": state,
        "since": minute(memory[0]) if memory else None,
        "until": minute(memory[1]) or "never" if memory else None,
        "next_try": minute(claim.due) if claim else None,
        "reason": claim.nonce if claim and claim.has_failed else None,
        "window": key[0],
    }
