"""``python -m benchmarks.scale``: fill a filter with 100 million URLs, rotate one, outgrow one.

It takes half an hour, and a GiB of memory. ``make bench`` leaves it out.
"""

import argparse
import resource
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import cycle, pairwise
from statistics import median
from typing import Any

from benchmarks.contestants import (
    SERVERS,
    MovedServer,
    cpu,
    items,
    server_name,
    started,
    why_not,
)
from benchmarks.library import timed
from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.protocol.rings import parts
from scrapy_bloom.bloom.protocol.scripts import load

#: Processes that add items; how many in one round trip, and in one task.
PROCESSES, BATCH, TASK = 3, 8_192, 500_000
#: Links of a page, pages that are timed at each mark, and shares of the URLs at which marks are.
LINKS, PAGES, MARKS = 30, 300, (0.01, 0.1, 0.25, 0.5, 0.75, 0.99, 1.0)
#: Items that are looked up at the end: of those that were added, and others.
SAMPLE, OTHERS = 1_000_000, 5_000_000
#: URLs with which the first mark of the smaller filter has a page.
FEWEST = 100_000
#: The first item that is never added.
NEVER = 1 << 40
#: Days of a rotation interval, and how often the filter rotates.
DAYS, ROTATIONS, DAY = 30, 4, 86_400


def fill(planned: int, count: int) -> None:
    """Add URLs, and print their costs at each mark."""
    with (
        started(for_crawls=True) as server,
        server.client() as client,
        ProcessPoolExecutor(PROCESSES) as pool,
    ):
        bloom = BloomFilter(client, "scale", capacity=planned)
        bloom.open()
        print(f"{count:,} URLs where {planned:,} are planned, {server_name(client)}", flush=True)
        start, empty = time.monotonic(), memory(client)
        for last, mark in pairwise((0, *(round(count * share) for share in MARKS))):
            # Pages add the rest.
            end = mark - LINKS * min(PAGES, (mark - last) // (2 * LINKS))
            used = watch(client)
            add = partial(add_task, server.unix_url)
            added = list(pool.map(add, range(last, end, TASK), cycle([end])))
            micros = (cpu(client) - used) / (end - last)
            print(
                f"{mark:,} URLs after {time.monotonic() - start:,.0f} s, {micros:.1f} us of the "
                f"server each, {slowest(client)}; wrongly seen of the last {end - last:,}: "
                f"{end - last - sum(new for new, _ in added)}; a process takes at most "
                f"{max(size for _, size in added)} MiB"
            )
            time_pages(client, "new", bloom.add_many, range(end, mark, LINKS))
            time_pages(client, "known", bloom.contains, range(0, mark - end, LINKS))
            print(
                f"  {memory(client) * 8 / mark:.2f} bits of the server's memory a URL", flush=True
            )
        print(f"The empty server took {empty >> 10} KiB")
        look_up(bloom, count)


def add_task(url: str, first: int, last: int) -> tuple[int, int]:
    """Add a task's items; return how many were new, and the MiB that this process took at most."""
    end = min(first + TASK, last)
    with BloomFilter(url, "scale") as bloom:
        batches = range(first, end, BATCH)
        new = sum(bloom.extend(items(at, min(BATCH, end - at))) for at in batches)
    return new, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def time_pages(
    client: Any, name: str, ask: Callable[[list[bytes]], Any], firsts: Sequence[int]
) -> None:
    """Time calls with the links of pages, whose first items are given."""
    used = watch(client)
    taken = [1e3 * timed(ask, items(first, LINKS)) for first in firsts]
    print(
        f"  {LINKS} {name} links: {(cpu(client) - used) / len(firsts):.0f} us of the server, "
        f"{median(taken):.2f} ms, at most {max(taken):.1f} ms, {slowest(client)}"
    )


def look_up(bloom: BloomFilter, count: int) -> None:
    """Look up URLs of which all were added, and others of which none was."""
    each = max(1, count // SAMPLE)
    added = (one for at in range(0, count, each) for one in items(at, 1))
    others = (
        one for at in range(NEVER, NEVER + min(OTHERS, count), BATCH) for one in items(at, BATCH)
    )
    print(f"Not seen of those that were added: {answers(bloom, added, is_seen=False)}")
    print(f"Wrongly seen of others: {answers(bloom, others, is_seen=True)}")
    info = bloom.info()
    print(f"{info.spec.blocks} shards, {info.windows['default'].generations}", flush=True)


def answers(bloom: BloomFilter, asked: Iterable[bytes], *, is_seen: bool) -> str:
    """Say how many items have this answer."""
    found = [answer for many in parts(asked, BATCH) for answer in bloom.contains(many)]
    return f"{found.count(is_seen)} of {len(found):,}"


def rotate(count: int) -> None:
    """Let days pass on the server's clock, so that it opens and deletes generations."""
    if reason := why_not():
        print(f"No rotation: {reason}")
        return
    with MovedServer(next(iter(SERVERS.values()))) as server, server.client() as client:
        options: dict[str, Any] = {"capacity": count, "window": "60 days", "period": f"{DAYS} days"}
        bloom, many = BloomFilter(client, "rotated", **options), items(NEVER, BATCH)
        for days in (0, *[DAYS] * ROTATIONS):
            server.move(days * DAY)
            used, taken = [watch(client)], []
            for asked in (many[:LINKS], many, many):
                taken.append(1e3 * timed(bloom.contains, asked))
                used.append(cpu(client))
            opening = (used[2] - used[0] - (used[3] - used[2])) / 1e3
            print(
                f"{days} days later: {LINKS} links {taken[0]:.1f} ms, {BATCH:,} {taken[1]:.1f} ms, "
                f"then {taken[2]:.1f} ms; {opening:.0f} ms of the server for all shards, "
                f"{changes(client)}, {memory(client) >> 20} MiB, {slowest(client)}"
            )
        before = watch(client)
        server.move(400 * DAY)
        time.sleep(5)
        print(
            f"All expires, {(cpu(client) - before) / 1e3:.0f} ms of the server, "
            f"{memory(client) >> 20} MiB, {slowest(client)}",
            flush=True,
        )


def changes(client: Any) -> str:
    """Say how long the server took to open a generation of a shard."""
    sha = load("change").sha.encode()
    slow = client.slowlog_get(1_000)
    taken = [one["duration"] / 1e3 for one in slow if sha in one["command"]] or [0.0]
    return f"{len(taken)} commands of {median(taken):.1f} ms, at most {max(taken):.1f} ms"


def memory(client: Any) -> int:
    """Return the bytes that the server has allocated."""
    return int(client.info("memory")["used_memory"])


def watch(client: Any) -> float:
    """Let the server note its slowest commands from now on; return ``cpu``."""
    client.config_set("slowlog-log-slower-than", 300, "slowlog-max-len", 1_000)
    client.slowlog_reset()
    client.config_resetstat()
    return cpu(client)


def slowest(client: Any) -> str:
    """Return the server's slowest command, and the slowest turn of its event loop."""
    slow = max((entry["duration"] for entry in client.slowlog_get(1_000)), default=0)
    turn = client.info("debug").get("eventloop_duration_max", 0)
    return f"slowest command {slow / 1e3:.1f} ms, turn of its event loop {turn / 1e3:.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--urls", type=int, default=100_000_000)
    count = parser.parse_args().urls
    if count < FEWEST:
        parser.error(
            f"--urls is {count:,}, but each mark needs pages to time. Give {FEWEST:,} or more"
        )
    rotate(count)
    fill(count // 100, count // 10)
    fill(count, count)


if __name__ == "__main__":
    main()
