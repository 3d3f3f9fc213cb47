"""Months of a site that loses links and pages, on a moved clock: each run is a real crawl.

A fifth of the pages lose all their links after two months, and a tenth vanish.
"""

import pytest
from support.clock import MovedServer

from benchmarks.ledger import POLICIES, Found, years

PAGES, WINDOW = 40, 2


def check(found: Found) -> None:
    """Each page was fetched once a window, and those that vanished are listed."""
    assert (found.overdue, found.never, found.twice) == (0, 0, 0)
    assert (found.wrong, found.unlisted, found.gone) == (0, 0, PAGES // 10)


@pytest.mark.parametrize("remember", [pytest.param('"crawled"', marks=pytest.mark.slow), '"items"'])
def test_pages_without_links_are_fetched_once_a_window(moved: MovedServer, remember: str) -> None:
    """Until they are gone for two windows; then those are fetched that are linked."""
    found = years(moved, POLICIES[f"{remember}, BLOOM_LEDGER"], PAGES, window=WINDOW)
    check(found)
    assert found.repeated == 0
    # In the last month, one page that is gone has no link; all others are due at any month.
    halves = 2 * WINDOW + 1
    assert found.fetched == PAGES + halves * PAGES // 2 - 1
    assert found.due == halves * PAGES // 2 - PAGES // 20
    assert found.proposed == halves * PAGES // 8 - 1


@pytest.mark.slow  # the simulator's kind "ledger" kills, too
def test_kill_nine_in_between_changes_nothing(moved: MovedServer) -> None:
    """Only pages that were not recorded yet are fetched again, by the next crawl."""
    policy = POLICIES['"items", BLOOM_LEDGER, kill -9']
    found = years(moved, {**policy, "CONCURRENT_REQUESTS": "2"}, PAGES, window=WINDOW)
    check(found)
    assert found.kills >= 5


@pytest.mark.slow
def test_without_a_ledger_they_are_never_fetched_again(moved: MovedServer) -> None:
    """So that the tests above can fail."""
    found = years(moved, POLICIES['"items"'], PAGES, window=WINDOW)
    assert found.never == PAGES // 5, "all of them, also by the last run"
    assert found.overdue > found.never
    assert found.gone == 0
    assert found.unlisted > 0
