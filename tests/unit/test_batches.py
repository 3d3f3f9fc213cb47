"""The counts of a migration, and its pace."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.migrate.batches import BATCH, MemberBatch, MemberCounts, Pace


def test_batches_are_counted() -> None:
    first, second = MemberBatch(), MemberBatch()
    first.take("w", b"a")
    first.skip("x")
    second.skip("y")
    second.run_only += 1
    counts = MemberCounts()
    for batch in (MemberBatch(), first, second):
        counts.add(batch)
    assert counts == MemberCounts(read=3, skipped=2, run_only=1, example="x")


@given(st.integers(1, 10_000), st.lists(st.tuples(st.integers(0, 5_000), st.floats(0, 9))))
def test_the_pace_is_kept(rate: int, batches: list[tuple[int, float]]) -> None:
    """In the time since the first batch, no more entries than the rate allows."""
    now = 1000.0

    def sleep(seconds: float) -> None:
        nonlocal now
        assert seconds >= 0
        now += seconds

    pace = Pace(rate, lambda: now, sleep)
    assert 1 <= pace.batch <= min(rate, BATCH)
    total = 0
    for entries, work in batches:
        now += work
        pace.spend(entries)
        total += entries
        assert total <= rate * (now - 1000.0) + 1e-3


def test_without_a_rate_nothing_waits() -> None:
    pace = Pace(None, sleep=lambda _: pytest.fail("it waited"))
    pace.spend(10**9)
    assert pace.batch == BATCH
