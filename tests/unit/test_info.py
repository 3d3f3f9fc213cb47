"""What a filter holds, in numbers: sums over blocks, generation by generation."""

from dataclasses import replace

import pytest

from scrapy_bloom.bloom.info import FilterInfo, describe
from scrapy_bloom.bloom.model.bitmap import SLACK_SECONDS, Bitmap
from scrapy_bloom.bloom.model.ring import Ring, View
from scrapy_bloom.bloom.model.schedule import DAY, Schedule
from scrapy_bloom.bloom.model.sizing import predicted_error_rate
from scrapy_bloom.bloom.model.spec import Options, Spec

NOW, SCHEDULE = 20_000 * DAY, Schedule.of("3 days", "1 day")
SPEC = Options(blocks=2, capacity=1000, seeds=10).create(SCHEDULE)
WRITE_ALL = Options(blocks=2, capacity=1000, seeds=10, ring="write-all").create(SCHEDULE)


def view(block: int, *counts: tuple[int, int], spec: Spec = SPEC) -> View:
    """Return a block with bitmaps that were opened so many days ago and have so many URLs."""
    bitmaps = dict[Bitmap, int]()
    for days, count in counts:
        opened = NOW - days * DAY
        number = sum(1 for one in bitmaps if one.opened == opened)
        size = spec.first_bitmap(SCHEDULE, opened, opened + DAY, 0)
        bitmaps[size._replace(number=number)] = count
    named = {bitmap.name: count for bitmap, count in bitmaps.items()}
    ring = Ring("default", block, spec.id, "1", tuple(sorted(bitmaps)), named)
    return ring.view(spec, SCHEDULE, NOW)


def test_a_window_is_the_sum_of_its_blocks_the_newest_generation_first() -> None:
    info = describe(SPEC, SCHEDULE, [view(0, (1, 30), (0, 5), (0, 2)), view(1, (1, 20), (0, 3))])
    newest, oldest = info.generations
    assert (newest.opened, newest.forgotten) == (NOW, NOW + 3 * DAY)
    assert (oldest.opened, oldest.forgotten) == (NOW - DAY, NOW + 2 * DAY)
    assert [(one.count, one.bitmaps) for one in info.generations] == [(10, 2), (50, 1)]
    assert (info.count, info.bitmaps, info.since) == (60, 2, NOW - DAY)
    assert info.memory == newest.memory + oldest.memory
    assert info.fill_ratio == newest.fill_ratio == 10 / newest.capacity
    (bitmap,) = view(0, (1, 30)).tested
    rates = [predicted_error_rate(count, bitmap.bits, 10) for count in (30, 20)]
    assert oldest.error_rate == pytest.approx(sum(rates) / 2)
    assert info.error_rate == pytest.approx(oldest.error_rate + newest.error_rate, rel=1e-3)


def test_a_generation_is_forgotten_when_its_last_shard_forgets_it() -> None:
    """Nobody knows its window, and runs with different ones have used its shards."""
    ring = view(0, (0, 5)).ring
    longer = ring.with_bitmaps(one._replace(expires=one.expires + DAY) for one in ring.bitmaps)
    rings = [ring, replace(longer, block=1)]
    (found,) = describe(SPEC, None, [one.view(SPEC, SCHEDULE, NOW) for one in rings]).generations
    assert found.forgotten == ring.bitmaps[0].expires + DAY - SLACK_SECONDS


def test_what_all_generations_have_counts_once() -> None:
    """With "write-all", the oldest one has all that is remembered."""
    views = [view(block, (1, 30), (0, 5), spec=WRITE_ALL) for block in range(2)]
    assert describe(WRITE_ALL, SCHEDULE, views).count == 60


def test_a_filter_is_the_sum_of_its_windows() -> None:
    some, none = describe(SPEC, SCHEDULE, [view(0, (0, 7))]), describe(SPEC, SCHEDULE, [])
    info = FilterInfo("k", SPEC, {"default": none, "week": some})
    assert (info.count, info.memory) == (7, some.memory)
    assert (none.count, none.memory, none.bitmaps, none.since, none.fill_ratio) == (0, 0, 0, 0, 0.0)
    assert none.error_rate == 0.0
