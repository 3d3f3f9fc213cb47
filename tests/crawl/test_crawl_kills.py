"""kill -9 of a crawler between any two script calls: of claims, of confirmations, of a takeover."""

import os
from collections import Counter

import pytest
from scrapy import Request
from scrapy.utils.request import fingerprint
from support.odd_site import Lab, LabOf, page

from scrapy_bloom import BloomFilter

#: Page n links to pages 2n and 2n + 1, and to page 1; page 1 is where the crawl starts.
PAGES = 15
#: Round trips between two kills; with 1, each of them is looked at.
STRIDE = int(os.environ.get("KILL_STRIDE", "9"))
#: Round trips after which a crawl is under way.
CALLS_BEFORE = 12
SETTINGS = {"BLOOM_BLOCKS": 2, "BLOOM_CAPACITY": 100, "CONCURRENT_REQUESTS": 4}
#: Is killed before a round trip, after so many of whichever thread; -1 for never. Page 2 is not
#: remembered, page 3 is asked for with dont_filter.
SPIDER = """
import os
import signal
import threading
from scrapy_bloom.bloom.client.transport import AsyncTransport, Transport

lock, calls = threading.Lock(), -1


def counted(exchange):
    def count_and_exchange(*arguments):
        global calls
        with lock:
            if calls == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            calls -= 1
        return exchange(*arguments)

    return count_and_exchange


for transport in (Transport, AsyncTransport):
    transport._exchange = counted(transport._exchange)


class TreeSpider(OddSpider):
    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        global calls
        calls = crawler.settings.getint("CALLS")
        return super().from_crawler(crawler, *args, **kwargs)

    async def start(self):
        yield Request(self.settings["SITE_URL"] + "/1", dont_filter=True)

    def parse(self, response):
        for request in self.links(response):
            if request.url.endswith("/2"):
                request.meta["bloom_recrawl_after"] = "run"
            is_asked_for = request.url.endswith("/3") and response.url.endswith("/1")
            yield request.replace(dont_filter=is_asked_for)
"""


@pytest.fixture
def lab(lab_of: LabOf) -> Lab:
    links = {n: [1, *(m for m in (2 * n, 2 * n + 1) if m <= PAGES)] for n in range(1, PAGES + 1)}
    return lab_of({f"/{n}": page(*(f"/{m}" for m in links[n])) for n in links})


def is_killed(lab: Lab, calls: int = -1) -> bool:
    """Crawl; return whether it was killed."""
    with lab.start(SPIDER, CALLS=calls, **SETTINGS) as crawl:
        return crawl.is_killed()


def check(lab: Lab, kills: int) -> None:
    """Every page was fetched; again at most what was under way, and not yet confirmed."""
    hits = Counter({int(path[1:]): count for path, count in lab.site.hits().items()})
    assert set(hits) == set(range(1, PAGES + 1)), "a page is hidden"
    # Each crawl starts with page 1 (with dont_filter, as Scrapy has it), which asks for page 3
    # in the same way; page 2 is remembered for a run only.
    assert all(hits[number] <= 1 + kills for number in hits if number > 3)
    bloom = BloomFilter(lab.client, "odd:bloom")
    items = [fingerprint(Request(f"{lab.site.url}/{n}")) for n in range(1, PAGES + 1)]
    recorded = [n for n, is_there in enumerate(bloom.contains(items), 1) if is_there]
    assert recorded == [1, *range(4, PAGES + 1)]
    assert not lab.claims()


@pytest.mark.parametrize("is_takeover", [False, True], ids=["crawl", "takeover"])
def test_kill_nine_between_any_two_round_trips_hides_no_page(lab: Lab, is_takeover: bool) -> None:
    for calls in range(0, 400, STRIDE):
        lab.client.flushdb()
        lab.site.fetches.clear()
        assert not is_takeover or is_killed(lab, CALLS_BEFORE)
        killed = is_killed(lab, calls)
        assert not is_killed(lab)
        check(lab, kills=1 + is_takeover)
        if not killed:
            break
    assert calls > CALLS_BEFORE / 2
    assert not killed
