"""``scrapy bloom recrawl``: has the running crawl, or the next one, fetch URLs again.

A Bloom filter can't forget one URL. So the command leaves a pending request, as a page that failed
does, and workers pick it up although its URL is remembered.
"""

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from scrapy import Spider

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.protocol.claims import Again
from scrapy_bloom.bloom.protocol.session import Key
from scrapy_bloom.cli.base import Command, ExitCode
from scrapy_bloom.cli.output import (
    Column,
    listed,
    plural,
    quoted,
    show_json,
    show_table,
    without_credentials,
)
from scrapy_bloom.cli.project import Project, Target, key_of
from scrapy_bloom.cli.stored import StoredFilter
from scrapy_bloom.cli.urls import read_urls
from scrapy_bloom.crawl import request_codec
from scrapy_bloom.rules import RUN

STATES = {
    Again.READY: "will be crawled",
    Again.RETRIED: "will be crawled, had failed",
    Again.PENDING: "pending already",
}
COLUMNS: Sequence[Column] = (
    Column("state", lambda row: row["state"]),
    Column("URL", lambda row: row["url"]),
)


def run(project: Project, opts: argparse.Namespace) -> ExitCode:
    """Leave requests that workers pick up."""
    if not (opts.urls or opts.file or opts.failed):
        raise ConfigurationError(
            "no URL is given. Name URLs, a file of them with --file, or all failed pages with "
            "--failed"
        )
    target = project.target()
    spider = target.spider
    if target.crawler.spidercls is Spider:
        raise ConfigurationError(
            "there is no project here, and recrawl needs the code of the spider. Run it in the "
            "project's directory"
        )
    if not target.settings.makes_claims:
        raise ConfigurationError(
            f'BLOOM_REMEMBER is "{target.settings.remember}", so crawls have no pending requests. '
            'Set BLOOM_REMEMBER = "crawled", or yield the URLs with dont_filter=True'
        )
    urls = read_urls(opts.urls, opts.file)
    requests = _requests(target, urls, opts.callback) if urls else {}
    with target.connect() as stored:
        stored.read()
        verdicts = _leave(stored, spider, requests, replaces=opts.callback is not None)
        counts = Counter(verdicts.values())
        if opts.failed:
            counts += _retry_failed(stored, spider)
    rows = [{"url": without_credentials(u), "state": STATES[one]} for u, one in verdicts.items()]
    if opts.json:
        names = {one.name.lower(): counts[one] for one in Again}
        show_json({"key": stored.bloom.key, "spider": spider, **names, "urls": rows})
        return ExitCode.FINE
    show_table(COLUMNS, rows)
    urls_left = plural(counts[Again.READY] + counts[Again.RETRIED], "URL")
    print(f"{urls_left} will be crawled by spider {spider!r}: now if it runs, or by its next run")
    if counts[Again.NONE]:
        pages = plural(counts[Again.NONE], "page")
        print(f"{pages} failed too often to be kept. Give their URLs to have them crawled")
    return ExitCode.FINE


def _requests(
    target: Target, urls: Sequence[str], callback: str | None
) -> dict[str, tuple[Key, str]]:
    """Return for each URL its key, and its request as it's stored."""
    spider, identity = target.bare_spider(), target.identity()
    _check_callback(spider, callback)
    found: dict[str, tuple[Key, str]] = {}
    for url in urls:
        text = _text(url, callback)
        key = key_of(identity, request_codec.load(text, spider))
        if key[0] == RUN:
            raise ConfigurationError(
                f"URL {quoted(url)} has the window {RUN!r}, so each run crawls it when it finds "
                "it. Leave it out, or change BLOOM_RECRAWL_RULES"
            )
        found[url] = key, text
    return found


def _text(url: str, callback: str | None) -> str:
    """Return the request of a URL as it's stored."""
    # With dont_filter it follows a redirect, although the target is nearly always remembered.
    fields = {"url": url, "dont_filter": True, **({"callback": callback} if callback else {})}
    return json.dumps(fields, separators=(",", ":"))


def _check_callback(spider: Spider, callback: str | None) -> None:
    """Make sure that the spider has the method that gets the pages."""
    if _is_callback(spider, callback or "parse"):
        return
    own = [name for name in dir(type(spider)) if name not in dir(Spider)]
    methods = listed(name for name in own if _is_callback(spider, name))
    if callback is None:
        raise ConfigurationError(
            f"spider {spider.name!r} has no method parse. Name the one that gets the pages with "
            f"--callback: {methods}"
        )
    raise ConfigurationError(
        f"--callback {quoted(callback)} isn't a method of spider {spider.name!r}. Choose one of: "
        f"{methods}"
    )


def _is_callback(spider: Spider, name: str) -> bool:
    if name == "parse" and type(spider).parse is Spider.parse:
        return False
    try:
        request_codec.load(_text("https://example.com", name), spider)
    except ValueError:
        return False
    return True


def _leave(
    stored: StoredFilter, spider: str, requests: Mapping[str, tuple[Key, str]], *, replaces: bool
) -> dict[str, Again]:
    """Leave the requests of URLs; return what becomes of each."""
    places = {
        url: (stored.spec.hasher.block(key[1]), field_of(key[1]))
        for url, (key, _) in requests.items()
    }
    by_block: dict[int, dict[str, str]] = defaultdict(dict)
    for url, (block, field) in places.items():
        by_block[block][field] = requests[url][1]
    verdicts = _again(stored, spider, by_block, replaces=replaces)
    return {url: verdicts[place] for url, place in places.items()}


def _retry_failed(stored: StoredFilter, spider: str) -> Counter[Again]:
    """Have all pages that failed crawled now."""
    by_block: dict[int, dict[str, str]] = defaultdict(dict)
    for block, claim in stored.scan(spider):
        if claim.has_failed:
            by_block[block][claim.field] = ""
    return Counter(_again(stored, spider, by_block).values())


def _again(
    stored: StoredFilter,
    spider: str,
    by_block: Mapping[int, Mapping[str, str]],
    *,
    replaces: bool = False,
) -> dict[tuple[int, str], Again]:
    """Have URLs crawled again, by their blocks and fields."""
    claims, found = stored.claims(spider), dict[tuple[int, str], Again]()
    for block, requests in by_block.items():
        verdicts = stored.bloom.run(claims.again(block, requests, replaces=replaces))
        found |= {(block, field): verdict for field, verdict in verdicts.items()}
    return found


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("urls", nargs="*", metavar="URL", help="URLs; - reads them from stdin")
    parser.add_argument("--file", metavar="FILE", help="read URLs from a file, one per line")
    parser.add_argument("--failed", action="store_true", help="retry all failed pages now")
    parser.add_argument(
        "--callback",
        metavar="NAME",
        help="name the spider's method that gets the URLs (default parse)",
    )


RECRAWL = Command(
    "recrawl",
    "have the running or next crawl fetch URLs again",
    """\
scrapy bloom recrawl https://example.com/p/1 --callback parse_product
scrapy bloom recrawl --file urls.txt --callback parse_product
scrapy bloom recrawl --failed
# a listing page, to find what is new on it
scrapy bloom recrawl https://example.com/shoes/ --callback parse
# a whole category, listing pages and products, in one run
scrapy crawl shop -s BLOOM_RECRAWL_RULES='[["/shoes/", "run"]]'""",
    run,
    _add_options,
)
