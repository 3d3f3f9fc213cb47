"""Runs on a clock that jumps, against exact maps of URL -> hour in which it was crawled last.

The model knows which pages there are and what each run is offered. It knows no filters.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
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
WINDOWS = {MAIN: (6, 1), SHORT: (2, 2)}


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
    """What is remembered: hours since the epoch, by window, URL and version; "" of any version."""

    remember: str
    recorded: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def run(self, hour: int, offered: Sequence[Offer]) -> set[str]:
        """Return what a run fetches."""
        new = [offer for offer in offered if not self._is_seen(offer, hour)]
        for offer in new:
            if offer.window != RUN and (offer.has_item or self.remember == "crawled"):
                for version in {offer.version, ""}:
                    self._record((offer.window, offer.url, version), hour)
        return {offer.url for offer in new}

    def _is_seen(self, offer: Offer, hour: int) -> bool:
        """Whether its window, or a longer one that it was in before, has it."""
        asked = {RUN: (), MAIN: (MAIN,), SHORT: (SHORT, MAIN)}[offer.window]
        return any(self._is_live((name, offer.url, offer.version), hour) for name in asked)

    def _is_live(self, key: tuple[str, str, str], hour: int) -> bool:
        if key not in self.recorded:
            return False
        length, period = WINDOWS[key[0]]
        return hour // period - self.recorded[key] // period < length // period

    def _record(self, key: tuple[str, str, str], hour: int) -> None:
        if not self._is_live(key, hour):  # to be seen again prolongs nothing
            self.recorded[key] = hour


class OfferingSite(Site):
    """A site whose start page links what a run is offered."""

    def __init__(self, world: World) -> None:
        super().__init__(world.rng, 1, 1.0, world.log, fails=False)
        self.offered: dict[str, Offer] = {}
        self.redirects = {}

    def has_item(self, response: Response) -> bool:
        return response.url != ROOT and self.offered[response.url].has_item

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


@examples(200)
@given(st.sampled_from(["crawled", "items"]), st.lists(runs, min_size=2, max_size=8))
def test_each_run_fetches_what_is_due(
    frozen: FrozenServer, remember: str, crawls: Sequence[Run]
) -> None:
    world = World(frozen, 0, Faults())
    settings = {
        **SETTINGS,
        "BLOOM_REMEMBER": remember,
        "BLOOM_RECRAWL_AFTER": "6 hours",
        "BLOOM_ROTATE_EVERY": "1 hour",
        "BLOOM_RECRAWL_RULES": [("/never/", SHORT)],
    }
    model, site = Model(remember), OfferingSite(world)
    try:
        with simulated(world):
            for number, run in enumerate(crawls):
                hour = (world.time // HOUR) + run.hours
                world.advance(max(0.0, hour * HOUR + run.seconds - world.time))
                site.offered = {offer.url: offer for offer in run.offers}
                site.fetched.clear()
                crawl = Crawl(world, site, f"p{number}", settings)
                world.run(lambda crawl=crawl: not crawl.is_running)  # type: ignore[misc]
                expected = model.run(world.time // HOUR, run.offers)
                assert site.fetched == dict.fromkeys([ROOT, *expected], 1), (number, run)
    finally:
        world.close()
