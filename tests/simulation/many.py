"""Measures how evenly many workers share one crawl, on simulated time, against a real server.

It's run by hand, from ``tests``: ``python -m simulation.many --workers 50 --pages 20000``. Each
page takes one to three seconds, and each round trip a millisecond. What a worker computes takes
none, so the server's CPU is all that is real.
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from statistics import median
from typing import Any
from unittest import mock

from scrapy import Request
from scrapy.http import Response

from simulation import process, spiders, world
from simulation.__main__ import begin, say, servers
from simulation.kinds import Kind
from simulation.process import Process, simulated
from simulation.site import ROOT, Site
from simulation.world import Words, World

#: Chains of listing pages, and links of each of these.
CHAINS, LINKS = 20, 50
#: Downloads of a worker at a time, and seconds that one takes.
DOWNLOADS, SECONDS = 8, (1.0, 2.0, 3.0)
#: Seconds between the starts of two workers.
BETWEEN_STARTS = 0.1
#: Steps between two looks at who has ended.
LOOK_STEPS = 100
#: Heartbeats by which their cost is measured.
BEATS = 2_000
SETTINGS = {"BLOOM_KEY": "k", "CONCURRENT_REQUESTS": DOWNLOADS, "SIMULATED_DONT_FILTER": True}


class Crawl(spiders.Pages):
    """Yields an item and all links of each page."""

    def parse(self, response: Response, **_: Any) -> Iterator[Any]:
        """Yield them in the order of the page."""
        yield {"url": response.url}
        for link, _ in self.process.site.links[response.url]:
            yield Request(link, self.parse)


class Shop(Site):
    """Chains of listing pages that link articles, or a start page that links all pages."""

    def __init__(self, here: World, pages: int, *, is_list: bool) -> None:
        super().__init__(Random(0), here.log, Kind({}, pages=(0, 0), fails=False))
        self._world = here
        #: When each page was fetched, by whom, and its URL.
        self.hits: list[tuple[float, str, str]] = []
        urls = [f"{ROOT}{number}" for number in range(pages)]
        groups = [urls[first : first + LINKS] for first in range(0, pages, LINKS)]
        links = {ROOT: urls} if is_list else {ROOT: [one[0] for one in groups[:CHAINS]]}
        for number, (listing, *articles) in enumerate(() if is_list else groups):
            following = groups[number + CHAINS : number + CHAINS + 1]
            links[listing] = [*articles, *(one[0] for one in following)]
        self.links = {url: [(one, True) for one in links.get(url, ())] for url in (ROOT, *urls)}

    def respond(self, request: Request, process: str) -> Response:
        """Note who has fetched a page."""
        self.hits.append((self._world.now, process, request.url))
        return Response(request.url)


class Counting(World):
    """Counts what is sent, and keeps no trace."""

    def __init__(self) -> None:
        super().__init__(servers[0], 0, {})
        self.place = "-"  # each worker is on another machine
        self.sent: Counter[str] = Counter()
        self._beat: Words = ()
        self.looks = self._count
        #: How often each page was asked for, whether or not it was answered.
        self.asked: Counter[str] = Counter()
        self.hands_out = lambda _, url: self.asked.update([url])

    def log(self, what: str) -> None:
        """Note nothing."""

    def _count(self, _: str, commands: Sequence[Words], __: Sequence[Any]) -> None:
        self.sent["round trips"] += 1
        for words in commands:
            name = self.script_of(words) or str(words[0])
            self.sent[name] += 1
            self._beat = words if name == "beat" else self._beat

    def cpu(self) -> float:
        """Return the seconds of CPU that the server has used."""
        used: Any = self.client.info("cpu")
        return float(used["used_cpu_user"] + used["used_cpu_sys"])

    def cost_of_beat(self) -> float:
        """Return the seconds of CPU that the last heartbeat takes the server."""
        before = self.cpu()
        for _ in range(BEATS):
            self.execute(*self._answer(self._beat))
        return (self.cpu() - before) / BEATS


class Crew:
    """Workers that crawl a site together.

    Args:
        here: the world.
        options: of the command line.
    """

    def __init__(self, here: Counting, options: argparse.Namespace) -> None:
        self._world, self._options = here, options
        self._site = Shop(here, options.pages, is_list=options.list)
        self._workers: list[Process] = []
        self._ended: dict[str, float] = {}
        self._steps = 0

    def crawl(self) -> None:
        """Crawl all pages, and print the numbers."""
        here, hits, half = self._world, self._site.hits, self._options.pages // 2
        before, began = here.cpu(), time.monotonic()
        here.spawn(self._start_all, is_network=True)  # no process's own
        here.run(lambda: len(hits) > half, self._note_ended)
        beat, middle = here.cost_of_beat(), here.now
        if self._options.kill:
            self._workers[0].kill()
        if self._options.join:
            self._start()
        here.run(lambda: len(self._ended) == len(self._workers), self._note_ended)
        cpu = here.cpu() - before - BEATS * beat
        say(*here.found, f"{time.monotonic() - began:.0f} s of wall time")
        self._report(middle)
        self._report_server(cpu, beat)

    def _start_all(self) -> None:
        for _ in range(self._options.workers):
            self._start()
            self._world.wait(BETWEEN_STARTS)

    def _start(self) -> None:
        name = f"p{len(self._workers) + 1}"
        self._workers.append(Process(self._world, self._site, name, SETTINGS))

    def _note_ended(self) -> None:
        self._steps += 1
        if self._steps % LOOK_STEPS == 0:
            for one in self._workers:
                if one.name not in self._ended and not one.is_running:
                    self._ended[one.name] = self._world.now

    def _report(self, middle: float) -> None:
        hits, options = self._site.hits, self._options
        pages, asked = {url for *_, url in hits} - {ROOT}, self._world.asked
        again = asked.total() - len(asked)  # without the start page, which isn't filtered
        say(f"pages {len(pages)} of {options.pages}, fetched again {again}")
        say(f"pages of a worker: {self._spread(-1, float('inf'))}")
        say(f"in the middle minute: {self._spread(middle - 30, middle + 30)}")
        ended = [self._ended[one.name] for one in self._workers if not one.must_stop]
        ideal = options.pages * median(SECONDS) / DOWNLOADS / options.workers
        say(f"first ends {min(ended):.0f} s, last {max(ended):.0f} s, ideal {ideal:.0f} s")
        say(f"last page at {hits[-1][0]:.0f} s; pages in each 10 s: {self._rate()}")

    def _spread(self, first: float, last: float) -> str:
        """Return the least, the median and the most pages that a worker has fetched in a time."""
        counts = Counter(name for moment, name, _ in self._site.hits if first <= moment < last)
        pages = sorted(counts[one.name] for one in self._workers)
        return f"{pages[0]}, {median(pages):.0f}, {pages[-1]}"

    def _rate(self) -> str:
        counts = Counter(int(moment // 10) for moment, _, _ in self._site.hits)
        return " ".join(f"{counts[one]}" for one in range(max(counts) + 1))

    def _report_server(self, cpu: float, beat: float) -> None:
        sent, pages = self._world.sent, self._options.pages
        trips = sent.pop("round trips")
        say(f"round trips {trips} ({trips / pages:.1f} per page), commands {sent.total()}")
        say(", ".join(f"{name} {count}" for name, count in sent.most_common()))
        share = sent["beat"] * beat / cpu
        say(f"CPU {cpu:.1f} s, {cpu / pages * 1e6:.0f} µs per page, heartbeats {share:.0%}")


def read_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="simulation.many", description="Shares a crawl.")
    add = parser.add_argument
    add("--workers", type=int, default=50, metavar="N")
    add("--pages", type=int, default=20_000, metavar="N")
    add("--list", action="store_true", help="the start page links all pages")
    add("--kill", action="store_true", help="kill a worker when half of the pages are fetched")
    add("--join", action="store_true", help="start another worker then")
    return parser.parse_args()


def main() -> None:
    """Print the numbers of a crawl."""
    options = read_options()
    begin()
    with (
        mock.patch.object(process, "Pages", Crawl),
        mock.patch.object(spiders, "DOWNLOADS", SECONDS),
        mock.patch.object(spiders, "PIPELINES", (0.0,)),
        mock.patch.object(world, "LATENCIES", (0.001,)),
        mock.patch.object(world, "MAX_STEPS", float("inf")),
    ):
        here = Counting()
        with simulated(here):
            Crew(here, options).crawl()


if __name__ == "__main__":
    main()
