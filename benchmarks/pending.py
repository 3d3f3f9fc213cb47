"""Memory of a pending request: what the server keeps while a page is not crawled."""

import redis
from scrapy import Request, Spider

from benchmarks.contestants import Server, servers
from benchmarks.report import Outcome, Table, server_name
from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.protocol import claim_protocol
from scrapy_bloom.crawl import request_codec
from scrapy_bloom.crawl.tracker import META

#: Claims whose memory is measured.
PENDING, QUICK_PENDING = 20_000, 2_000
COLUMNS = ("server", "request", "claim")
NOTES = (
    (
        "Bytes of a typical link (a URL of 51 characters, callback, depth, Referer), and of its "
        "claim as a whole (`MEMORY USAGE`)."
    ),
)


class PagesSpider(Spider):
    """Has the callback of the requests."""

    name = "pages"


def run(*, quick: bool = False, full: bool = False) -> Outcome:
    """Measure on the first server, with ``full`` on all there are."""
    table = Table("A pending request", COLUMNS, notes=NOTES)
    for binary in servers(full=full):
        with Server(binary) as server:
            _add_row(table, server, QUICK_PENDING if quick else PENDING)
    return Outcome([table])


def _add_row(table: Table, server: Server, count: int) -> None:
    spider = PagesSpider()
    with server.client() as client:
        bloom = BloomFilter(client, "pending")
        items = [number.to_bytes(20, "big") for number in range(count)]
        texts = [request_text(spider, number, item) for number, item in enumerate(items)]
        owner = "w" + "0" * 24
        bloom.run(lambda session: claim_protocol.claim(session, items, texts, owner, "0.0"))
        used = sum(_memory(client, key) for key in client.keys("*:claims"))
        mean = sum(map(len, texts)) / count
        table.add(server_name(client), f"{mean:.0f}", f"{used / count:.0f}")


def _memory(client: redis.Redis, key: bytes) -> int:
    return int(client.memory_usage(key, samples=0) or 0)


def request_text(spider: PagesSpider, number: int, item: bytes) -> str:
    """Return a typical link as it is stored with its claim."""
    request = Request(
        f"https://www.example.com/stories/2027/story-{number:06}",
        callback=spider.parse,
        headers={"Referer": "https://www.example.com/stories/2027/"},
        meta={"depth": 3, META: [f"lasting:{item.hex()}"]},
    )
    return request_codec.dump(request, spider)
