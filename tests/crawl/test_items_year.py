"""Months of a news site on a moved clock: what each run fetches under BLOOM_REMEMBER = "items"."""

import pytest
from support.clock import MovedServer

from benchmarks.year import POLICIES, year


def test_each_story_once_a_window_and_no_new_one_missed(moved: MovedServer) -> None:
    """Two runs a month for eight months, with a window of six; no listing is marked."""
    found = year(moved, POLICIES['"items"'], 30, months=8)
    assert (found.missed, found.twice, found.overdue) == (0, 0, 0)
    assert len(found.times) == 9 * 30
    again = {path for path, months in found.times.items() if len(months) == 2}
    assert again == {f"/story/{number}" for number in range(90)}, "what is older than six months"


@pytest.mark.slow
def test_without_it_listings_that_are_not_marked_hide_what_is_new(
    moved: MovedServer,
) -> None:
    """So that the test above can fail."""
    assert year(moved, POLICIES['"crawled", listings not marked'], 120, months=2).missed > 0
