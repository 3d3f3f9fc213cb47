"""The short form: one seeded schedule of a kind. `make chaos` runs as many as there is time."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.servers import SERVERS

from chaos.outcome import Outcome
from chaos.schedule import CLUSTER, SENTINEL, SINGLE, Schedule, kinds_on
from chaos.trial import Lab, Trial

SEED = 1
#: One of the network, of the server, of the crawlers, and all at once. The others are slow.
OFTEN = {"drop_after", "server_kill_aof", "crawler_kill", "mixed"}
#: A node killed, and one whose replica lags; slots that move; a primary that learns late.
REPLACED = [(CLUSTER, "failover_lag"), (CLUSTER, "slots_move"), (SENTINEL, "failover_stall")]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(SERVERS) as lab:
        yield lab


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[] if kind in OFTEN else pytest.mark.slow)
        for kind in kinds_on(SINGLE)
    ],
)
def test_no_page_is_hidden_whatever_happens(lab: Lab, tmp_path: Path, kind: str) -> None:
    judge(Trial(lab, Schedule.random(kind, SEED), "crawled", tmp_path).run())


@pytest.mark.parametrize(("stand", "kind"), REPLACED)
def test_no_page_is_hidden_when_servers_replace_each_other(
    lab: Lab, tmp_path: Path, stand: str, kind: str
) -> None:
    judge(Trial(lab, Schedule.random(kind, SEED, stand), "crawled", tmp_path).run())


def judge(outcome: Outcome) -> None:
    assert not outcome.broken
    assert outcome.struck
    assert outcome.hidden == outcome.excused
    assert not outcome.endless
    assert outcome.quiet, "the crawl does not come to rest"
    assert outcome.twice <= outcome.most, "pages are fetched again without need"
    assert outcome.alone <= outcome.most_alone, "a process fetches again what it fetched itself"


def test_the_suite_finds_what_marking_at_scheduling_hides(lab: Lab, tmp_path: Path) -> None:
    """Otherwise the other test would show nothing."""
    outcome = Trial(lab, Schedule.random("crawler_kill", SEED), "scheduled", tmp_path).run()
    assert outcome.struck
    assert outcome.hidden
    assert outcome.quiet
