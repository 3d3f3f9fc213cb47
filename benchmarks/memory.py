"""What a million URLs take on the server.

Each contestant fills an empty server of its own. The bytes are ``MEMORY USAGE`` (SAMPLES 0: all
elements are looked at) of all keys; beside it the growth of the server's ``used_memory``, which
includes what the allocator adds. The fingerprints are those of the real dupefilters (a sample is
compared), but made and sent in batches, which leaves the same data behind.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import redis

from benchmarks.contestants import (
    CLASSES,
    Contestant,
    Server,
    build,
    filter_of,
    request,
    servers,
    url,
)
from benchmarks.report import Outcome, Table, progress, server_name

BATCH = 5_000
SAMPLE = 100
#: URLs that bring the bitmap of Scrapy-Redis-BloomFilter to its full size, and many more.
ENOUGH = 5_000

COLUMNS = ("", "URLs", "bytes", "bits per URL", "ratio", "used_memory")
NOTES = (
    (
        "Default settings. `bytes` is `MEMORY USAGE` of all keys, `used_memory` how much the "
        f"server grew. Scrapy-Redis-BloomFilter has the first {ENOUGH:,} URLs only: its bitmap has "
        "its full size after a few."
    ),
)

Fill = Callable[[Contestant, Iterable[list[int]]], None]


def run(*, quick: bool = False, full: bool = False) -> Outcome:
    """Fill all contestants on the first server, with ``full`` on all there are."""
    urls = 50_000 if quick else 1_000_000
    table = Table(f"Memory of {urls:,} URLs", COLUMNS, notes=NOTES)
    for binary in servers(full=full):
        bits = _server(table, binary, urls)
    ours, *others = (f"{value:.1f} {name}" for name, value in bits.items())
    row = (
        f"Memory of the server, bits per URL, with {urls:,} URLs",
        ours.split()[0],
        ", ".join(others),
        "",
    )
    return Outcome([table], summary=[row])


def _server(table: Table, binary: str, urls: int) -> dict[str, float]:
    """Fill all contestants on a server; return the bits per URL of each."""
    ours, bits = 0, {}
    for name, fill in FILLS.items():
        with Server(binary) as server, server.client(socket_timeout=60) as client:
            before = client.info("memory")["used_memory"]
            contestant = build(name, server.url)
            _check(contestant)
            fill(contestant, _batches(f"{server_name(client)}: {name}", urls))
            contestant.client.close()
            used = _usage(client)
            grown = client.info("memory")["used_memory"] - before
            ours = ours or used
            bits[name] = used * 8 / urls
            if contestant.is_ours:
                table.add(f"**{server_name(client)}**", *[""] * 5)
            table.add(
                contestant.title,
                f"{urls:,}",
                f"{used:,}",
                f"{bits[name]:.1f}",
                f"{used / ours:.1f}",
                f"{grown:,}",
            )
    return bits


def _usage(client: redis.Redis) -> int:
    return sum(int(client.memory_usage(key, samples=0) or 0) for key in client.scan_iter())


def _batches(title: str, urls: int) -> Iterator[list[int]]:
    """Yield the numbers of all pages, with a progress bar."""
    with progress() as bar:
        for start in bar.track(range(0, urls, BATCH), description=title):
            yield list(range(start, min(start + BATCH, urls)))


def _check(contestant: Contestant) -> None:
    """Compare the fingerprints made here with those of the real dupefilter."""
    for number in range(SAMPLE):
        real = contestant.fingerprint(request(number))
        made = _sha1(number, scrapy=contestant.is_ours)
        if real not in (made.digest(), made.hexdigest()):
            raise RuntimeError(f"{contestant.title} makes other fingerprints: {real!r}")


def _sha1(number: int, *, scrapy: bool) -> "hashlib._Hash":
    """Hash page ``number`` as Scrapy does, or as scrapy-redis does; its URL is canonical."""
    data: dict[str, object] = {"method": "GET", "url": url(number), "body": ""}
    if scrapy:
        data["headers"] = {}
    return hashlib.sha1(json.dumps(data, sort_keys=True).encode())


def _fill_ours(contestant: Contestant, batches: Iterable[list[int]]) -> None:
    for numbers in batches:
        filter_of(contestant.dupefilter).extend(_sha1(n, scrapy=True).digest() for n in numbers)


def _fill_set(contestant: Contestant, batches: Iterable[list[int]]) -> None:
    for numbers in batches:
        members = [_sha1(number, scrapy=False).hexdigest() for number in numbers]
        contestant.client.sadd(contestant.dupefilter.key, *members)


def _fill_bitmap(contestant: Contestant, batches: Iterable[list[int]]) -> None:
    theirs = contestant.dupefilter.bf
    for numbers in islice(batches, ENOUGH // BATCH):
        with contestant.client.pipeline(transaction=False) as pipeline:
            for number in numbers:
                member = _sha1(number, scrapy=False).hexdigest()
                for hash_map in theirs.maps:
                    pipeline.setbit(theirs.key, hash_map.hash(member), 1)
            pipeline.execute()


FILLS: dict[str, Fill] = dict(zip(CLASSES, (_fill_ours, _fill_set, _fill_bitmap), strict=True))
