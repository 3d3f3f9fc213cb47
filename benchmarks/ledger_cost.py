"""What a ledger costs: time and CPU of a crawl, and bytes of a request on the server."""

import random
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pydoc_data.topics import topics

import redis
from scrapy import Request, Spider
from scrapy.http import Response
from scrapy.link import Link
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule
from scrapy.utils.request import RequestFingerprinter

from benchmarks.contestants import Server, servers
from benchmarks.crawl import run_crawler
from benchmarks.report import Table, progress
from benchmarks.site import served
from benchmarks.workload import server_cpu
from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model import ledger
from scrapy_bloom.bloom.model.ledger import LedgerEntry
from scrapy_bloom.bloom.protocol import claim_protocol, ledger_protocol
from scrapy_bloom.bloom.protocol.ledger_protocol import Kept
from scrapy_bloom.crawl import request_codec

#: The site that is crawled, and how often with each setting.
PAGES, LINKS, ROUNDS = 3_000, 10, 10
SETTINGS = {
    "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter",
    "BLOOM_RECRAWL_AFTER": "6 months",
}
#: Requests that are packed, in so many at once, and what they are claimed by.
REQUESTS, BATCH, SEED = 100_000, 1_000, 7
OWNER, TAG = "w-bench", "bench"
SECTIONS = ("news", "politics", "culture", "science", "sport", "travel", "opinion", "local")
#: Words in running text, so that some are frequent.
WORDS = re.findall(r"[a-z]{2,12}", " ".join(topics.values()).lower())


def tables() -> Iterator[Table]:
    """Measure; yield tables."""
    with Server(*servers(full=False)) as server:
        yield _time(server)
        yield _size(server)


# -- time and CPU --


@dataclass(frozen=True)
class Cost:
    """What one crawl took.

    Args:
        seconds: from its opening to its end.
        cpu: seconds of CPU of the crawler.
        server: seconds of CPU of the server.
        counts: pages, items and requests that were scheduled.
        kept: requests that were added to the ledger.
    """

    seconds: float
    cpu: float
    server: float
    counts: tuple[int, ...]
    kept: int


#: What is compared, a page.
SPENT: Mapping[str, Callable[[Cost], float]] = {
    "time": lambda cost: cost.seconds,
    "CPU of the crawler": lambda cost: cost.cpu,
    "CPU of the server": lambda cost: cost.server,
}


def _time(server: Server) -> Table:
    pairs = []
    with served("--pages", f"{PAGES}", "--links", f"{LINKS}") as url, progress() as bar:
        for number in bar.track(range(ROUNDS), description="Crawls"):
            order = (False, True) if number % 2 else (True, False)
            costs = {with_ledger: _crawl(server, url, with_ledger) for with_ledger in order}
            pairs.append((costs[False], costs[True]))
    counts = {cost.counts for pair in pairs for cost in pair}
    assert len(counts) == 1, f"the crawls differ: {counts}"
    assert {(without.kept, having.kept > 0) for without, having in pairs} == {(0, True)}
    title = f"BLOOM_LEDGER in a crawl of {PAGES:,} pages: an item and {LINKS} links each"
    table = Table(title, ("", "off, ms a page", "on, ms a page", "ratio", "of single turns"))
    for name, spent in SPENT.items():
        off, on = ([spent(cost) for cost in costs] for costs in zip(*pairs, strict=True))
        ratios = sorted(having / without for without, having in zip(off, on, strict=True))
        table.add(
            name,
            *(f"{statistics.median(each) / PAGES * 1e3:.3f}" for each in (off, on)),
            f"{statistics.median(ratios):.3f}",
            f"{ratios[0]:.3f} - {ratios[-1]:.3f}",
        )
    return table


def _crawl(server: Server, url: str, with_ledger: bool) -> Cost:
    settings = {**SETTINGS, "BLOOM_REDIS_URL": server.url, "BLOOM_LEDGER": with_ledger}
    with server.client() as client:
        client.flushall()
        before = server_cpu(client)
        stats = run_crawler("scrapy-bloom", {"url": url, "items": True, "settings": settings})
        used = server_cpu(client) - before
    counted = ("response_received_count", "item_scraped_count", "scheduler/enqueued")
    return Cost(
        stats["elapsed_time_seconds"],
        stats["cpu"],
        used,
        tuple(stats[name] for name in counted),
        stats.get("bloom/ledger_added", 0),
    )


