"""Crawls beside other plug-ins: the pages and items of plain Scrapy, and all of them after a kill.

`make neighbours` installs all plug-ins, `make test` some of them. scrapy-deltafetch 2.1,
scrapy-splash 0.11, scrapy-crawl-once 0.1 and Frontera 0.8 are missing, because they don't start on
Scrapy 2.16 and later, whatever the dupefilter is.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from http.client import HTTPConnection
from http.server import ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from support.odd_site import IMPORTS, PLAIN_SCRAPY, Lab, LabOf, page, tree
from support.paths import TESTS
from support.plugins import BASE, KEEP, PLUGINS, ZyteAPI
from support.polling import until, until_it_works
from support.servers import free_port
from support.serving import serving

PAGES = 30


def installed(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not find_spec(module), reason=f"{module} isn't installed")


BESIDE_EACH = pytest.mark.parametrize(
    ("spider", "settings"),
    [pytest.param(*using, id=name, marks=installed(name)) for name, using in PLUGINS.items()],
)


@pytest.fixture(scope="module")
def zyte_api() -> Iterator[str]:
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), ZyteAPI)) as api:
        yield f"http://127.0.0.1:{api.server_port}/"


@pytest.fixture
def lab(lab_of: LabOf) -> Lab:
    lab = lab_of(tree(PAGES))
    lab.site.rest = lambda _: page()  # what inline requests ask for
    return lab


@pytest.fixture
def services(lab: Lab, zyte_api: str) -> dict[str, Any]:
    """Settings of all crawls. A proxy is the site itself."""
    return {"ITEM_PIPELINES": KEEP, "ROTATING_PROXY_LIST": lab.site.url, "ZYTE_API_URL": zyte_api}


def items(lab: Lab) -> Counter[str]:
    return Counter(item["path"] for item in lab.items())


@BESIDE_EACH
def test_the_same_pages_and_items_and_then_nothing_new(
    lab: Lab, services: dict[str, Any], spider: str, settings: dict[str, Any]
) -> None:
    """In the second run, a start page is fetched and yields its item, as in the first one."""
    crawl = partial(lab.crawl, BASE + spider, **services | settings)
    plain, items_of_plain = crawl(**PLAIN_SCRAPY), items(lab)
    first, items_of_both = crawl(), items(lab)
    assert items_of_plain == Counter([*tree(PAGES)])
    assert items_of_both - items_of_plain == items_of_plain
    assert first.hits == plain.hits
    second = crawl()
    assert {path.partition("?")[0] for path in second.hits} == {"/"}
    assert items(lab) - items_of_both == Counter(["/"])
    for done in (plain, first, second):
        assert "log_count/ERROR" not in done.stats, done.log


@BESIDE_EACH
def test_no_page_and_no_item_is_lost_with_a_kill(
    lab: Lab, services: dict[str, Any], spider: str, settings: dict[str, Any]
) -> None:
    lab.kill_midway(12, BASE + spider, **services | settings)
    assert lab.missing()
    done = lab.crawl(BASE + spider, **services | settings)
    assert items(lab).keys() == tree(PAGES).keys()
    assert "log_count/ERROR" not in done.stats, done.log


@installed("inline_requests")
def test_a_page_whose_inline_request_is_killed_is_crawled_again(
    lab: Lab, services: dict[str, Any]
) -> None:
    """All others are done by then, so that it would be marked as crawled if it didn't wait."""
    spider, _ = PLUGINS["inline_requests"]
    lab.site.hold("/1?two")
    with lab.start(BASE + spider, **services) as crawl:
        crawl.until(lambda: lab.site.held, "the page waits for its inline request")
        crawl.until(lambda: items(lab).keys() == tree(PAGES).keys() - {"/1"}, "the others are done")
        crawl.kill()
    lab.crawl(BASE + spider, **services)
    assert items(lab).keys() == tree(PAGES).keys()


# -- scrapyd --

CONFIGURATION = """
[scrapyd]
http_port = {port}
poll_interval = 0.1
max_proc = 2

[settings]
default = settings
"""
JOB = """
class JobSpider(Base):
    def is_used(self, response):
        return self.settings["LOG_FILE"]
"""


class Scrapyd:
    """A client of scrapyd's API."""

    def __init__(self, port: int) -> None:
        self.port = port

    def call(self, method: str, name: str, **values: str) -> Any:
        with closing(HTTPConnection("127.0.0.1", self.port)) as connection:
            query = urlencode({"project": "default", **values})
            connection.request(method, f"/{name}.json?{query}")
            reply = json.load(connection.getresponse())
        assert reply["status"] == "ok", reply
        return reply

    def schedule(self, setting: str = "A=1") -> str:
        return str(self.call("POST", "schedule", spider="odd", setting=setting)["jobid"])

    def until_idle(self) -> None:
        def is_idle() -> bool:
            jobs = self.call("GET", "listjobs")
            return not jobs["pending"] and not jobs["running"]

        until(is_idle, "all jobs end")


@contextmanager
def scrapyd(directory: Path, settings: dict[str, Any]) -> Iterator[Scrapyd]:
    """Run scrapyd in a project of one spider; at the end, it and its jobs are killed."""
    client = Scrapyd(free_port())
    (directory / "scrapy.cfg").write_text(CONFIGURATION.format(port=client.port))
    text = "".join(f"{name} = {value!r}\n" for name, value in settings.items())
    (directory / "settings.py").write_text(text)
    (directory / "spiders.py").write_text(IMPORTS + BASE + JOB)
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    with (
        (directory / "log").open("w") as log,
        subprocess.Popen(
            [sys.executable, "-m", "scrapyd"],
            cwd=directory,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        ) as process,
    ):
        try:
            until_it_works(partial(client.call, "GET", "listjobs"), ConnectionError)
            yield client
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@installed("scrapyd")
def test_jobs_of_scrapyd_share_the_work_also_of_one_that_is_killed(lab: Lab) -> None:
    settings = {
        "SPIDER_MODULES": ["spiders"],
        "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter",
        "BLOOM_REDIS_URL": lab.redis_url,
        "SITE_URL": lab.site.url,
        "ITEM_PIPELINES": KEEP,
        "ITEMS_FILE": str(lab.directory / "items"),
        "CONCURRENT_REQUESTS": 2,
    }
    lab.site.hold_after(12)
    with scrapyd(lab.directory, settings) as jobs:
        first = jobs.schedule()
        until(lambda: lab.site.held == 2, "the first job is under way")
        jobs.schedule(setting="START=")
        until(lambda: lab.site.held == 4, "the second one has got requests")
        jobs.call("POST", "cancel", job=first, signal="KILL")
        lab.site.release()
        jobs.until_idle()
        assert items(lab).keys() == tree(PAGES).keys()
        assert len(lab.fetched_twice()) <= 2
        before = lab.site.hits()
        jobs.schedule()
        jobs.until_idle()
        assert (lab.site.hits() - before).keys() == {"/"}
