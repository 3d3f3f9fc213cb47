"""What is logged: what happens to rings once each, and the last lines of a crawl."""

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest
from scrapy.settings import Settings
from scrapy.utils.test import get_crawler

from scrapy_bloom.bloom.info import FilterInfo, describe
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.schedule import Schedule
from scrapy_bloom.bloom.model.spec import Options
from scrapy_bloom.crawl.monitor import MAX_LENGTH, Monitor
from scrapy_bloom.settings import BloomSettings

HOURLY = Schedule.of("4 hours", "1 hour")
SPEC = Options(capacity=1_000, blocks=2).create(HOURLY)
ROTATIONS = 1_000


def ring(now: int, count: int = 0) -> Ring:
    """A ring of two generations."""
    empty = Ring("default", 0, SPEC.id, "1", (), {})
    bitmaps = tuple(
        bitmap for time in (now - 3_600, now) for bitmap in empty.changes(SPEC, HOURLY, time).come
    )
    return Ring("default", 0, SPEC.id, "1", bitmaps, {bitmap.name: count for bitmap in bitmaps})


def monitor() -> tuple[Monitor, Any]:
    crawler = get_crawler()
    return Monitor(crawler.stats), crawler.stats


def test_each_rotation_is_logged_once_whatever_the_number_of_blocks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told, stats = monitor()
    caplog.set_level(logging.INFO)
    for now in range(3_600, 3_600 * (ROTATIONS + 1), 3_600):
        view = ring(now).view(SPEC, HOURLY, now)
        for _ in range(2):
            told.ring_changed("read", view, now)
            told.ring_changed("rotated", view, now)
    assert len(caplog.messages) == stats.get_value("bloom/rotations") == ROTATIONS
    assert not told._said, "nothing is kept of them"


def test_growth_and_loss_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    told, stats = monitor()
    caplog.set_level(logging.INFO)
    view = ring(7_200).view(SPEC, HOURLY, 7_200)
    for event in ("grown", "lost") * 3:
        told.ring_changed(event, view, 7_200)
    assert [message.rpartition(" ")[2] for message in caplog.messages] == [
        "memory",
        "[bloom-lost-shard]",
    ]
    assert stats.get_value("bloom/lost_shards") == 3


def test_windows_of_rules_count_in_totals_but_the_window_run_does_not() -> None:
    told, stats = monitor()
    for window in ("default", "1-day", "run"):
        told.count("new", window)
    counts = {"bloom/new": 2, "bloom/1-day/new": 1, "bloom/run/new": 1}
    assert stats.get_stats() == counts


def test_stats_get_their_counts_once_a_turn() -> None:
    told, stats = monitor()

    async def count() -> None:
        for _ in range(3):
            told.count("new")
        assert not stats.get_stats()
        await asyncio.sleep(0)
        assert stats.get_stats() == {"bloom/new": 3}
        told.count("new")
        await asyncio.sleep(0)

    asyncio.run(count())
    assert stats.get_stats() == {"bloom/new": 4}


def test_a_message_has_a_bounded_length(caplog: pytest.LogCaptureFixture) -> None:
    monitor()[0].warn_once("long", "x" * 1_000_000)
    assert len(caplog.text) < 2 * MAX_LENGTH


# -- the first line --


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "is empty, and never forgets"),
        ({"RECRAWL_AFTER": "1 month"}, "is empty, and forgets URLs after 1 half-month to 1 month"),
        ({"RECRAWL_AFTER": "7 seconds"}, "is empty, and forgets URLs after 7 seconds"),
        (
            {"RECRAWL_RULES": [("/a", "1 day"), ("/b", "run"), ("/c", "2 weeks")]},
            "is empty, and never forgets, except in windows of rules (1-day, 2-weeks)",
        ),
    ],
)
def test_the_first_line_says_when_urls_are_forgotten(
    settings: dict[str, Any], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    told, stats = monitor()
    caplog.set_level(logging.INFO)
    own = BloomSettings.read(Settings({f"BLOOM_{k}": v for k, v in settings.items()}), "shop")
    info = FilterInfo("shop:bloom", SPEC, {"default": describe(SPEC, HOURLY, [])})
    told.opened(own, "redis://a", info, 0, Counter())
    assert caplog.messages == [f"Bloom filter 'shop:bloom' on redis://a {says}"]
    assert stats.get_value("bloom/new") == stats.get_value("bloom/failed") == 0


# -- the last lines --


def closing(
    caplog: pytest.LogCaptureFixture,
    is_known: bool = True,
    items_only: bool = False,
    pending: int = 0,
    **done: Any,
) -> list[str]:
    """Return what is logged after some requests: stat -> count; ``run__new`` is of a window."""
    told, _ = monitor()
    for name, count in done.items():
        window, _, stat = name.rpartition("__")
        told.count(stat, window or "default", count)
    info = None
    if is_known:
        view = ring(7_200, 20).view(SPEC, HOURLY, 7_200)
        windows = {name: describe(SPEC, HOURLY, [view]) for name in ("default", "1-day")}
        info = FilterInfo("shop:bloom", SPEC, windows)
    settings = Settings({"BLOOM_ITEMS_ONLY": items_only})
    caplog.set_level(logging.INFO)
    caplog.clear()
    told.closing(BloomSettings.read(settings, "shop"), info, pending)
    return [message.removeprefix("Bloom filter 'shop:bloom': ") for message in caplog.messages]


END = "0 failed in this process; 80 URLs are remembered"


@pytest.mark.parametrize(
    ("done", "says"),
    [
        ({"new": 10, "pending": 1_022}, f"10 new, 0 duplicates, {END}, 1,022 pending"),
        (
            {"new": 33, "crawled": 33, "repeated": 2},
            f"33 new, 0 duplicates, 33 crawled, 2 to be crawled again, {END}",
        ),
        (  # another worker has found the page without an item
            {"new": 12, "picked_up": 11, "crawled": 23, "without_item": 1},
            f"12 new, 11 picked up, 0 duplicates, 23 crawled (1 without an item), {END}",
        ),
        ({"new": 2, "day__new": 1_400, "day__duplicates": 3}, f"1,402 new, 3 duplicates, {END}"),
        ({"new": 2, "run__new": 110}, f'2 new, 110 of the window "run", 0 duplicates, {END}'),
        (
            {"new": 2, "unknown": 1, "offline": 3},
            f"2 new, 4 counted as new without the server, 0 duplicates, {END}",
        ),
    ],
)
def test_the_last_line_counts_what_this_process_has_done(
    done: dict[str, Any], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert closing(caplog, **done) == [says]


def test_what_is_not_known_is_not_said(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = closing(caplog, is_known=False, new=1)
    assert line.endswith("0 failed in this process; an unknown number of URLs are remembered")


@pytest.mark.parametrize(
    ("done", "is_advised"),
    [
        ({"duplicates": 5}, True),
        ({}, False),
        ({"duplicates": 5, "new": 1}, False),
        ({"duplicates": 5, "run__new": 1}, False),
        ({"duplicates": 5, "picked_up": 1}, False),
        ({"duplicates": 5, "received": 1}, False),
        ({"duplicates": 5, "unknown": 1}, False),
        ({"duplicates": 5, "offline": 1}, False),
        ({"duplicates": 5, "items_only": True}, True),
        ({"duplicates": 5, "items_only": True, "new": 1}, False),
    ],
)
def test_where_nothing_was_new_the_reason_is_said(
    done: dict[str, Any], is_advised: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert any("nothing was new" in line for line in closing(caplog, **done)) is is_advised
