"""The site that is crawled: small, slow on demand, and it counts what is fetched."""

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

from example_site.build import Truth
from example_site.serve import SiteServer

from chaos.schedule import CLUSTER, SENTINEL, SINGLE
from chaos.witness import Testimony

STORIES = 96
#: Seconds that an answer takes while the site is slow: three crawlers take a few seconds then, and
#: longer than a server takes that replaces another one.
SLOW = {SINGLE: (0.05, 0.3), CLUSTER: (0.2, 0.8), SENTINEL: (0.2, 0.8)}


class SlowSite(SiteServer):
    """The magazine's server; it takes its time while `slow` is set."""

    slow: tuple[float, float] | None = None

    def hurry(self) -> None:
        """Be fast from now on."""
        self.slow = None

    def count(self, url: str) -> None:
        super().count(url)
        if slow := self.slow:
            time.sleep(random.uniform(*slow))


@contextmanager
def serve_slowly(directory: Path) -> Iterator[SlowSite]:
    """Serve a built site, fast until it is told to be slow."""
    web = SlowSite(directory, 0)
    thread = Thread(target=web.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield web
    finally:
        web.close()
        thread.join()


@dataclass
class Tally:
    """What several crawlers have brought home from the site, over any number of runs.

    Args:
        fetched: how often each page was.
        testimony: what the crawlers say.
    """

    fetched: Counter[str] = field(default_factory=Counter)
    testimony: Testimony = field(default_factory=Testimony)

    def hidden(self, truth: Truth) -> list[str]:
        """Return the pages that were never fetched, and the stories that were but got lost then."""
        return sorted(
            (truth.crawl() - self.fetched.keys()) | (truth.stories - self.testimony.scraped)
        )

    def orphans(self, hidden: list[str], killed: list[int]) -> list[str]:
        """Return the hidden pages that only processes had in their queues that were killed."""
        held = self.testimony.held
        return [page for page in hidden if held.get(page) and held[page] <= set(killed)]

    def again(self, truth: Truth) -> dict[str, int]:
        """Return how often pages were fetched again that are to be fetched once."""
        return {
            page: self.fetched[page] - 1 for page in sorted(truth.lasting) if self.fetched[page] > 1
        }

    def alone(self, truth: Truth) -> int:
        """Return how often a process asked for a page again that is to be fetched once."""
        asked = self.testimony.asked.values()
        return sum(
            count - 1 for one in asked for page, count in one.items() if page in truth.lasting
        )

    def asked(self, pid: int, truth: Truth) -> int:
        """Return how many pages a process asked for that are to be fetched once."""
        return len(self.testimony.asked.get(pid, Counter()).keys() & truth.lasting)
