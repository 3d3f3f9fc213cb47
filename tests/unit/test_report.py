"""What is logged: each message about rings once, and the last lines of a crawl."""

import logging
from dataclasses import replace

import pytest
from scrapy.utils.test import get_crawler
from support.infos import GENERATION, INFO

from scrapy_bloom.bloom.model.generations import Config
from scrapy_bloom.bloom.model.header import Header
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.schedule import SECONDS, Schedule, Span
from scrapy_bloom.bloom.protocol.ring_store import FILLING, ROTATED
from scrapy_bloom.crawl.advice import nothing_new
from scrapy_bloom.crawl.report import Report, RingEvents, summary
from scrapy_bloom.crawl.stats import Stats, Tally

BLOCKS, ROTATIONS = 2, 1_100
HEADER = Header("0" * 32, BLOCKS, tuple(range(10)))
MINUTES = Schedule(Span(240, SECONDS), Span(60, SECONDS))


def test_a_thousand_rotations_are_logged_and_not_remembered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    crawler = get_crawler()
    events = RingEvents(Report(Stats(crawler.stats)))
    ring = Ring.fresh(HEADER, Config(1_000, 1e-3, MINUTES), 0)
    rings = [ring, ring.sibling(1, 0)]
    with caplog.at_level(logging.INFO):
        for now in range(60, 60 * (ROTATIONS + 1), 60):
            rings = [ring.advance(now) for ring in rings]
            for event in (ROTATED, FILLING, FILLING):
                for ring in rings:
                    events.happened("shop:bloom", "default", event, ring)
    messages = [record.getMessage() for record in caplog.records]
    assert sum("has rotated" in message for message in messages) == ROTATIONS
    assert sum("filled to" in message for message in messages) == ROTATIONS
    assert len(events._said) <= 1_000
    assert crawler.stats.get_value("bloom/rotations") == ROTATIONS


# -- the last lines --


def test_a_summary_counts_the_run_and_what_is_left() -> None:
    assert summary(Tally(12, 3_400, 1), INFO) == (
        "12 new, 3,400 seen, 1 failed in this process; 335 URLs are remembered; the next rotation "
        "is on 2027-02-14 08:00 UTC"
    )
    versions = summary(Tally(12, 3_400, 1), INFO, has_versions=True)
    assert "; 335 URLs and versions of URLs are remembered; " in versions
    with_listings = summary(Tally(12, 3_400, 1, without_item=4), INFO)
    assert with_listings.startswith("8 new, 4 without an item, 3,400 seen, 1 failed in this")
    with_pending = summary(Tally(1, 0, 0, taken_over=23), INFO)
    assert with_pending.startswith("1 new, 23 that were pending, 0 seen")
    alone = summary(Tally(12, 3_400, 1, unknown=1, offline=3), None)
    assert alone == (
        "12 new, 4 crawled without the server's answer, 3,400 seen, 1 failed in this process; how "
        "many URLs are remembered is not known"
    )
    pending = replace(INFO, claims=3, generations=(replace(GENERATION, closes=0),))
    assert summary(Tally(0, 0, 0), pending).endswith(
        "335 URLs are remembered, 3 pending: later runs go on with them (scrapy bloom pending)"
    )


def test_where_nothing_was_new_the_reason_and_the_remedy_are_said() -> None:
    text = nothing_new(Tally(0, 5, 0), INFO)
    assert text is not None
    assert "each link that was found (5) is remembered, the oldest since 2027-01-15" in text
    assert "crawled again from 2027-03-16" in text
    assert 'BLOOM_REMEMBER = "items"' in text
    assert 'meta={"bloom_recrawl_after": "run"}' in text
    named = str(nothing_new(Tally(0, 5, 0), INFO, names_pages=True))
    assert named.startswith("nothing was new: each link that was found (5) is remembered")
    assert "crawled again from 2027-03-16" in named
    assert "name them" not in named
    all_pending = str(nothing_new(Tally(0, 5, 0), replace(INFO, count=0, claims=5)))
    assert all_pending.startswith("nothing was new: each link that was found (5) is pending: ano")
    for_ever = replace(INFO, generations=(replace(GENERATION, forgotten=0),))
    assert "crawled again" not in str(nothing_new(Tally(0, 5, 0), for_ever))
    claimed = str(nothing_new(Tally(0, 5, 0), replace(INFO, claims=1)))
    assert "UTC on; or it is pending (1 page): another worker is crawling it, or it" in claimed


def test_where_something_was_new_or_nothing_was_found_there_is_no_reason() -> None:
    assert nothing_new(Tally(1, 5, 0), INFO) is None
    listing_alone = Tally(1, 5, 0, without_item=1)
    assert str(nothing_new(listing_alone, INFO)).startswith("nothing was new: each link that was")
    assert nothing_new(Tally(0, 0, 0), INFO) is None
    assert nothing_new(Tally(0, 5, 0, taken_over=1), INFO) is None
    assert nothing_new(Tally(0, 5, 0, offline=1), INFO) is None
