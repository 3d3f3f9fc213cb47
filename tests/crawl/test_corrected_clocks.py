"""A server's clock that was ahead and is corrected: what was written before it hides no page."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clock import MOVED_TO, MovedServer
from support.odd_site import SHARED_QUEUE, Lab, serve, star

DAY = 86_400


@pytest.fixture
def lab(moved: MovedServer, tmp_path: Path) -> Iterator[Lab]:
    """A lab whose server's clock is 30 days ahead."""
    moved.set_time(MOVED_TO.timestamp() + 30 * DAY)
    with serve(star(40)) as site, Lab(site, moved.url, tmp_path) as lab:
        yield lab


@pytest.mark.parametrize("way", ["jobdir", "scrapy-redis"])
def test_a_run_does_not_wait_for_that_time(lab: Lab, moved: MovedServer, way: str) -> None:
    """Its queue has lost the requests of a killed run, whose claims are still ahead."""
    jobdir = lab.directory / "job"
    settings = {"JOBDIR": jobdir} if way == "jobdir" else SHARED_QUEUE
    lab.kill_midway(6, **settings, BLOOM_HEARTBEAT=1)
    shutil.rmtree(jobdir, ignore_errors=True)
    lab.client.delete("odd:requests")
    moved.set_time(MOVED_TO)
    lab.crawl(**settings, BLOOM_HEARTBEAT=1)
    assert not lab.missing()
    assert not lab.claims()
