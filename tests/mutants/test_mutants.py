"""Mistakes can be put in, and are found. All of them are for ``make mutants``."""

from datetime import date, timedelta

import pytest
import scrapy
from support.clock import why_not

from mutants.search import find
from mutants.table import MUTANTS, Mutant, mutated, of_day


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.what)
def test_each_mistake_can_still_be_put_in(mutant: Mutant) -> None:
    """The text that it replaces is still there, once."""
    assert mutated(mutant)


def test_names_are_different() -> None:
    assert len({one.what for one in MUTANTS}) == len(MUTANTS)


can_simulate = pytest.mark.skipif(
    scrapy.version_info < (2, 19) or why_not() is not None, reason="no crawl can be simulated"
)


@pytest.mark.parametrize(
    "finder", [pytest.param("sharing", marks=can_simulate), "unit/test_schedule.py"]
)
def test_a_mistake_is_found(finder: str) -> None:
    mutant = next(one for one in MUTANTS if one.finder.startswith(finder))
    assert finder in find(mutant, runs=[4])


def test_what_is_no_mistake_is_not_found() -> None:
    (mutant, *_) = (one for one in MUTANTS if one.file == "bloom/model/keys.py")
    assert find(mutant._replace(new=mutant.old, finder="unit/test_hashing.py")) == ""
    with pytest.raises(RuntimeError, match="no_such_test"):
        find(mutant._replace(finder="unit/test_hashing.py::no_such_test"))


def test_all_fast_ones_come_up_within_some_days_and_each_day_has_others() -> None:
    fast = [one for one in MUTANTS if not one.is_slow]
    days = -(-len(fast) // 10)
    chosen = [of_day(date(2026, 12, 28) + timedelta(day), 10) for day in range(days)]
    assert sorted(one for day in chosen for one in day) == sorted(fast)
    assert all(9 <= len(day) <= 10 for day in chosen)
