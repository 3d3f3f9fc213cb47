"""Puts bugs into a copy of the package, and says which simulated run finds each.

``PYTHONHASHSEED=0 python -m simulation.mutants --help``, from ``tests``. The package had most of
these bugs once.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from support.paths import ROOT, TESTS

PACKAGE = ROOT / "scrapy_bloom"
#: Runs that look for a bug, until one finds it.
RUNS = (6, 24, 100, 400)


@dataclass(frozen=True)
class Mutant:
    """A bug.

    Args:
        what: describes it.
        file: in the package.
        old: text that occurs once in the file.
        new: takes its place.
        kind: of the runs that look for it.
    """

    what: str
    file: str
    old: str
    new: str
    kind: str


MUTANTS = (
    Mutant(
        "a claim is freed before its page is marked as crawled",
        "crawl/pages.py",
        "        self.handed_out_count += 1\n",
        "        self.handed_out_count += 1\n"
        "        for one in self._claims_of(request):\n"
        "            self._put(Op(OpKind.RELEASE, one))\n",
        "kills",
    ),
    Mutant(
        "the restart of the server is not noticed",
        "crawl/server.py",
        "self.restarted = self.epoch",
        "pass",
        "server",
    ),
    Mutant(
        "the cache is not voided after a restart",
        "crawl/writer.py",
        "self._local.clear()",
        "pass",
        "server",
    ),
    Mutant(
        "a page is finished before its request that cannot be stored",
        "crawl/pages.py",
        "                parent.waits += 1\n",
        "",
        "errbacks",
    ),
    Mutant(
        "a command is repeated after its reply was lost",
        "bloom/client/transport.py",
        "            raw = await _in_time(self._exchange(calls, words), timeout)\n",
        "            try:\n"
        "                raw = await _in_time(self._exchange(calls, words), timeout)\n"
        "            except FAILURES:\n"
        "                raw = await _in_time(self._exchange(calls, words), timeout)\n",
        "scheduled",
    ),
    Mutant(
        "pending requests of a living worker are picked up",
        "crawl/recovery.py",
        "return owner not in alive",
        "return True",
        "kills",
    ),
    Mutant(
        "an idle worker closes before its last scan",
        "crawl/recovery.py",
        "if not self._server.is_up or self._may_close_at == count:",
        "if count >= 0:",
        "kills",
    ),
    Mutant(
        "a worker that has died since the last heartbeat is not noticed",
        "crawl/recovery.py",
        "before, self._alive = self._alive, self._living()",
        "self._alive = before = self._living()",
        "kills",
    ),
    Mutant(
        "a CrawlSpider's requests are not stored, because of their link_text",
        "crawl/request_values.py",
        "if isinstance(value, str) and cls is not str and not _kind(cls):",
        "if cls is None:",
        "failing",
    ),
    Mutant(
        "a failed page of the window run is not retried",
        "crawl/pages.py",
        "elif kind is OpKind.CONFIRM and is_once:",
        "elif is_once:",
        "listings",
    ),
    Mutant(
        "the claim of a page that redirects to a known one stays",
        "crawl/pages.py",
        "        if self.is_seen:\n",
        "        if self.is_seen:\n            return\n        if self.is_seen:\n",
        "calm",
    ),
    Mutant(
        "requests from a queue on a disk, or in Redis, have lost their claims",
        "crawl/pages.py",
        "self._queued.pop(request, None) or self._claims_of(request)",
        "self._queued.pop(request, None) or {}",
        "kills",
    ),
    Mutant(
        "a page does not wait for what its errback has yielded",
        "crawl/outputs.py",
        "self._page = crawl.pages.begin(request) if crawl.pages else None",
        "self._page = crawl.pages.begin(request) "
        "if crawl.pages and not isinstance(response, Failure) else None",
        "errbacks",
    ),
    Mutant(
        "a page that robots.txt disallows has failed",
        "crawl/pages.py",
        "                return OpKind.RELEASE\n",
        "                return OpKind.FAIL\n",
        "calm",
    ),
    Mutant(
        "a pending request that is not stored belongs to the queue",
        "bloom/protocol/claims.py",
        "owner if request or not worker else worker",
        "owner",
        "errbacks",
    ),
    Mutant(
        "a request with dont_filter is not stored",
        "crawl/pages.py",
        "        if request.dont_filter:\n            self.keep(request)",
        "        pass",
        "errbacks",
    ),
    Mutant(
        "a page is marked as crawled although a pipeline has raised for its item",
        "crawl/outputs.py",
        "for request in self._by_response.get(id(response), ()):",
        "for request in ():",
        "faults",
    ),
    Mutant(
        "a page is marked as crawled before the feed with its item is stored",
        "crawl/delivery.py",
        "                page.waits += 1\n        if self._slot",
        "                pass\n        if self._slot",
        "feeds",
    ),
    Mutant(
        "a feed that cannot be stored counts as stored",
        "crawl/delivery.py",
        "    return arrived(await stored)\n",
        "    try:\n"
        "        return arrived(await stored)\n"
        "    except ConnectionError:\n"
        "        return arrived(None)\n",
        "feeds",
    ),
    Mutant(
        "a page that is gone has failed",
        "crawl/pages.py",
        "elif result.status not in self._crawled_statuses:",
        "elif result.status >= MISSING:",
        "calm",
    ),
)


def mutated(mutant: Mutant) -> str:
    """Return the text of a mutant's file, with the bug.

    Raises:
        ValueError: the text is not there, or more than once.
    """
    text = (PACKAGE / mutant.file).read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.file} has this {text.count(mutant.old)} times: {mutant.old}")
    return text.replace(mutant.old, mutant.new)


def find(mutant: Mutant, *more: str) -> str:
    """Return what the first run that finds a bug says, in a copy with it; "" if none does."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / PACKAGE.name
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / mutant.file).write_text(mutated(mutant))
        command = [sys.executable, "-m", "simulation", "--brief", "--kind", mutant.kind, *more]
        path = os.pathsep.join((directory, str(TESTS)))
        environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": path}
        done = subprocess.run(
            command, cwd=directory, env=environment, capture_output=True, text=True, check=False
        )
    if "runs in which" not in done.stdout:
        raise RuntimeError(f"{mutant.what}: {done.stdout[-2_000:]}{done.stderr[-2_000:]}")
    found = re.search(rf"^{mutant.kind} \d+: .*", done.stdout, re.MULTILINE)
    return found[0] if found else ""


def main() -> int:
    """Print which run finds each bug; return 1 if one is not found."""
    parser = argparse.ArgumentParser(
        prog="simulation.mutants", description="Says which runs find bugs put in on purpose."
    )
    parser.add_argument("--jobs", default=str(os.cpu_count()), metavar="N")
    parser.add_argument("--only", metavar="TEXT", default="", help="bugs with this in their name")
    options = parser.parse_args()
    missed, say = 0, partial(Console().print, markup=False, highlight=False, soft_wrap=True)
    for mutant in (mutant for mutant in MUTANTS if options.only in mutant.what):
        found = ""
        for runs in RUNS:
            more = ("--first", "1", "--runs", str(runs), "--jobs", options.jobs)
            found = found or find(mutant, *more)
        missed += not found
        say(f"{mutant.what}\n    {found or 'NOT FOUND'}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
