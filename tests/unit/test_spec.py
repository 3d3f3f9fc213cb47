"""What a user asks of a filter, beside what is stored: unset is as stored, the rest is checked."""

import json
import math
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scrapy_bloom.bloom.errors import ConfigurationError, FilterMismatchError
from scrapy_bloom.bloom.model.schedule import Schedule
from scrapy_bloom.bloom.model.sizing import (
    MAX_GROWN_BITS,
    block_capacity,
    predicted_error_rate,
)
from scrapy_bloom.bloom.model.spec import FormatError, Options, Spec

NEVER = Schedule()
STORED = Spec(
    id="a1",
    blocks=4,
    seeds=(5, 7, 11),
    ring="write-newest",
    counting=False,
    capacity=1000,
    error_rate=1e-4,
)
FIELDS = json.loads(STORED.dump())


def test_a_new_filter_is_what_was_asked_for() -> None:
    usual = Options().create(NEVER)
    assert (usual.blocks, usual.ring, usual.counting) == (4, "write-newest", False)
    assert (usual.capacity, usual.error_rate) == (1_000_000, 1e-5)
    assert usual.seeds != Options().create(NEVER).seeds
    assert usual.id != Options().create(NEVER).id
    wanted = Options(blocks=7, ring="write-all", seeds=(1, 2, 3), capacity=9, error_rate=0.1)
    made = asdict(wanted.create(NEVER))
    assert made == {**asdict(wanted), "counting": False, "id": made["id"]}


def test_seeds_may_be_any_sequence() -> None:
    for seeds in ([1, 2, 3], range(1, 4)):
        options: dict[str, Any] = {"seeds": seeds}
        assert Options(**options) == Options(seeds=(1, 2, 3))


def test_more_generations_and_a_smaller_error_rate_need_more_seeds() -> None:
    years = len(Options().create(Schedule.of("5 years")).seeds)
    assert len(Options(error_rate=1e-9).create(NEVER).seeds) > years
    assert years > len(Options().create(NEVER).seeds)
    assert len(Options(seeds=3, capacity=10).create(NEVER).seeds) == 3


def test_sizes_may_change_and_what_is_not_given_is_as_stored() -> None:
    assert Options().applied_to(STORED, "k") == STORED
    same = Options(blocks=4, seeds=(5, 7, 11), ring="write-newest", counting=False)
    assert same.applied_to(STORED, "k") == STORED
    assert Options(seeds=3).applied_to(STORED, "k") == STORED
    sizes: dict[str, Any] = {"capacity": 7, "error_rate": 0.5}
    assert Options(**sizes).applied_to(STORED, "k") == replace(STORED, **sizes)


# -- the bitmaps of a generation that grows --


@given(
    capacity=st.integers(1_000, 5 * 10**7),
    error_rate=st.floats(1e-9, 0.5),
    blocks=st.integers(1, 4),
    ring=st.sampled_from(["write-newest", "write-all"]),
    window=st.sampled_from(["never", "1 week", "5 months"]),
)
@example(10**8, 1e-5, 1, "write-newest", "never")  # it starts with more than it grows by
def test_bitmaps_past_the_largest_keep_the_error_rate_of_the_filter(
    capacity: int, error_rate: float, blocks: int, ring: str, window: str
) -> None:
    schedule = Schedule.of(window)
    asked = Options(capacity=capacity, error_rate=error_rate, blocks=blocks, ring=ring)
    spec = asked.create(schedule)
    grown = [spec.first_bitmap(schedule, 0, 0, 0)]
    grown += (spec.next_bitmap(schedule, grown[-1]) for _ in range(40))
    rates = [predicted_error_rate(one.capacity, one.bits, len(spec.seeds)) for one in grown]
    tested = schedule.generations if spec.tests_all else 1
    assert math.fsum(rates) * tested <= error_rate * (1 + 1e-9)


