"""A few schedules of each stand. `make chaos` runs as many as there is time."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.stand import CLUSTER, SENTINEL, SERVER, STANDS
from chaos.trial import Harvest, Outcome, Schedule, Trial

SEEDS = {SERVER: [42, 113], CLUSTER: [72], SENTINEL: [199]}
SCHEDULE = Schedule(SERVER, 1, "crawled", "memory", 2, [(0.5, "SIGKILL"), (1.0, "SIGINT twice")])
ITEMS = frozenset({("1", 0, "a"), ("1", 1, "b")})
PLAIN = Harvest(frozenset("01"), ITEMS)


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


@pytest.mark.parametrize(
    ("found", "pages", "items"),
    [
        (PLAIN, [], []),
        (replace(PLAIN, pages=frozenset("0")), ["1"], []),
        (replace(PLAIN, items=ITEMS - {("1", 1, "b")}), [], [("1", 1, "b")]),
    ],
    ids=["nothing", "a page", "an item"],
)
def test_what_is_missing_is_noticed(
    found: Harvest, pages: list[str], items: list[tuple[str, int, str]]
) -> None:
    outcome = Outcome(SCHEDULE)
    outcome.compare(PLAIN, found)
    assert outcome.missing_pages == pages
    assert outcome.missing_items == items
    assert outcome.has_failed == bool(pages or items)


@pytest.mark.parametrize(
    ("struck", "has_failed"),
    [(["SIGINT"], True), (["SIGKILL"], False), (["SIGINT", "stall"], False)],
    ids=["stop", "kill", "outage"],
)
def test_a_page_is_fetched_again_only_after_a_kill_or_an_outage(
    struck: list[str], has_failed: bool
) -> None:
    outcome = Outcome(SCHEDULE, struck=struck)
    outcome.count_again(["/1", "/2", "/1"])
    assert outcome.again == 1
    assert outcome.has_failed == has_failed
