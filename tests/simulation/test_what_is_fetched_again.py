"""Runs on a clock that jumps, against exact maps of URL -> hour in which it was crawled last.

The model knows which pages there are and what each run is offered. It knows no filters.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.http import Response
from support.clock import FrozenServer, why_not
from support.examples import examples
from support.servers import SERVERS

from simulation.kinds import SETTINGS
from simulation.process import Crawl, simulated
from simulation.run import IN_ORDER
from simulation.site import ROOT, Site
from simulation.world import Faults, World

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

HOUR = 3_600
RUN, MAIN, SHORT = "run", "default", "2 hours"
#: Window -> its length and period in hours.
WINDOWS = {MAIN: (6, 1), SHORT: (2, 1)}


@dataclass(frozen=True)
class Offer:
    """A link of the start page.

    Args:
        page: its number.
        window: that the link names.
        version: of the page; "" for none.
        has_item: whether the page has an item.
    """

    page: int
    window: str
    version: str
    has_item: bool

    @property
    def url(self) -> str:
        return f"{ROOT}{self.page}"

    @property
    def meta(self) -> dict[str, str]:
        meta = {"bloom_recrawl_after": self.window}
        return {**meta, "bloom_version": self.version} if self.version else meta


@dataclass(frozen=True)
class Run:
    """A run, and when it begins: so many hours after the one before, and seconds into the hour."""

    hours: int
    seconds: int
    offers: Sequence[Offer]


offers = st.builds(
    Offer,
    st.integers(0, 9),
    st.sampled_from([MAIN, MAIN, SHORT, RUN]),
    st.sampled_from(["", "", "1", "2"]),
    st.booleans(),
)
runs = st.builds(
    Run,
    st.integers(0, 4),
    st.integers(10, HOUR - 120),
    st.lists(offers, max_size=8, unique_by=lambda offer: offer.page),
)


@dataclass
class Model:
    """What is remembered: hours since the epoch, by window, URL and version; "" of any version.

    Attributes:
        remember: whether pages without an item are remembered: "crawled" or "items".
        has_ledger: whether pages are fetched again though no page links them.
        recorded: what is remembered, since when.
        ledger: pages of the ledger, by when they were recorded.
        items: which pages have an item, as they are now.
    """

    remember: str
    has_ledger: bool
    recorded: dict[tuple[str, str, str], int] = field(default_factory=dict)
    ledger: list[tuple[Offer, int]] = field(default_factory=list)
    items: dict[str, bool] = field(default_factory=dict)

    def run(self, hour: int, offered: Sequence[Offer]) -> Counter[str]:
        """Return how often a run fetches which pages."""
        self.items |= {offer.url: offer.has_item for offer in offered}
        new = [offer for offer in offered if not self._is_seen(offer, hour)]
        # What the run has fetched and does not record is seen until its end.
        taken = {offer.url for offer in new if not self._is_recorded(offer)}
        due = [
            replace(offer, version="")
            for offer, recorded in self.ledger
            if not _is_live(offer.window, recorded, hour)
        ]
        self.ledger = [entry for entry in self.ledger if _is_live(entry[0].window, entry[1], hour)]
        for offer in new:
            self._crawled(offer, hour)
        proposed = list[Offer]()
        for offer in sorted(due, key=lambda offer: offer.window != MAIN):
            if offer.url not in taken and not self._is_seen(offer, hour):
                proposed.append(offer)
                taken |= set() if self._is_recorded(offer) else {offer.url}
                self._crawled(offer, hour)
        return Counter(offer.url for offer in (*new, *proposed))

    def _is_recorded(self, offer: Offer) -> bool:
        return offer.window != RUN and (self.items[offer.url] or self.remember == "crawled")

    def _crawled(self, offer: Offer, hour: int) -> None:
        if self._is_recorded(offer):
            self._record((offer.window, offer.url, offer.version), hour)
            self.recorded[offer.window, offer.url, ""] = hour
            if self.has_ledger:
                self.ledger.append((offer, hour))

    def _is_seen(self, offer: Offer, hour: int) -> bool:
        """Whether its window has it, whatever another one knows that it was in before."""
        return self._is_live((offer.window, offer.url, offer.version), hour)

    def _is_live(self, key: tuple[str, str, str], hour: int) -> bool:
        return key in self.recorded and _is_live(key[0], self.recorded[key], hour)

    def _record(self, key: tuple[str, str, str], hour: int) -> None:
        if not self._is_live(key, hour):  # to be seen again prolongs nothing
            self.recorded[key] = hour


def _is_live(window: str, recorded: int, hour: int) -> bool:
    length, period = WINDOWS[window]
    return hour // period - recorded // period < length // period


class OfferingSite(Site):
    """A site whose start page links what a run is offered."""

    def __init__(self, world: World) -> None:
        super().__init__(world.rng, 1, 1.0, world.log, fails=False)
        #: What this run is offered, and what any run was, as it was last.
        self.offered: dict[str, Offer] = {}
        self.known: dict[str, Offer] = {}
        self.redirects = {}

    def has_item(self, response: Response) -> bool:
        return response.url != ROOT and self.known[response.url].has_item

    def parse(self, response: Response, callback: Callable[..., Any]) -> list[Request]:
        return [] if response.url != ROOT else [
            Request(offer.url, callback, meta=offer.meta)
            for offer in self.offered.values()
        ]  # fmt: skip


@pytest.fixture(scope="module")
def frozen() -> Iterator[FrozenServer]:
    """A server whose clock stands still between two moves."""
    server = FrozenServer(next(iter(SERVERS.values())), *IN_ORDER)
    yield server
    server.stop()


@examples(100)
@given(
    st.sampled_from(["crawled", "items"]),
    st.sampled_from([True, True, False]),
    st.lists(runs, min_size=2, max_size=8),
)
def test_each_run_fetches_what_is_due(
    frozen: FrozenServer, remember: str, has_ledger: bool, crawls: Sequence[Run]
) -> None:
    world = World(frozen, 0, Faults())
    settings = {
        **SETTINGS,
        "BLOOM_REMEMBER": remember,
        "BLOOM_LEDGER": has_ledger,
        "BLOOM_RECRAWL_AFTER": "6 hours",
        "BLOOM_ROTATE_EVERY": "1 hour",
        "BLOOM_RECRAWL_RULES": [("/never/", SHORT)],
    }
    model, site = Model(remember, has_ledger), OfferingSite(world)
    try:
        with simulated(world):
            for number, run in enumerate(crawls):
                hour = (world.time // HOUR) + run.hours
                world.advance(max(0.0, hour * HOUR + run.seconds - world.time))
                site.offered = {offer.url: offer for offer in run.offers}
                site.known |= site.offered
                site.fetched.clear()
                crawl = Crawl(world, site, f"p{number}", settings)
                world.run(lambda crawl=crawl: not crawl.is_running)  # type: ignore[misc]
                expected = model.run(world.time // HOUR, run.offers)
                expected[ROOT] = 1
                wrong = {
                    url: (site.fetched[url], expected[url])
                    for url in site.fetched.keys() | expected.keys()
                    if site.fetched[url] != expected[url]
                }
                assert not wrong, f"fetched and expected in run {number}, hour {hour}"
    finally:
        world.close()
