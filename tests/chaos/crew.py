"""The crawlers of one filter: several at once, each killed and started anew on demand."""

import re
from collections.abc import Mapping
from pathlib import Path

from support.nursery import options_of, shared_nursery

from scrapy_bloom.crawl.writer import CLOSED_WITHOUT_SERVER

_UNDONE = re.compile(r"Bloom filter: ([\d,]+) writes are lost")


class Crew:
    """Crawlers under the same settings; `start` and `kill` know them by number, from 0 on.

    Args:
        size: how many there are.
        settings: of each of them.
        logs: directory for a log of each.
        name: what the logs begin with.
    """

    def __init__(self, size: int, settings: Mapping[str, object], logs: Path, name: str) -> None:
        self._nursery = shared_nursery()
        self._arguments = ["crawl", "links", *options_of(settings)]
        self._logs = [logs / f"{name}-{number}.log" for number in range(size)]
        self._pids = [self._launch(log) for log in self._logs]
        #: Processes that were killed.
        self.killed: list[int] = []

    def __len__(self) -> int:
        return len(self._pids)

    def start(self, number: int) -> None:
        """Start a crawler that has ended anew."""
        self._pids[number] = self._launch(self._logs[number])

    def _launch(self, log: Path) -> int:
        return self._nursery.start(self._arguments, log)

    def kill(self, number: int) -> bool:
        """Kill -9 a crawler; return whether it was running."""
        pid = self._pids[number]
        running = self._nursery.exit_code(pid) is None
        self._nursery.kill(pid)
        if running:
            self.killed.append(pid)
        return running

    @property
    def running(self) -> bool:
        """Whether any crawler is."""
        return any(self._nursery.exit_code(pid) is None for pid in self._pids)

    @property
    def exit_codes(self) -> list[int | None]:
        """How each crawler ended; None for one that runs."""
        return [self._nursery.exit_code(pid) for pid in self._pids]

    def stat(self, name: str) -> int:
        """Return the sum of a stat over all crawlers, save for those that were killed."""
        pattern = re.compile(rf"^[ {{]'{name}': (\d+)[,}}]$", re.MULTILINE)
        return sum(int(number) for text in self._texts() for number in pattern.findall(text))

    def undone(self) -> int:
        """Return how much could not be written when crawlers ended."""
        found = (number for text in self._texts() for number in _UNDONE.findall(text))
        return sum(int(number.replace(",", "")) for number in found)

    def closed(self) -> int:
        """Return how many crawlers closed because the server was away."""
        line = f"Closing spider ({CLOSED_WITHOUT_SERVER})"
        return sum(text.count(line) for text in self._texts())

    def _texts(self) -> list[str]:
        return [log.read_text(errors="replace") for log in self._logs if log.exists()]
