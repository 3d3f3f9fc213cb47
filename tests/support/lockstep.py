"""Processes that look the same pages up in the same order, at the same time, on a cluster."""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scrapy.utils.reactor import install_reactor

from support.loops import eventually
from support.paths import TESTS
from support.polling import PATIENCE
from support.workers import Worker, page

#: Links of a page.
PAGE = 64
#: Seconds between two pages.
PAUSE_SECONDS = 0.02


@dataclass(frozen=True)
class Outcome:
    """What the processes have seen.

    Attributes:
        new: number of a page -> the processes to which it was new.
        outages: of each process.
        back: when each process was back after its last outage, in Unix seconds; 0 for none.
    """

    new: Counter[int]
    outages: list[int]
    back: list[float]

    @property
    def duplicates(self) -> set[int]:
        """Pages that were new to several processes."""
        return {number for number, count in self.new.items() if count > 1}


class Lockstep:
    """Processes that begin when they are created, and end by themselves.

    Args:
        port: of a node.
        processes: how many.
        pages: how many each of them looks up, of 64 links each.
        settings: of each.
    """

    def __init__(self, port: int, processes: int, pages: int, **settings: Any) -> None:
        self._links = pages * PAGE
        arguments = [str(port), str(pages), json.dumps(settings)]
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "support.lockstep", *arguments],
                cwd=TESTS,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(processes)
        ]
        for process in self._processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()

    @property
    def is_running(self) -> bool:
        """Whether any of them runs."""
        return any(process.poll() is None for process in self._processes)

    def outcome(self) -> Outcome:
        """Wait for their ends, and return what they have seen."""
        found = [
            json.loads(process.communicate(timeout=PATIENCE)[0]) for process in self._processes
        ]
        new = Counter[int](dict.fromkeys(range(self._links), 0))
        for one in found:
            new.update(one["new"])
        return Outcome(new, [one["outages"] for one in found], [one["back"] for one in found])

    def end(self) -> None:
        """End those that still run."""
        for process in self._processes:
            process.kill()
            process.communicate()


async def look_up(worker: Worker, numbers: Sequence[int]) -> set[int]:
    """Look pages up as the links of a page; return those that are seen."""
    duplicates = worker.crawl._duplicates
    requests = {number: page(number) for number in numbers}
    lookups = {number: duplicates.prepare(one) for number, one in requests.items()}
    await duplicates.look_up([one for one in lookups.values() if one and one.verdict is None])
    return {
        number
        for number, lookup in lookups.items()
        if (lookup and lookup.is_duplicate) or worker.dupefilter.request_seen(requests[number])
    }


def worker_on(port: int, **settings: Any) -> Worker:
    """Return a worker on a cluster."""
    return Worker(f"redis+cluster://127.0.0.1:{port}", **settings)


async def main(port: int, pages: int, settings: dict[str, Any]) -> None:
    """Look pages up; write what is new."""
    new: list[int] = []
    async with worker_on(port, **settings) as worker:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        for number in range(pages):
            links = range(number * PAGE, (number + 1) * PAGE)
            new += {*links} - await look_up(worker, links)
            await asyncio.sleep(PAUSE_SECONDS)
        await eventually(worker.is_back, "it is back")
        outages = worker.stat("outages")
    found = {"new": new, "outages": outages, "back": worker.last_back}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    # Scrapy 2.13 asks for it.
    install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])))
