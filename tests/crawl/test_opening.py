"""A crawl that cannot begin says so in one line, fetches nothing, and its process fails."""

from pathlib import Path
from typing import Any

import pytest
import scrapy
from support.nursery import options_of
from support.odd_site import IMPORTS, PLAIN, SHARED_QUEUE, Lab, LabOf, page

#: Scrapy 2.13 ends with status 0, and Twisted prints the error, too.
IS_OLD = scrapy.version_info < (2, 14)
NO_SERVER = "redis://127.0.0.1:1/0"


@pytest.fixture(scope="module")
def lab(lab_of: LabOf) -> Lab:
    """A site that was crawled."""
    lab = lab_of({"/": page("/a"), "/a": page()})
    lab.crawl()
    return lab


def fail(lab: Lab, directory: Path, **settings: Any) -> str:
    """Run a crawl that does not begin; return its log."""
    before = lab.site.hits()
    (directory / "odd_spider.py").write_text(IMPORTS + PLAIN)
    given = {
        "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter",
        "SITE_URL": lab.site.url,
        "BLOOM_REDIS_URL": lab.redis_url,
        "REDIS_URL": lab.redis_url,
        "TELNETCONSOLE_ENABLED": False,
        "LOG_LEVEL": "INFO",
        **settings,
    }
    log = directory / "log"
    pid = lab.nursery.start(["runspider", "odd_spider.py", *options_of(given)], log, directory)
    status = lab.nursery.wait(pid)
    assert status or IS_OLD
    assert lab.site.hits() == before
    return log.read_text()


@pytest.mark.parametrize(
    "scheduler", [{}, {"JOBDIR": "job"}, SHARED_QUEUE], ids=["scrapy", "jobdir", "scrapy-redis"]
)
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"BLOOM_REDIS_URL": NO_SERVER}, "can't be reached"),
        ({"BLOOM_CAPCITY": 7}, "BLOOM_CAPACITY"),
        ({"BLOOM_BLOCKS": 3}, "BLOOM_BLOCKS"),
    ],
    ids=["no server", "no such setting", "other blocks"],
)
def test_the_reason_is_one_line(
    settings: dict[str, Any], says: str, scheduler: dict[str, Any], lab: Lab, tmp_path: Path
) -> None:
    log = fail(lab, tmp_path, **settings, **scheduler)
    assert "Traceback" not in log or IS_OLD
    (line,) = [line for line in log.splitlines() if "ERROR" in line or "CRITICAL" in line]
    assert "Bloom filter: the crawl does not start. " in line
    assert says in line


def test_another_component_that_fails_is_logged_by_scrapy(lab: Lab, tmp_path: Path) -> None:
    log = fail(lab, tmp_path, SCHEDULER="support.nothing.There")
    assert "Traceback" in log
    assert "the crawl does not start" not in log
