"""The short form: one seeded schedule of each kind. `make chaos` runs as many as there is time."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import find_servers

from chaos.bounds import most_again
from chaos.schedule import KINDS, Schedule
from chaos.trial import Lab, Trial
from scrapy_bloom.settings import SETTINGS

SEED = 1


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab({name: binary for name, binary in find_servers().items() if binary}) as lab:
        yield lab


@pytest.mark.skipif("BLOOM_REMEMBER" not in SETTINGS, reason="not there yet")
@pytest.mark.parametrize("kind", KINDS)
def test_no_page_is_hidden_whatever_happens(lab: Lab, kind: str, tmp_path: Path) -> None:
    outcome = Trial(lab, Schedule.random(kind, SEED), "crawled", tmp_path).run()
    assert outcome.hidden == []
    assert outcome.quiet, "the crawl does not come to rest"
    assert outcome.twice <= most_again(outcome, lab.pages)


def test_the_suite_finds_what_marking_at_scheduling_hides(lab: Lab, tmp_path: Path) -> None:
    """Otherwise the other tests would show nothing."""
    outcome = Trial(lab, Schedule.random("crawler_kill", SEED), "scheduled", tmp_path).run()
    assert outcome.struck
    assert outcome.hidden
    assert outcome.quiet