# -- bytes --


class ArticleSpider(CrawlSpider):
    """Makes the requests that are packed."""

    name = TAG
    rules = (Rule(LinkExtractor()),)

    def parse_article(self, response: Response) -> None:
        """A callback."""


def articles(count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Yield URLs of a newspaper, and the texts of links to them."""
    rng = random.Random(seed)
    for number in range(count):
        start, length = rng.randrange(len(WORDS) - 12), rng.randint(4, 10)
        words = WORDS[start : start + length]
        day = f"{rng.randint(2005, 2027)}/{rng.randint(1, 12):02}/{rng.randint(1, 28):02}"
        slug = f"{'-'.join(words)}-{1_000_000 + number}.html"
        url = f"https://www.example.com/{rng.choice(SECTIONS)}/{day}/{slug}"
        yield url, " ".join(words).capitalize()


def _plain(spider: ArticleSpider, url: str, _text: str) -> Request:
    return Request(url, spider.parse_article)


def _of_rule(spider: ArticleSpider, url: str, text: str) -> Request:
    return spider._build_request(0, Link(url, text))  # noqa: SLF001 - it is not made elsewhere


KINDS: Mapping[str, Callable[[ArticleSpider, str, str], Request]] = {
    "Request(url, self.parse_article)": _plain,
    "a rule of a CrawlSpider": _of_rule,
}


def _size(server: Server) -> Table:
    title = f"Bytes of the ledger on the server: {REQUESTS:,} requests"
    columns = ("requests by", "of a URL", "of a request as JSON", "in the ledger", "in a chunk")
    table = Table(title, columns)
    with server.client() as client, progress() as bar:
        for name, make in bar.track(KINDS.items(), description="Requests"):
            client.flushall()
            spider = ArticleSpider()
            requests = [make(spider, *article) for article in articles(REQUESTS, SEED)]
            bloom = BloomFilter(client, "bench:bloom", capacity=REQUESTS, window="6 months")
            texts = _fill(bloom, requests, spider)
            blocks = range(bloom.info().blocks)
            stored = sum(_pack(bloom, block) for block in blocks)
            assert stored == REQUESTS
            urls = [len(request.url) for request in requests]
            lengths = (sum(urls), sum(map(len, texts)), _memory(client), _in_chunks(client))
            table.add(name, *(f"{length / REQUESTS:.1f}" for length in lengths))
    return table


def _fill(bloom: BloomFilter, requests: Sequence[Request], spider: Spider) -> list[str]:
    """Claim and record pages, with a ledger; return their requests as they are stored."""
    fingerprint = RequestFingerprinter().fingerprint
    texts = [request_codec.dump(request, spider) for request in requests]
    for start in range(0, len(texts), BATCH):
        items = [fingerprint(request) for request in requests[start : start + BATCH]]
        claimed = texts[start : start + BATCH]
        claim = partial(claim_protocol.claim, items=items, requests=claimed, owner=OWNER)
        bloom.run(partial(claim, nonce=f"{start}"))
        confirm = partial(claim_protocol.confirm, items=items, owners=[OWNER])
        bloom.run(partial(confirm, kept=Kept(TAG, {})))
    return texts


def _pack(bloom: BloomFilter, block: int) -> int:
    """Pack all entries of a block, as at the end of its generation; return how many."""
    packed = 0
    while True:
        entries = bloom.run(partial(ledger_protocol.read, block=block))
        found = [entry for text in entries.texts if (entry := LedgerEntry.parse(text))]
        if not found:
            return packed
        chunks = ledger.chunks_of(bloom.session.held[block].ring, found)
        pack = partial(ledger_protocol.pack, entries=entries, chunks=chunks, nonce=f"{packed}")
        assert bloom.run(partial(pack, block=block))
        packed += len(found)


def _memory(client: redis.Redis) -> int:
    """Return the bytes that all keys of the ledger take."""
    keys = client.scan_iter("*:ledger*", count=1_000)
    return sum(client.memory_usage(key, samples=0) or 0 for key in keys)


def _in_chunks(client: redis.Redis) -> int:
    """Return the bytes of packed requests."""
    keys = client.scan_iter("*:ledger:chunks", count=1_000)
    return sum(len(chunk) for key in keys for chunk in client.hvals(key.decode()))
