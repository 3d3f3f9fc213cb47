"""A few schedules of each stand. `make chaos` runs as many as there is time."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.stand import CLUSTER, SENTINEL, SERVER, STANDS
from chaos.trial import Schedule, Trial

SEEDS = {SERVER: [42, 113], CLUSTER: [72], SENTINEL: [199]}
SCHEDULE = Schedule(SERVER, 1, "crawled", "memory", 2, [(0.5, "SIGKILL"), (1.0, "SIGINT twice")])


@pytest.mark.parametrize("kind", STANDS)
def test_no_page_and_no_item_is_missing_whatever_happens(
    kind: str, any_binary: str, tmp_path: Path
) -> None:
    with closing(STANDS[kind](any_binary)) as stand:
        for seed in SEEDS[kind]:
            directory = tmp_path / f"{seed}"
            directory.mkdir()
            outcome = Trial(Schedule.random(kind, seed), stand, directory).run()
            assert not outcome.has_failed, str(outcome)
            assert outcome.struck


def test_pages_that_are_remembered_too_early_are_found_missing(
    any_binary: str, tmp_path: Path
) -> None:
    """Otherwise the other test would show nothing."""
    with closing(STANDS[SERVER](any_binary)) as stand:
        outcome = Trial(replace(SCHEDULE, remember="scheduled"), stand, tmp_path).run()
    assert outcome.struck
    assert outcome.missing_pages
    assert outcome.missing_items
