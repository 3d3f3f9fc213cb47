"""What is logged about rings: each message once, and nothing is kept of old generations."""

import logging

import pytest
from scrapy.utils.test import get_crawler

from scrapy_bloom.bloom.model.generations import Config
from scrapy_bloom.bloom.model.header import Header
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.schedule import SECONDS, Schedule, Span
from scrapy_bloom.bloom.protocol.ring_store import FILLING, ROTATED
from scrapy_bloom.crawl.report import Report, RingEvents
from scrapy_bloom.crawl.stats import Stats

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
