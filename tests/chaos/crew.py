"""The workers of a crawl: real `scrapy` processes, started again until their work is done."""

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from support.nursery import options_of, shared_nursery

SPIDER = Path(__file__).with_name("spider.py")
#: Seconds that a crew may take in all. None should be as slow.
PATIENCE = 240.0
#: Seconds until one that has ended starts again, and between two signals, at most.
PAUSE, BETWEEN_SIGNALS = 1.0, 0.3
TICK = 0.01


class Crew:
    """Workers, known by their numbers.

    Args:
        settings: of each worker. "{worker}" stands for its number.
        size: how many there are.
        directory: where they run and log.
        rng: says when those that were killed or stopped are started again.

    Attributes:
        wrong: what workers did that they shouldn't.
    """

    def __init__(
        self, settings: Mapping[str, object], size: int, directory: Path, rng: Random
    ) -> None:
        self._nursery, self._rng = shared_nursery(), rng
        self._settings, self._directory = settings, directory
        self._deadline = time.monotonic() + PATIENCE
        #: Process ids of those that run, and when those that have ended start again.
        self._pids: dict[int, int] = {}
        self._starts: dict[int, float] = {}
        self._hurt: set[int] = set()
        #: How many bytes they had logged when they started.
        self._logged: dict[int, int] = {}
        self.wrong: list[str] = []
        directory.mkdir(exist_ok=True)
        for number in range(size):
            self._start(number)

    def _start(self, number: int) -> None:
        options = [one.replace("{worker}", f"{number}") for one in options_of(self._settings)]
        arguments, log = ["runspider", str(SPIDER), *options], self._log(number)
        self._logged[number] = log.stat().st_size if log.exists() else 0
        self._pids[number] = self._nursery.start(arguments, log, self._directory)

    @property
    def running(self) -> list[int]:
        """The workers that are running."""
        return [one for one, pid in self._pids.items() if self._nursery.exit_code(pid) is None]

    def hurt(self, number: int, signals: Sequence[int]) -> None:
        """Send signals to a running worker, and start it again when it has ended."""
        self._hurt.add(number)
        for one in signals:
            if number in self.running:
                os.kill(self._pids[number], one)
            time.sleep(self._rng.uniform(0, BETWEEN_SIGNALS))

    def tend(self, until: float) -> bool:
        """Start those again that were hurt; return at a moment, or False if all work is done."""
        while (is_working := self._look()) and time.monotonic() < until:
            time.sleep(TICK)
        return is_working

    def end(self) -> None:
        """Tend the workers until all work is done."""
        if self.tend(self._deadline):
            for number in self.running:
                self.wrong.append(f"worker {number} doesn't end")
                self._nursery.kill(self._pids[number])

    def _look(self) -> bool:
        """Start those again whose time has come; return whether any work is left."""
        now = time.monotonic()
        for number, pid in list(self._pids.items()):
            if (code := self._nursery.exit_code(pid)) is not None:
                del self._pids[number]
                if number in self._hurt or (code and self._may_start_again(number)):
                    self._hurt.discard(number)
                    self._starts[number] = now + self._rng.uniform(0, PAUSE)
                elif code:
                    self.wrong.append(f"worker {number} has ended with {code}")
            elif self._stands_still(number):
                self._nursery.kill(pid)
        for number in [number for number, at in self._starts.items() if at <= now]:
            del self._starts[number]
            self._start(number)
        return bool(self._pids or self._starts)

    def _stands_still(self, number: int) -> bool:
        """Whether a kill has damaged its queue on disk, which Scrapy asks again and again."""
        log = self._log(number)
        return log.exists() and b"queuelib" in log.read_bytes()[self._logged[number] :][-1_000:]

    def _may_start_again(self, number: int) -> bool:
        """Whether it's documented that a worker didn't start, and to start it again helps.

        The server was away, or a kill has damaged the queue on disk, which is deleted now.
        """
        queue = self._directory / f"job-{number}"
        was_killed = queue.exists()
        shutil.rmtree(queue, ignore_errors=True)
        return was_killed or self._log(number).read_text().endswith("[bloom-not-ready]\n")

    def _log(self, number: int) -> Path:
        return self._directory / f"worker-{number}.log"


def retry_failed(settings: Mapping[str, object], directory: Path) -> None:
    """Let the next run crawl the pages that failed."""
    found = {**settings, "SPIDER_MODULES": "chaos.spider"}
    arguments = ["bloom", "recrawl", "--failed", "--spider", "chaos", *options_of(found)]
    nursery = shared_nursery()
    nursery.wait(nursery.start(arguments, directory / "recrawl.log", directory))
