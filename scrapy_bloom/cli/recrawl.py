"""``scrapy bloom recrawl``: makes the running crawl, or the next one, fetch URLs again.

A Bloom filter can't forget one URL, so the command leaves a pending request, like that of a page
that failed, for runs with any arguments. The spider's running crawl picks it up when it has nothing
else to do, or else the next run does. Links on the page that are remembered aren't followed again.
A page that failed keeps its arguments, and its callback unless you name one. Its attempts are
counted anew.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence

from scrapy import Spider
from scrapy.settings import Settings

from scrapy_bloom.bloom.client.address import without_credentials
from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.protocol.claims import Recrawl
from scrapy_bloom.cli.output import plural, quoted, report
from scrapy_bloom.cli.project import Target, read_urls, target
from scrapy_bloom.cli.stored import StoredFilter
from scrapy_bloom.crawl import request_codec
from scrapy_bloom.rules import RUN

HELP = "have the running or next crawl fetch URLs again"
EXAMPLES = """\
scrapy bloom recrawl https://example.com/p/1 --callback parse_product
# many URLs, one per line
scrapy bloom recrawl - < urls.txt
scrapy bloom recrawl --failed
# a listing page, to find new links on it
scrapy bloom recrawl https://example.com/shoes/ --callback parse
# all pages that a rule matches, and the listing pages that lead to them
scrapy crawl shop -s BLOOM_RECRAWL_RULES='[["/p/shoe-|/category/", "run"]]'"""
STATES = {
    Recrawl.READY: "will be crawled",
    Recrawl.RETRIED: "will be retried",
    Recrawl.PENDING: "pending already",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's own options."""
    parser.add_argument(
        "urls", nargs="*", metavar="URL", help="crawl these URLs again (- reads them from stdin)"
    )
    parser.add_argument("--failed", action="store_true", help="retry all failed pages now")
    text = "name the spider's method that gets the URLs (default parse)"
    parser.add_argument("--callback", metavar="NAME", help=text)


def run(settings: Settings, opts: argparse.Namespace) -> bool:
    """Leave requests that workers pick up."""
    if not (opts.urls or opts.failed):
        raise ConfigurationError(
            "There are no URLs. Give some, - to read them from stdin, or --failed"
        )
    if opts.callback and not opts.urls:
        raise ConfigurationError("--callback needs URLs, as pages that failed keep their own")
    chosen = target(settings, opts)
    if not chosen.is_known:
        raise ConfigurationError("recrawl needs the spider's code. Run it in your Scrapy project")
    if not chosen.settings.makes_claims:
        raise ConfigurationError('recrawl needs BLOOM_REMEMBER = "crawled" or "delivered". Set it')
    urls, spider = read_urls(opts.urls), chosen.spider
    with chosen.connect() as stored:
        found = dict(_requests(chosen, stored, urls, opts.callback))
        requests = {place: text for place, (_, text) in found.items()}
        claims, replaces = stored.claims(spider), opts.callback is not None
        verdicts = stored.bloom.run(claims.recrawl(requests, replaces=replaces))
        scanned = stored.scan(spider) if opts.failed else ()
        others = {(block, one.field): "" for block, one in scanned if one.has_failed}
        counts = Counter((verdicts | stored.bloom.run(claims.recrawl(others))).values())
    callbacks = {Recrawl.READY: opts.callback or "parse", Recrawl.RETRIED: opts.callback}
    rows = [
        {
            "state": STATES[verdict],
            "callback": callbacks.get(verdict),
            "url": without_credentials(found[place][0]),
        }
        for place, verdict in verdicts.items()
    ]
    left = plural(counts[Recrawl.READY] + counts[Recrawl.RETRIED], "URL")
    text = f"{left} will be crawled by the current or next run of spider {spider!r}"
    if unsaved := counts[Recrawl.NONE]:
        text += f". {plural(unsaved, 'request')} couldn't be saved, so their pages yield them again"
    head = {**stored.head, "spider": spider}
    report(opts, head | {one.name.lower(): counts[one] for one in Recrawl}, rows, text)
    return True


def _requests(
    chosen: Target, stored: StoredFilter, urls: Sequence[str], callback: str | None
) -> Iterator[tuple[tuple[int, str], tuple[str, str]]]:
    """Yield for each URL the block and field of its claim, and the URL with its request."""
    identity, spider = chosen.identity(), chosen.bare
    hint = "Name the method that gets these pages, for example --callback parse_item"
    if urls and callback in (None, "parse") and type(spider).parse is Spider.parse:
        raise ConfigurationError(f"spider {spider.name!r} has no method parse. {hint}")
    # With dont_filter it follows a redirect, although the target is nearly always remembered.
    fields = {"dont_filter": True, **({"callback": callback} if callback else {})}
    for url in urls:
        text = json.dumps({"url": url, **fields}, separators=(",", ":"))
        try:
            request = request_codec.load(text, spider)
        except ValueError:
            text = f"--callback {quoted(callback)} isn't a method of spider {spider.name!r}"
            raise ConfigurationError(f"{text}. {hint}") from None
        window, item = identity.key(request)
        if window == RUN:
            text = f"{quoted(url)} has the window {RUN!r}, so each run crawls it"
            raise ConfigurationError(f"{text}. Leave it out, or change BLOOM_RECRAWL_RULES")
        yield (stored.spec.hasher.block(item), field_of(item)), (url, text)
