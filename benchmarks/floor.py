"""What a page of links costs at least, part by part: how much of a crawl is dedupe at all."""

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter
from typing import Any

import redis
from scrapy import Request
from scrapy.http import HtmlResponse
from scrapy.utils.request import RequestFingerprinter

from benchmarks.contestants import Server, found_servers
from benchmarks.peers import CAPACITY, ERROR_RATE, KEY, redisbloom
from benchmarks.report import Outcome, Table, progress
from benchmarks.site import LINKS, SEED, generate
from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.protocol import claim_protocol

PAGES, QUICK_PAGES = 500, 50
HOST = "http://site.example"
TEXT = '{"url":"%s","callback":"parse","meta":{"depth":3}}'
PARSING, FINGERPRINTS, SET = "parsing", "fingerprints", "a set in memory"
SADD, ADD = "SADD, in a pipeline", "BloomFilter.add_many"
COLUMNS = ("", "µs a page", "of the fingerprints")
NOTES = (
    (
        f"Most of the {LINKS} links were seen before; the server is on loopback, on a core of its "
        "own. Times on the clock, medians over pages, all parts in turns."
    ),
)


class Page:
    """One page, in the forms that the parts take it in."""

    def __init__(self, response: HtmlResponse) -> None:
        self.response = response
        self.requests: list[Request] = []
        self.items: list[bytes] = []


def run(*, quick: bool = False, full: bool = False) -> Outcome:  # noqa: ARG001
    """Measure all parts on the first server, and BF.MADD on Redis if RedisBloom is there."""
    pages = [
        Page(HtmlResponse(HOST + path, body=body, encoding="utf-8"))
        for path, body in generate(QUICK_PAGES if quick else PAGES, LINKS, SEED).items()
    ]
    with ExitStack() as stack:
        parts = _parts(stack)
        spent: dict[str, list[float]] = {name: [] for name in parts}
        with progress() as bar:
            for page in bar.track(pages, description="floor"):
                for name, part in parts.items():
                    start = perf_counter()
                    part(page)
                    spent[name].append(perf_counter() - start)
    medians = {name: statistics.median(seconds) * 1e6 for name, seconds in spent.items()}
    return Outcome([_table(medians)], headline=_headline(medians))


def _parts(stack: ExitStack) -> dict[str, Callable[[Page], Any]]:
    """Return the parts, in the order in which a page passes them."""
    found, module = found_servers(), redisbloom()
    client = _client(stack, Server(next(iter(found.values()))))
    fingerprinter, seen = RequestFingerprinter(), set[bytes]()

    def parse(page: Page) -> None:
        page.requests = list(page.response.follow_all(css="a"))

    def fingerprint(page: Page) -> None:
        page.items = [fingerprinter.fingerprint(request) for request in page.requests]

    def test_set(page: Page) -> None:
        for item in page.items:
            if item not in seen:
                seen.add(item)

    def sadd(page: Page) -> None:
        pipeline = client.pipeline(transaction=False)
        for item in page.items:
            pipeline.sadd("set", item)
        pipeline.execute()

    recorded, claimed = BloomFilter(client, "recorded"), BloomFilter(client, "claimed")

    def claim(page: Page) -> None:
        texts = [TEXT % request.url for request in page.requests]
        owner = "w" + "0" * 24
        claimed.run(lambda session: claim_protocol.claim(session, page.items, texts, owner, "0.0"))

    parts = {
        PARSING: parse,
        FINGERPRINTS: fingerprint,
        SET: test_set,
        "PING": lambda _: client.ping(),
        SADD: sadd,
        ADD: lambda page: recorded.add_many(page.items),
        "claims with requests": claim,
    }
    if module and "redis" in found:
        loaded = _client(stack, Server(found["redis"], "--loadmodule", str(module)))
        loaded.execute_command("BF.RESERVE", KEY, ERROR_RATE, CAPACITY)
        parts["BF.MADD (RedisBloom)"] = lambda page: loaded.execute_command(
            "BF.MADD", KEY, *page.items
        )
    return parts


def _headline(medians: dict[str, float]) -> str:
    return (
        f"Parsing a page of {LINKS} links and computing their fingerprints takes "
        f"{medians[PARSING] + medians[FINGERPRINTS]:,.0f} µs (scrapy-bloom keeps those of the "
        f"latest URLs); looking up all of them takes another {medians[ADD]:,.0f} µs "
        f"(`add_many`), {medians[SADD]:,.0f} µs (`SADD` in a pipeline) or {medians[SET]:,.0f} µs "
        "(a set in memory), but a crawl looks up only those that its cache does not know."
    )


def _client(stack: ExitStack, server: Server) -> redis.Redis:
    client: redis.Redis = stack.enter_context(stack.enter_context(server).client())
    return client


def _table(medians: dict[str, float]) -> Table:
    table = Table(f"The floor: a page of {LINKS} links", COLUMNS, notes=NOTES)
    for name, median in medians.items():
        table.add(name, f"{median:,.0f}", f"{median / medians[FINGERPRINTS]:.2f}")
    return table
