"""Puts bugs into a copy of the package, and says which run or test finds each of them.

``python -m simulation.mutants --help``, from ``tests``. The package had most of
these bugs once.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from support.paths import ROOT, TESTS

from simulation.kinds import KINDS

PACKAGE = ROOT / "scrapy_bloom"
#: Runs that look for a bug, from seed 1 on, until one finds it.
RUNS = (8, 40, 200)


class Mutant(NamedTuple):
    """A bug.

    Args:
        finder: finds it: a kind of simulated runs, or a test.
        what: describes it.
        file: in the package.
        old: text that occurs once in the file, whatever its white space.
        new: takes its place; all but its first line are indented like the line with the old one.
    """

    finder: str
    what: str
    file: str
    old: str
    new: str


#: Each bug: what finds it, a description, its file, the text without it, and with it.
TABLE = r"""
sharing: a request is given away and fetched, too
crawl/queue.py
- return None return self._queued.pop(request, {})
+ pass
+ return self._queued.pop(request, {})

sharing: a request that another worker gets is fetched while its claim is freed
crawl/queue.py
- del self._queued[request] self._given.add(request)
+ pass

sharing: a giver never stops giving
crawl/sharing.py
- if await self._server.run(self._claims.count_shares(self._me.group)):
+ if self._engine.is_closing:

sharing: an idle worker never ends
crawl/recovery.py
- gets_work |= idle.waits and self._roster.count_alike(idle=False) > 0
+ gets_work |= bool(self._roster.alive)

sharing: a share is lost with its taker
crawl/roster.py
- return owners - {self._me.group}
+ return owners

kills: a claim is freed before its page is marked as crawled
crawl/pages.py
- self.handed_out_count, self.priority = self.handed_out_count + 1, request.priority
+ self.handed_out_count, self.priority = self.handed_out_count + 1, request.priority
+ for one in claims:
+     self._put(Op(OpKind.RELEASE, one))

kills: pending requests of a living worker are picked up
crawl/leftovers.py
- return owner not in alive
+ return True

kills: an idle worker closes before its last scan
crawl/recovery.py
- if not self._server.is_up or (idle and idle.may_close):
+ if idle is None or idle is not None:

kills: a worker that has died since the last heartbeat is not noticed
crawl/roster.py
- has_died = before - self.alive
+ has_died = set[str]()

kills: requests from a queue on a disk, or in Redis, have lost their claims
crawl/queue.py
- return self._queued.pop(request, {}) or self.claims_of(request)
+ return self._queued.pop(request, {})

crawl/test_outages.py::test_a_page_that_ends_in_an_outage_is_ready_to_be_crawled_again: the restart of the server is not noticed
crawl/server.py
- self.restarted = self.lost = self.epoch
+ pass

crawl/test_outages.py::test_a_server_that_was_restarted_empty_knows_nothing: the cache is not voided after a restart
crawl/writer.py
- self._local.restart()
+ pass

errbacks: a page is finished before its request that cannot be stored
crawl/endings.py
- self.here[key].append(page) page.waits += 1
+ pass

errbacks: a pending request that is not stored belongs to the queue
bloom/protocol/claims.py
- owner if request or not worker else worker
+ owner

scheduled: a command is repeated after its reply was lost
bloom/client/transport.py
- raw = await _in_time(self._exchange(calls), timeout)
+ try:
+     raw = await _in_time(self._exchange(calls), timeout)
+ except FAILURES:
+     raw = await _in_time(self._exchange(calls), timeout)

items: a failed page of the window run is not retried
crawl/endings.py
- elif kind is OpKind.CONFIRM and is_once:
+ elif is_once:

server: a page is marked as crawled although a pipeline has raised for its item
crawl/outputs.py
- for request in self._by_response.get(id(response), ()):
+ for request in ():

feeds: a page is marked as crawled before the feed with its item is stored
crawl/delivery.py
- self._waiting.add(page) page.waits += 1
+ self._waiting.add(page)

redirects: a page is remembered that redirects to a page in progress
crawl/rule.py
- return Effect.WAIT
+ return Effect.SAFE

redirects: a page is remembered that redirects to one that has failed
crawl/rule.py
- return Effect.FAIL
+ return Effect.SAFE

redirects: a page is remembered that redirects to a page of another worker
crawl/rule.py
- return Effect.LEAVE
+ return Effect.SAFE

redirects: pages are remembered whose common target is dropped
crawl/rule.py
- return Effect.DROP if known is Known.DROPPED and is_redirect else Effect.SAFE
+ return Effect.SAFE

