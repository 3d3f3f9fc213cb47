"""A server's clock that was ahead and is corrected: what was written before it hides no page."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clock import MOVED_TO, MovedServer
from support.odd_site import SHARED_QUEUE, Lab, page, serve

DAY = 86_400
LINKS = [f"/{number}" for number in range(40)]


@pytest.fixture
def lab(moved: MovedServer, tmp_path: Path) -> Iterator[Lab]:
    """A lab whose server's clock is 30 days ahead."""
    moved.set_time(MOVED_TO.timestamp() + 30 * DAY)
    pages = {"/": page(*LINKS), **dict.fromkeys(LINKS, page())}
    with serve(pages) as site, Lab(site, moved.url, tmp_path) as lab:
        yield lab


def test_a_worker_of_another_machine_does_not_live_until_that_time(
    lab: Lab, moved: MovedServer
) -> None:
    """It was killed, and its heartbeat is still ahead."""
    lab.kill_midway(6, BLOOM_HEARTBEAT=1)
    (key,) = lab.client.keys("*:workers:*")
    (entry,) = lab.client.zrange(key, 0, -1, withscores=True)
    name, _, rest = entry[0].decode().split(" ", 2)
    lab.client.zrem(key, entry[0])
    lab.client.zadd(key, {f"{name} elsewhere {rest}": entry[1]})
    moved.set_time(MOVED_TO)
    lab.crawl(BLOOM_HEARTBEAT=1)
    assert not lab.missing()
    assert not lab.claims()


@pytest.mark.parametrize("way", ["jobdir", "scrapy-redis"])
def test_a_run_does_not_wait_for_that_time(lab: Lab, moved: MovedServer, way: str) -> None:
    """Its queue has lost the requests of a killed run, whose claims are still ahead."""
    jobdir = lab.directory / "job"
    settings = {"JOBDIR": jobdir} if way == "jobdir" else SHARED_QUEUE
    lab.kill_midway(6, **settings, BLOOM_HEARTBEAT=1)
    shutil.rmtree(jobdir, ignore_errors=True)
    lab.client.delete("odd:requests")
    moved.set_time(MOVED_TO)
    with lab.start(**settings, BLOOM_HEARTBEAT=1) as crawl:
        while not crawl.is_over:
            moved.move(0.01)
            time.sleep(0.01)
    assert not lab.missing()
    assert not lab.claims()
