"""Months of sites on a moved clock, each run a real crawl: what is fetched again, and when.

In each change's tests, the simulator compares such runs with a model.
"""

import pytest
from support.clock import MovedServer

from benchmarks import ledger, year

pytestmark = pytest.mark.slow
PAGES, WINDOW = 40, 2


def test_each_story_once_a_window_and_no_new_one_missed(moved: MovedServer) -> None:
    """Two runs a month for eight months, with a window of six; no listing is marked."""
    found = year.year(moved, year.POLICIES['"items"'], 30, months=8)
    assert (found.missed, found.twice, found.overdue) == (0, 0, 0)
    assert len(found.times) == 9 * 30
    again = {path for path, months in found.times.items() if len(months) == 2}
    assert again == {f"/story/{number}" for number in range(90)}, "what is older than six months"


def test_pages_without_links_are_fetched_once_a_window(moved: MovedServer) -> None:
    """Also if kills make pages be fetched again that were not recorded yet.

    A fifth of the pages lose all their links after two months, and a tenth vanish.
    """
    policy = ledger.POLICIES['"items", BLOOM_LEDGER, kill -9']
    found = ledger.years(moved, {**policy, "CONCURRENT_REQUESTS": "2"}, PAGES, window=WINDOW)
    assert (found.overdue, found.never, found.twice) == (0, 0, 0)
    assert (found.wrong, found.unlisted, found.gone) == (0, 0, PAGES // 10)
    assert found.kills >= 5
