"""Real crawls of the example project's site, each in a process of its own."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from example_site.serve import SiteServer

from support.nursery import options_of, shared_nursery
from support.paths import PROJECT

#: Scrapy as it comes, without scrapy-bloom.
PLAIN_SCRAPY = {"DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"}
#: Matches the URLs of the site's listings.
LISTING = r"^https?://[^/]+(/([^?#]*/)?|/archive|/calendar)([?#]|$)"
#: Seconds that anything may take. Nothing is expected to be as slow.
CRAWL_TIMEOUT = 300
#: What is called before a page is sent, by the number of the request.
Actions = Mapping[int, Callable[[], object]]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the project's directory, as a user would."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=PROJECT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=CRAWL_TIMEOUT,
        check=False,
    )


def options(web: SiteServer, settings: dict[str, Any]) -> list[str]:
    """Return the command-line options for a crawl of a site under settings."""
    return options_of({"SITE_URL": web.url, "TELNETCONSOLE_ENABLED": False, **settings})


def run_scrapy(
    *arguments: str, directory: Path = PROJECT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Scrapy in a directory as `run("-m", "scrapy", ...)` does, without importing.

    The process is forked from one that has imported Scrapy already.
    """
    nursery = shared_nursery()
    with TemporaryDirectory() as output:
        out, err = Path(output, "out"), Path(output, "err")
        pid = nursery.start(list(arguments), out, directory, errors=err, environment=environment)
        code = nursery.wait(pid, CRAWL_TIMEOUT)
        return subprocess.CompletedProcess(arguments, code, out.read_text(), err.read_text())


def crawl(spider: str, web: SiteServer, directory: Path, **settings: str) -> dict[str, Any]:
    """Run a spider; return its stats."""
    stats = directory / "stats.json"
    done = run_scrapy("crawl", spider, *options(web, {"STATS_FILE": stats, **settings}))
    assert done.returncode == 0, done.stderr
    assert "ERROR" not in done.stderr
    found: dict[str, Any] = json.loads(stats.read_text())
    return found


def crawl_and_act(
    web: SiteServer, directory: Path, actions: Actions, **settings: str
) -> dict[str, Any]:
    """Crawl, and act when so many pages are asked for, before they are sent; return the stats.

    The log is in the directory, also while the crawl runs.
    """
    count, lock = web.count, threading.Lock()
    stats, log = directory / "stats.json", directory / "log"
    log.unlink(missing_ok=True)
    line = options(web, {"STATS_FILE": stats, "LOG_FILE": log, **settings})

    def count_and_act(url: str) -> None:
        with lock:
            count(url)
            actions.get(web.hits().total(), int)()

    with mock.patch.object(web, "count", count_and_act):
        done = run_scrapy("crawl", "links", *line)
    assert done.returncode == 0, done.stderr + log.read_text()
    assert "] ERROR: " not in log.read_text()
    result: dict[str, Any] = json.loads(stats.read_text())
    return result


def taken_over(log: str) -> int:
    """Return how many pages workers have taken over, by the stats in their logs.

    On a busy machine, what one of them has crawled may wait to be recorded for longer than an idle
    one waits for it: such pages are fetched twice.
    """
    return sum(map(int, re.findall(r"'bloom/(?:[\w-]+/)?taken_over': (\d+)", log)))