@pytest.mark.parametrize("counting", [False, True])
@pytest.mark.parametrize("capacity", [1_000, 10**6, 10**8])
def test_bitmaps_double_up_to_the_largest_or_to_the_capacity(capacity: int, counting: bool) -> None:
    spec = Options(capacity=capacity, blocks=8, counting=counting).create(NEVER)
    grown = [spec.first_bitmap(NEVER, 0, 0, 0)]
    grown += (spec.next_bitmap(NEVER, grown[-1]) for _ in range(25))
    assert grown[0].capacity == pytest.approx(block_capacity(capacity, 8), rel=1e-3)
    for one, following in pairwise(grown):
        if following.memory > MAX_GROWN_BITS // 8:
            assert following.capacity == pytest.approx(grown[0].capacity, rel=1e-3)
        elif following.memory < MAX_GROWN_BITS // 8:
            assert following.capacity >= 2 * one.capacity


# -- errors --


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"blocks": 8}, "created with `blocks` = 4, which can't be changed. Remove `blocks`"),
        ({"seeds": 4}, "`seeds` = 3"),
        ({"seeds": (5, 7, 12)}, "other seeds"),
        ({"ring": "write-all"}, "`ring` = 'write-newest'"),
        ({"counting": True}, "`counting` = False"),
    ],
)
def test_what_is_fixed_and_differs_is_an_error_with_the_fix(
    asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(FilterMismatchError, match=f"^The filter 'k' .*{message}"):
        Options(**asked).applied_to(STORED, "k")


BAD: dict[str, list[Any]] = {
    "capacity": [0, -1, 10**13 + 1, 1.5, True, "many"],
    "error_rate": [0, 1, 1.0, -0.1, float("nan"), True, "high"],
    "blocks": [0, 16_385, 2.5, True],
    "seeds": [0, 65, "7", (), (1, 1), (-1,), (2**32,), (True,), range(65), range(10**12)],
    "ring": ["write-some", 1, []],
    "counting": [1, "yes", []],
}


#: In a stored spec, nothing may be missing either.
BAD_ANYWHERE: list[Any] = [None, [], "x", -1]


@pytest.mark.parametrize("name", BAD)
def test_a_value_out_of_its_range_is_an_error_that_names_it(name: str) -> None:
    value: Any
    for value in BAD[name]:
        with pytest.raises(ConfigurationError, match=name):
            Options(**{name: value})


def test_seeds_are_secret() -> None:
    assert "11" not in repr(STORED)
    with pytest.raises(ConfigurationError) as caught:
        Options(seeds=(987_654_321, 987_654_321))
    assert "987654321" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="'write-all' can't be combined"):
        Options(counting=True, ring="write-all")


def test_a_spec_reads_what_it_writes() -> None:
    for spec in (STORED, Options(counting=True).create(NEVER)):
        assert Spec.parse(spec.dump()) == spec


@pytest.mark.parametrize(
    "change",
    [
        *({name: value} for name in BAD for value in BAD_ANYWHERE),
        *({"id": ""}, {"id": 7}, {"id": "a b"}, {"more": 1}, {"seeds": [1, 1]}),
    ],
    ids=str,
)
def test_a_damaged_spec_is_an_error(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="its spec is damaged"):
        Spec.parse(json.dumps({**FIELDS, **change}))


def test_a_spec_of_another_version_is_named_as_such() -> None:
    with pytest.raises(FormatError, match=r"another version .* \(format 5, not 6\)\. Use that"):
        Spec.parse(json.dumps({**FIELDS, "format": 5}))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.text() | values.map(json.dumps) | st.integers(1, 10**5).map(lambda n: "[" * n))
@example('{"capacity": ' + "9" * 5_000 + "}")
def test_any_text_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="its spec is damaged"):
        Spec.parse(text)


@given(st.dictionaries(st.sampled_from([*FIELDS, "x"]), values, min_size=1, max_size=3))
def test_any_fields_are_a_spec_that_makes_bitmaps_or_an_error(change: dict[str, Any]) -> None:
    try:
        spec = Spec.parse(json.dumps({**FIELDS, **change}))
    except ValueError:
        return
    bitmap = spec.first_bitmap(Schedule.of("2 months"), 0, 2_678_400, 0)
    assert 0 < bitmap.memory <= 512 << 20
    assert spec.next_bitmap(NEVER, bitmap).capacity > 0
