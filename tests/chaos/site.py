"""The site that is crawled: pages that link each other, slow on demand."""

import random
import time

from support.odd_site import Fetch, OddSite, Reply

#: How many pages there are, and where each crawl starts.
PAGES, START = 200, "/0"


class Site(OddSite):
    """Serves a tree of pages with further links, and up to two items a page.

    Args:
        rng: chooses links and items.
    """

    def __init__(self, rng: random.Random) -> None:
        pages = {}
        for number in range(PAGES):
            tree = [child for child in (2 * number + 1, 2 * number + 2) if child < PAGES]
            links = [f"/{link}" for link in (*tree, *rng.sample(range(PAGES), 3))]
            items = [f"<p>{rng.random()}</p>" for _ in range(rng.randrange(3))]
            pages[f"/{number}"] = Reply(links, text="".join(items))
        super().__init__(pages)
        #: Seconds that an answer takes on average.
        self.delay = 0.0

    def answer(self, fetch: Fetch) -> Reply:
        """Return the reply to a request, after a while."""
        reply = super().answer(fetch)
        time.sleep(random.uniform(0, 2 * self.delay))
        return reply
