"""The short form: one seeded schedule of a kind. `make chaos` runs as many as there is time."""

from pathlib import Path

import pytest
from example_site.build import Site

from chaos.schedule import CLUSTER, SENTINEL, SINGLE, Schedule, kinds_on
from chaos.site import STORIES
from chaos.trial import Trial

SEED = 1
#: All faults of one server's; a node whose replica lags; a primary that learns late. The others
#: are slow.
OFTEN = [(SINGLE, "mixed"), (CLUSTER, "failover_lag"), (SENTINEL, "failover_stall")]
SELDOM = [
    *((SINGLE, kind) for kind in kinds_on(SINGLE) if kind != "mixed"),
    (CLUSTER, "slots_move"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site.build(tmp_path_factory.mktemp("site"), STORIES)


@pytest.mark.parametrize(
    ("stand", "kind"), [*OFTEN, *(pytest.param(*one, marks=pytest.mark.slow) for one in SELDOM)]
)
def test_no_page_is_hidden_whatever_happens(
    site: Site, tmp_path: Path, stand: str, kind: str
) -> None:
    outcome = Trial(site, Schedule.random(kind, SEED, stand), "crawled", tmp_path).run()
    assert not outcome.broken
    assert outcome.struck
    assert outcome.hidden == outcome.excused
    assert not outcome.endless
    assert outcome.quiet, "the crawl does not come to rest"
    assert outcome.twice <= outcome.most, "pages are fetched again without need"
    assert outcome.alone <= outcome.most_alone, "a process fetches again what it fetched itself"


@pytest.mark.slow
def test_the_suite_finds_what_marking_at_scheduling_hides(site: Site, tmp_path: Path) -> None:
    """Otherwise the other test would show nothing."""
    outcome = Trial(site, Schedule.random("crawler_kill", SEED), "scheduled", tmp_path).run()
    assert outcome.struck
    assert outcome.hidden
    assert outcome.quiet
