"""``scrapy bloom migrate``: imports the memory of another dupefilter.

All entries count as first seen now. The command only reads the source, and you can interrupt it and
run it again.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from scrapy import Request
from scrapy.settings import Settings
from scrapy.utils.request import RequestFingerprinter

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.protocol.notes import note_crawl
from scrapy_bloom.bloom.protocol.session import Key
from scrapy_bloom.cli.output import plural, progress, quoted, report
from scrapy_bloom.cli.project import Target, checked_url, target
from scrapy_bloom.cli.stored import NoFilterError
from scrapy_bloom.crawl.identity import Identity
from scrapy_bloom.crawl.server import Server
from scrapy_bloom.migrate import Source, from_seen, from_set, from_urls, migrate
from scrapy_bloom.rules import RUN

HELP = "import the URLs or fingerprints of another dupefilter"
EXAMPLES = """\
scrapy bloom migrate --from-set shop:dupefilter
scrapy bloom migrate --from-seen crawls/shop
scrapy bloom migrate --from-urls urls.txt"""
OWN = "scrapy_bloom.migrate.ScrapyRedisFingerprinter"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's own options."""
    source = parser.add_mutually_exclusive_group(required=True)
    text = "read scrapy-redis's SET of fingerprints, on the same server"
    source.add_argument("--from-set", metavar="KEY", help=text)
    text = "read Scrapy's requests.seen in a JOBDIR"
    source.add_argument("--from-seen", metavar="JOBDIR", help=text)
    text = "read URLs, one per line (- reads them from stdin)"
    source.add_argument("--from-urls", metavar="FILE", help=text)


def run(settings: Settings, opts: argparse.Namespace) -> bool:
    """Record all entries; return whether all are fingerprints or URLs."""
    chosen = target(settings, opts)
    with chosen.server() as server, _source(chosen, server, opts) as source:
        bloom = _filter(chosen, server)
        try:
            with progress("entries recorded", source.total) as show:
                found = migrate(bloom, source, show)
        except KeyboardInterrupt:
            hint = "Run the same command again. Entries that are recorded count once"
            raise KeyboardInterrupt(f"interrupted. {hint}") from None
    text = (
        f"{bloom.key} on {bloom.label}: {plural(found.read, 'entry', 'entries')} of "
        f"{source.name}, {found.new:,} of them new, {found.skipped:,} skipped"
    )
    if found.skipped:
        text += "\nSkipped entries aren't fingerprints or URLs, or each run crawls them, such as "
        text += quoted(found.example)
    head = {"filter": bloom.key, "address": bloom.label, "source": source.name}
    report(opts, {**head, **found._asdict()}, [], text)
    return not found.skipped


def _filter(chosen: Target, server: Server) -> BloomFilter:
    """Open the filter as a crawl does; without a project, its windows are those it has."""
    bloom, options = server.bloom, chosen.settings.options()
    with suppress(NoFilterError):
        windows = chosen.filter(server).schedules
        bloom = BloomFilter(bloom.client, bloom.key, label=bloom.label, windows=windows, **options)
    if chosen.spider:
        project = str(chosen.crawler.settings["BOT_NAME"])
        bloom.run(note_crawl(bloom.session, chosen.spider, project))
    else:
        bloom.run(bloom.session.open())
    return bloom


@contextmanager
def _source(chosen: Target, server: Server, opts: argparse.Namespace) -> Iterator[Source]:
    """Open the source that the options name."""
    identity = chosen.identity()
    if opts.from_set is not None:
        if type(chosen.crawler.request_fingerprinter) is RequestFingerprinter:
            raise ConfigurationError(
                "--from-set has fingerprints of scrapy-redis, which aren't Scrapy's. "
                f'Set REQUEST_FINGERPRINTER_CLASS = "{OWN}" first, for this filter\'s whole life'
            )
        yield from_set(server.bloom.client, opts.from_set, server.label)
    elif opts.from_seen is not None:
        yield from_seen(opts.from_seen)
    elif opts.from_urls == "-":
        yield from_urls("the standard input", sys.stdin.buffer, 0, partial(_parse, identity))
    else:
        with Path(opts.from_urls).open("rb") as file:
            total = sum(1 for _ in file)
            file.seek(0)
            yield from_urls(f"the file {opts.from_urls!r}", file, total, partial(_parse, identity))


def _parse(identity: Identity, text: str) -> Key | str:
    """Return the window and the fingerprint of a URL; the text, if no run remembers it."""
    with suppress(ConfigurationError):
        found = identity.key(Request(checked_url(text)))
        return text if found[0] == RUN else found
    return text
