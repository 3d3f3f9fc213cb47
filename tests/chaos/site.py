"""The site that is crawled: small, slow on demand, and it counts what is fetched."""

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

from example_site.build import Site
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
    web = SlowSite(directory, 0, None)
    thread = Thread(target=web.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield web
    finally:
        web.close()
        thread.join()


@dataclass(frozen=True)
class Pages:
    """What plain Scrapy, without scrapy-bloom, brings home from the site.

    Args:
        fetched: every page it fetches.
        scraped: the stories it scrapes.
        hubs: of the pages, those that every run and every crawler fetches: listings, robots.txt.
    """

    fetched: frozenset[str]
    scraped: frozenset[str]
    hubs: frozenset[str]

    @property
    def lasting(self) -> frozenset[str]:
        """The pages that are to be fetched once."""
        return self.fetched - self.hubs


@dataclass
class Tally:
    """What several crawlers have brought home from the site, over any number of runs.

    Args:
        fetched: how often each page was.
        testimony: what the crawlers say.
    """

    fetched: Counter[str] = field(default_factory=Counter)
    testimony: Testimony = field(default_factory=Testimony)

    def hidden(self, pages: Pages) -> list[str]:
        """Return the pages that were never fetched, and the stories that were but got lost then."""
        return sorted(
            (pages.fetched - self.fetched.keys()) | (pages.scraped - self.testimony.scraped)
        )

    def orphans(self, hidden: list[str], killed: list[int]) -> list[str]:
        """Return the hidden pages that only processes had in their queues that were killed."""
        held = self.testimony.held
        return [page for page in hidden if held.get(page) and held[page] <= set(killed)]

    def again(self, pages: Pages) -> dict[str, int]:
        """Return how often pages were fetched again that are to be fetched once."""
        return {
            page: self.fetched[page] - 1 for page in sorted(pages.lasting) if self.fetched[page] > 1
        }

    def alone(self, pages: Pages) -> int:
        """Return how often a process asked for a page again that is to be fetched once."""
        asked = self.testimony.asked.values()
        return sum(
            count - 1 for one in asked for page, count in one.items() if page in pages.lasting
        )

    def asked(self, pid: int, pages: Pages) -> int:
        """Return how many pages a process asked for that are to be fetched once."""
        return len(self.testimony.asked.get(pid, Counter()).keys() & pages.lasting)


def build(directory: Path) -> Site:
    """Write the site."""
    return Site.build(directory, count=STORIES)