redirects: a link doesn't store a request whose URL only a redirect has led to
crawl/endings.py
- self._put(Op.claim(key, request)) if key not in self.here:
+ if key not in self.here:

crawl/test_vanished_claims.py::test_a_page_found_in_an_outage_that_fails_is_found_again: a URL that has failed is a duplicate once the outage is over
crawl/local.py
- if self.late.get(key[1]) not in (Known.STORED, Known.ELSEWHERE): # it has failed since
- return False if self.late.pop(key[1]) is Known.STORED:
+ if key[1] not in self.late:
+     return False
+ if self.late.pop(key[1]):

evictions: a page that fails is forgotten if its claim was evicted
bloom/protocol/lua/wait.lua
- elseif owner or request ~= '' then
+ elseif owner then

evictions: pages in progress are remembered although their requests were lost
crawl/server.py
- self.epoch += 1 self.lost = self.epoch
+ self.epoch += 1

crawl/test_vanished_claims.py::test_no_link_of_the_window_run_is_lost_with_a_server_restarted_empty: the window run outlives the queue that had its requests
crawl/local.py
- self.taken.clear()
+ pass

arguments: a run picks up what runs with other arguments have left
crawl/leftovers.py
- if one.waits and one.arguments in mine and self._is_due(one)
+ if one.waits and self._is_due(one)

objects: requests that share an object end one by one
crawl/endings.py
- if kind is OpKind.RELEASE or joint.state() == joint.before:
+ if joint is not None:

crawl/test_shared_work.py::test_a_worker_with_other_arguments_gets_nothing_and_ends: workers with other arguments share their work
crawl/workers.py
- alike[f"spider.{name}"] = json.dumps(value)
+ json.dumps(value)
"""  # noqa: E501


def read(entry: str) -> Mutant:
    """Read an entry of the table."""
    head, file, *lines = entry.strip().splitlines()
    finder, _, what = head.partition(": ")
    old, new = ("\n".join(one[2:] for one in lines if one[0] == sign) for sign in "-+")
    return Mutant(finder, what, file, old, new)


MUTANTS = [*map(read, TABLE.split("\n\n"))]


def mutated(mutant: Mutant) -> str:
    """Return the text of a mutant's file, with the bug.

    Raises:
        ValueError: the text is not there, or more than once.
    """
    text = (PACKAGE / mutant.file).read_text()
    found = [*re.finditer(r"\s+".join(map(re.escape, mutant.old.split())), text)]
    if len(found) != 1:
        raise ValueError(f"{mutant.file} has this {len(found)} times: {mutant.old}")
    start, end = found[0].span()
    line = text[text.rindex("\n", 0, start) + 1 : start]
    indent = line[: len(line) - len(line.lstrip())]
    return text[:start] + mutant.new.replace("\n", f"\n{indent}") + text[end:]


def find(mutant: Mutant, runs: int) -> str:
    """Return what finds a bug in a copy of the package that has it; "" if nothing does."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.pathsep.join((directory, str(TESTS)))
        copy = Path(directory) / PACKAGE.name
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / mutant.file).write_text(mutated(mutant))
        is_kind = mutant.finder in KINDS
        command = ["pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", mutant.finder]
        if is_kind:
            command = ["simulation", "--brief", "--kind", mutant.finder, "--first", "1"]
            command += ["--runs", str(runs)]
        done = subprocess.run(
            [sys.executable, "-P", "-m", *command],
            cwd=TESTS,
            env=os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
    found = re.search(rf"^(FAILED|{mutant.finder} \d+:) .*", done.stdout, re.MULTILINE)
    if not found and done.returncode:
        raise RuntimeError(f"{mutant.what}: {done.stdout[-2_000:]}{done.stderr[-2_000:]}")
    return found[0] if found else ""


def main() -> int:
    """Print what finds each bug, and how fast; return 1 if one is not found."""
    parser = argparse.ArgumentParser(
        prog="simulation.mutants", description="Says what finds bugs that are put in on purpose."
    )
    parser.add_argument("--only", metavar="TEXT", default="", help="bugs with this in their name")
    options = parser.parse_args()
    missed, say = 0, partial(Console().print, markup=False, highlight=False, soft_wrap=True)
    for mutant in (mutant for mutant in MUTANTS if options.only in mutant.what):
        began, tries = time.monotonic(), (find(mutant, runs) for runs in RUNS)
        found = next(filter(None, tries), "")
        missed += not found
        say(f"{mutant.what} ({time.monotonic() - began:.0f} s)\n    {found or 'NOT FOUND'}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
