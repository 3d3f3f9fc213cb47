"""A crawl that cannot begin says so in one line, fetches nothing, and its process fails."""

import json
from typing import Any

import pytest
import scrapy
from support.cli import unchanged
from support.filters import fields
from support.odd_site import SHARED_QUEUE, Lab, LabOf, page

NO_SERVER = "redis://:s3cret@127.0.0.1:1/0"


@pytest.fixture(scope="module")
def lab(lab_of: LabOf) -> Lab:
    """A site that was crawled."""
    lab = lab_of({"/": page("/a"), "/a": page()})
    lab.crawl()
    return lab


@pytest.mark.parametrize(
    "scheduler", [{}, {"JOBDIR": "job"}, SHARED_QUEUE], ids=["scrapy", "jobdir", "scrapy-redis"]
)
@pytest.mark.parametrize(
    ("settings", "says", "end"),
    [
        ({"BLOOM_REDIS_URL": NO_SERVER}, "can't be reached", " [bloom-not-ready]"),
        ({"BLOOM_CAPCITY": 7}, "Did you mean BLOOM_CAPACITY", "?"),
        ({"BLOOM_BLOCKS": 3}, "Remove BLOOM_BLOCKS", " [bloom-filter-mismatch]"),
    ],
    ids=["no server", "no such setting", "other blocks"],
)
def test_the_reason_is_one_line_the_last_one(
    settings: dict[str, Any], says: str, end: str, scheduler: dict[str, Any], lab: Lab
) -> None:
    log = lab.refused(**settings, **scheduler, LOG_LEVEL="INFO")
    assert "s3cret" not in log
    assert "Waiting for it" not in log
    is_old = scrapy.version_info < (2, 14)  # Twisted prints the error, too
    assert "Traceback" not in log or is_old
    (line,) = [line for line in log.splitlines() if "ERROR" in line or "CRITICAL" in line]
    assert line == log.strip().splitlines()[-1] or is_old
    assert "[scrapy_bloom.crawl.short_errors] " in line
    assert "Bloom filter: the crawl doesn't start. " in line
    assert says in line
    assert line.endswith(end)


def test_another_component_that_fails_is_logged_by_scrapy(lab: Lab) -> None:
    log = lab.refused(SCHEDULER="support.nothing.There")
    assert "Traceback" in log
    assert "the crawl doesn't start" not in log


def test_claims_are_refused_under_another_reactor(lab: Lab) -> None:
    log = lab.refused(TWISTED_REACTOR="twisted.internet.selectreactor.SelectReactor")
    assert "needs asyncio" in log
    assert "TWISTED_REACTOR" in log


def test_a_filter_of_another_format_stays_as_it_is(lab_of: LabOf) -> None:
    """Even if scrapy-redis shall delete it first."""
    lab = lab_of({"/": page()})
    lab.crawl()
    spec = json.loads(fields(lab.client, "odd:bloom")["spec"])
    lab.client.hset("{odd:bloom:0}:ring", "spec", json.dumps({**spec, "format": 7}))
    flushing = {**SHARED_QUEUE, "SCHEDULER_FLUSH_ON_START": True}
    for settings in ({}, flushing):
        with unchanged(lab.client, "{odd:bloom*"):
            log = lab.refused(**settings)
        assert "Use that version, or choose another BLOOM_KEY [bloom-filter-mismatch]" in log
