"""What a user asks for beside what is stored: unset is as stored, given is what is meant."""

from dataclasses import replace
from typing import Any

import pytest

from scrapy_bloom.bloom.errors import ConfigurationError, FilterMismatchError
from scrapy_bloom.bloom.model.generations import Config
from scrapy_bloom.bloom.model.header import WRITE_ALL, WRITE_NEWEST, Header
from scrapy_bloom.bloom.model.schedule import HALF_MONTHS, NEVER, Schedule, Span
from scrapy_bloom.bloom.options import FilterOptions

SIX_MONTHS = Schedule(Span(12, HALF_MONTHS), Span(4, HALF_MONTHS))
STORED = Config(5_000, 1e-4, SIX_MONTHS, growth=3, max_memory=1 << 20)
HEADER = Header("0" * 32, 4, (5, 7, 11))


def test_what_is_given_counts_and_the_rest_is_as_stored() -> None:
    given: Any
    for given in ({}, {"capacity": 7}, {"error_rate": 0.5}, {"growth": 0}, {"max_memory": 9}):
        for stored in (STORED, replace(STORED, schedule=None)):
            assert FilterOptions(**given).config(stored) == replace(stored, **given)


def test_window_and_period_of_a_filter_that_has_some() -> None:
    def schedule(**given: Any) -> Schedule | None:
        return FilterOptions(**given).config(STORED).schedule

    year, half, month = (Span(count, HALF_MONTHS) for count in (12, 6, 2))
    assert schedule() == schedule(window=year) == SIX_MONTHS
    assert schedule(period=half) == Schedule(year, half)
    # The stored period need not divide another window.
    five = Span(10, HALF_MONTHS)
    assert schedule(window=five) == Schedule(five, month)
    assert schedule(window=NEVER) is None


def test_a_period_without_a_window_or_that_does_not_go_with_it_is_refused() -> None:
    month, two, five = (Span(count, HALF_MONTHS) for count in (2, 4, 10))
    with pytest.raises(ConfigurationError, match=r'`period` = "1 month"'):
        FilterOptions(period=month).config(replace(STORED, schedule=None))
    with pytest.raises(ConfigurationError, match="does not go together"):
        FilterOptions(window=five, period=two).config(STORED)


def test_a_new_filter_is_what_was_asked_for() -> None:
    usual = FilterOptions().new_header(STORED)
    assert (usual.blocks, usual.order, usual.stagger) == (16, WRITE_NEWEST, False)
    wanted = FilterOptions(
        blocks=7, ring=WRITE_ALL, stagger=True, seeds=(1, 2, 3), fingerprinter="a.B"
    )
    header = wanted.new_header(STORED)
    assert (header.blocks, header.order, header.stagger) == (7, WRITE_ALL, True)
    assert (header.seeds, header.fingerprinter) == ((1, 2, 3), "a.B")
    wanted.check(header, "k")  # and is found to be


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"blocks": 8}, "stored with `blocks` = 4, but `blocks` is 8: remove `blocks`"),
        ({"seeds": 4}, "stored with `seeds` = 3, but `seeds` is 4"),
        ({"seeds": (5, 7, 12)}, "`seeds` = another list of 3, but `seeds` is a list of 3"),
        ({"ring": WRITE_ALL}, "`ring` = 'write-newest', but `ring` is 'write-all'"),
        ({"counting": True}, "`counting` = False, but `counting` is True: remove"),
    ],
)
def test_another_filter_than_the_stored_one_is_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(FilterMismatchError, match=message):
        FilterOptions(**asked).check(HEADER, "k")


def test_what_may_change_or_is_as_stored_is_no_mismatch() -> None:
    FilterOptions().check(HEADER, "k")
    as_stored = FilterOptions(blocks=4, seeds=(5, 7, 11), ring=WRITE_NEWEST, counting=False)
    as_stored.check(HEADER, "k")
    other = FilterOptions(capacity=1, error_rate=0.9, growth=0, max_memory=1, window=NEVER)
    replace(other, fingerprinter="another.One").check(HEADER, "k")


def test_a_counting_filter_is_created_as_one_and_does_not_write_to_all_generations() -> None:
    header = FilterOptions(counting=True).new_header(STORED)
    assert header.counting
    FilterOptions().check(header, "k")  # unset is as stored
    with pytest.raises(FilterMismatchError, match="`counting` = True, but `counting` is False"):
        FilterOptions(counting=False).check(header, "k")
    with pytest.raises(ConfigurationError, match=r'`ring` = "write-all" do not go together'):
        FilterOptions(counting=True, ring=WRITE_ALL).new_header(STORED)


# -- what a user gives --


@pytest.mark.parametrize(
    ("name", "value", "parsed"),
    [
        ("capacity", 1e6, 1_000_000),
        ("capacity", "1.5 million", 1_500_000),
        ("error_rate", "0.1%", 0.001),
        ("blocks", "4", 4),
        ("seeds", "7", 7),
        ("seeds", "5,7,11", (5, 7, 11)),
        ("window", "5 months", Span(10, HALF_MONTHS)),
        ("window", False, "never"),
        ("run", 7, "7"),
        ("stagger", 0, False),
        ("max_memory", "1.5 GiB", 3 << 29),
        ("ring", "write-all", WRITE_ALL),
    ],
)
def test_what_people_write_is_parsed(name: str, value: object, parsed: object) -> None:
    assert getattr(FilterOptions.parse(**{name: value}), name) == parsed


BAD: dict[str, list[object]] = {
    "capacity": [0, "many", "1.5", "5 GB", "1,5", "10 %", 1.5, True, [1], 10**20],
    "error_rate": [0, 1, "high", "1", "100%", "1k", float("nan"), True],
    "blocks": [0, "x", 16_385, 2.5],
    "seeds": [0, -1, 65],
    "window": [0, -1, "soon", "5 m", "2 fortnights", "1.2 months", True, []],
    "period": [0, "often", "never", "1.5 s"],
    "ring": ["write-some", 1],
    "stagger": ["perhaps", 2],
    "fingerprinter": ["\ud800", 7],
    "growth": [-1, 0.5, 65, "fast", True, float("inf")],
    "max_memory": [-1, "1 GX", "0.5 bytes", "1e9 GB", 1.5],
    "run": ["", " ", True, 1.5, "x" * 101],
}


@pytest.mark.parametrize("name", BAD)
def test_the_rest_is_refused_by_name_and_value(name: str) -> None:
    for value in BAD[name]:
        with pytest.raises(ConfigurationError, match=f"^{name} is ") as caught:
            FilterOptions.parse(**{name: value})
        assert f"{value!r:.60}" in str(caught.value)


@pytest.mark.parametrize("seeds", [[], [11, 22, 11], [11, 2**32], [11, True], list(range(65))])
def test_bad_seeds_are_refused_and_not_shown(seeds: list[object]) -> None:
    message = f"^seeds as a list has 1 to 64 different .* a list of {len(seeds)}$"
    with pytest.raises(ConfigurationError, match=message) as caught:
        FilterOptions.parse(seeds=seeds)
    assert "22" not in str(caught.value)
