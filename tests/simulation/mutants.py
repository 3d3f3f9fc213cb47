"""Puts bugs into a copy of the package, and counts the simulated runs that find them.

``PYTHONHASHSEED=0 python -m simulation.mutants --help``, from ``tests``.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from support.paths import ROOT, TESTS

console = Console(width=100)
PACKAGE = ROOT / "scrapy_bloom"
SCRIPTS = "bloom/protocol/lua"


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
    kind: str = "faults"


MUTANTS = (
    Mutant(
        "a claim of another worker is taken",
        f"{SCRIPTS}/claim.lua",
        "if owner ~= ARGV[10] then return kept and '4' or 'a' end",
        "if owner ~= ARGV[10] then return '1', attempt end",
        "kills",
    ),
    Mutant(
        "a recorded URL can be claimed",
        f"{SCRIPTS}/claim.lua",
        "if has(i) then verdict = '0' break end",
        "if has(i) then break end",
        "calm",
    ),
    Mutant(
        "claims do not expire",
        f"{SCRIPTS}/claim.lua",
        "redis.call('EXPIREAT', claims, expiry)",
        "local _ = expiry",
    ),
    Mutant(
        "workers do not expire",
        f"{SCRIPTS}/heartbeat.lua",
        "redis.call('EXPIREAT', KEYS[1], ARGV[3])",
        "local _ = now",
    ),
    Mutant(
        "a page is recorded although its claim is gone, and those of its links",
        f"{SCRIPTS}/add.lua",
        "if field and not is_claimed(claims, field, ARGV[#ARGV]) then verdict = '8' end",
        "",
        "faults",
    ),
    Mutant(
        "a page is recorded and its claim stays",
        f"{SCRIPTS}/add.lua",
        "    call('HDEL', claims, field)\n",
        "",
    ),
    Mutant(
        "recorded URLs are not counted",
        f"{SCRIPTS}/add.lua",
        "count[i] = count[i] + 1",
        "count[i] = count[i]",
        "calm",
    ),
    Mutant(
        "a claim is taken over from an owner that has changed",
        f"{SCRIPTS}/reassign.lua",
        "owner and (owner == ARGV[1] or (ARGV[1] == '' and not failed))",
        "owner",
        "kills",
    ),
    Mutant(
        "two processes replace a ring at the same time",
        f"{SCRIPTS}/swap.lua",
        "if (redis.call('HGET', ring, 'v') or '') ~= ARGV[1] then return stale() end",
        "",
        "growing",
    ),
    Mutant(
        "a ring that was replaced is still used",
        f"{SCRIPTS}/prelude_layers.lua",
        "if current[1] ~= ARGV[1] or (now",
        "if (now",
        "growing",
    ),
    Mutant(
        "bitmaps that are gone are not noticed",
        f"{SCRIPTS}/prelude_layers.lua",
        "if not whole then",
        "if false then",
        "evicted",
    ),
    Mutant(
        "a restart of the server is not noticed",
        f"{SCRIPTS}/prelude_server.lua",
        "if id and not string.find(known, id, 1, true) then",
        "if false then",
        "server",
    ),
    Mutant(
        "pages that began before a restart are recorded",
        "crawl/server.py",
        "self.restarted = self.epoch",
        "self.restarted = 0",
        "server",
    ),
    Mutant(
        "items on a node that failed count as seen",
        "bloom/protocol/membership.py",
        "verdicts = [UNKNOWN] * len(items)",
        "verdicts = [SEEN.value] * len(items)",
        "cluster-scheduled",
    ),
    Mutant(
        "the oldest generation is dropped a period early",
        "bloom/model/ring.py",
        "kept = self.live(current, current - 1)[: MAX_GENERATIONS - 1]",
        "kept = self.live(current, current - 1)[:0]",
        "rotating",
    ),
    Mutant(
        "commands without a reply are sent again",
        "bloom/client/routes.py",
        "        if isinstance(reply, NoScriptError):\n",
        "        if isinstance(reply, NoScriptError | redis.TimeoutError):\n",
        "scheduled",
    ),
    Mutant(
        "links that were found in an outage are not claimed",
        "crawl/apply_jobs.py",
        "        if kind in (JobKind.CLAIM, JobKind.KEEP):\n",
        "        if kind in (JobKind.CLAIM, JobKind.KEEP):\n            return []\n        if 0:\n",
    ),
    Mutant(
        "an unknown outcome counts as seen",
        "bloom/protocol/cached_ring.py",
        "*(Verdict.NEW, Verdict.UNRECORDED, Verdict.UNKEPT, Verdict.UNKNOWN),",
        "*(Verdict.NEW, Verdict.UNRECORDED, Verdict.UNKEPT),",
        "scheduled",
    ),
    Mutant(
        "what is queued at the end is not written",
        "crawl/writer.py",
        "return self._is_late() or (self._server.is_up and not self._jobs)",
        "return True",
        "calm",
    ),
    Mutant(
        "a page does not wait for requests that are not stored",
        "crawl/pages.py",
        "waiting.pages.append(parent)\n            parent.unkept += 1",
        "pass",
    ),
    Mutant(
        "a page whose request failed is recorded",
        "crawl/pages.py",
        "if kind in _INSTEAD:",
        "if kind is JobKind.REPEAT:",
    ),
    Mutant(
        "a page that is crawled twice is recorded while the first crawl waits",
        f"{SCRIPTS}/claim.lua",
        "string.sub(request, 2) == page",
        "false",
        "forgetful",
    ),
    Mutant(
        "an old event of a look ends a newer claim",
        "crawl/pages.py",
        "if claim[0] == window and waiting.since < before and",
        "if claim[0] == window and",
    ),
    Mutant(
        "a page with an error status is recorded",
        "crawl/tracker.py",
        "flight.error is None and result.status in self._crawled_statuses",
        "flight.error is None",
    ),
    Mutant(
        "workers that live count as dead",
        "crawl/liveness.py",
        "worker.until <= self.now)",
        "worker.until <= self.now + 60)",
        "kills",
    ),
    Mutant(
        "the server's clock is compared with that of a client that is slow",
        "crawl/liveness.py",
        "worker.until <= self.now)",
        "worker.until <= self.now - 3_600)",
        "kills",
    ),
    Mutant(
        "claims of workers without an entry are never free",
        "crawl/liveness.py",
        "return not self.is_partial and known_for >= 2 * self.me.heartbeat",
        "return False",
    ),
    Mutant(
        "what has left a shared queue is never found",
        "crawl/liveness.py",
        "return is_older or self.now - claim.time >= 2 * ORPHANED_AFTER_SECONDS",
        "return False",
        "shared",
    ),
    Mutant(
        "claims without a request stay when their worker is dead",
        "crawl/sweep.py",
        "if claim.length or not view.is_unkept_lost(claim):",
        "if True:",
        "kills",
    ),
    Mutant(
        "requests that are put back lose their claims",
        "crawl/recovery.py",
        "set_claims(request, {**claims, key: len(text)})",
        "set_claims(request, {})",
        "kills",
    ),
    Mutant(
        "the claims of a redirect that leads to a known page stay",
        "crawl/tracker.py",
        "self._settler.settle(offer.inherited, kind, redirected)",
        "pass",
        "calm",
    ),
    Mutant(
        "a crawl ends before it has looked for what dead workers left",
        "crawl/recovery.py",
        "        if not self._server.is_up:\n            return True\n",
        "        return True\n",
    ),
    Mutant(
        "a look lets a crawl end that began before the other workers had shown that they live",
        "crawl/recovery.py",
        "if has_dead or (is_idle and not (was_proven and self._is_proven)):",
        "if has_dead:",
        "shared",
    ),
    Mutant(
        "another spider's claim keeps no request of this one",
        f"{SCRIPTS}/claim.lua",
        "if request ~= '' then return 'b', others .. line .. request end",
        "if request ~= '' then return 'b' end",
        "spiders-kills",
    ),
    Mutant(
        "a page without an item is recorded",
        "crawl/pages.py",
        "self._only_items and not is_kept and not (page and page.has_item)",
        "self._only_items and not page",
        "items-kills",
    ),
    Mutant(
        "no page has an item",
        "crawl/tracker.py",
        "                flight.has_item = True\n",
        "                pass\n",
        "items-kills",
    ),
    Mutant(
        "a page is recorded although a pipeline has raised for its item",
        "crawl/tracker.py",
        "if flight.item_error:\n            return",
        "if False:\n            return",
        "pipelines",
    ),
    Mutant(
        "a page is settled before its item has left the pipelines",
        "crawl/engine_hooks.py",
        "scraping = enqueue_scrape(result, request, *args)",
        "listener.finished(request, result)\n            "
        "scraping = enqueue_scrape(result, request, *args)",
        "pipelines",
    ),
    Mutant(
        "a chunk of the ledger is deleted before its requests are claimed",
        "crawl/ledger.py",
        "        new, is_complete = await self._decider.new_among(requests)",
        "        await self._drop(chunk)\n"
        "        new, is_complete = await self._decider.new_among(requests)",
        "ledger",
    ),
    Mutant(
        "requests of the ledger are due before their pages are forgotten",
        "bloom/model/ledger.py",
        "return ring.advance(now).generations[-1].opened",
        "return ring.advance(now).generations[0].opened",
        "ledger",
    ),
    Mutant(
        "a crawl ends although requests of the ledger are due",
        "crawl/crawl.py",
        "(self._ledger is None or self._ledger.may_close())",
        "True",
        "ledger",
    ),
    Mutant(
        "requests of the ledger stay with the rules that they had",
        "crawl/ledger.py",
        "        if await self._rules.have_changed():\n",
        "        if False:\n",
        "ledger-rules",
    ),
    Mutant(
        "packing deletes what was added to the ledger in between",
        f"{SCRIPTS}/ledger_pack.lua",
        "redis.call('LTRIM', KEYS[1], count, -1)",
        "redis.call('LTRIM', KEYS[1], 1, 0)",
        "ledger",
    ),
    # -- the event loop --
    Mutant(
        "the writer drops a job",
        "crawl/writer.py",
        "            self._jobs.take(jobs)\n            self._written",
        "            self._jobs.take([*self._jobs._jobs][: len(jobs) + 1])\n"
        "            self._written",
        "calm",
    ),
    Mutant(
        "pages are confirmed before their links are claimed",
        "crawl/writer.py",
        "            jobs = self._jobs.first_batch(",
        "            self._jobs.put_back(self._jobs.take_all()[::-1])\n"
        "            jobs = self._jobs.first_batch(",
        "outages",
    ),
    Mutant(
        "two rounds of writes are under way at a time",
        "crawl/writer.py",
        "await self._round(len(self._jobs))\n",
        "await asyncio.gather(*(self._round(len(self._jobs)) for _ in range(2)))\n",
        "calm",
    ),
    Mutant(
        "a round that fails is not repeated",
        "crawl/writer.py",
        "except BloomError:\n                raise\n",
        "except BloomError:\n                self._jobs.take(jobs)\n                raise\n",
        "lossy",
    ),
    Mutant(
        "an outage never ends",
        "crawl/writer.py",
        "                self._server.recover()\n",
        "                pass\n",
    ),
    Mutant(
        "a lookup's verdicts are given to another page",
        "crawl/lookups.py",
        "                    verdicts = await self._server.run(window, self._look_up(same))\n",
        "                    verdicts = await self._server.run(window, self._look_up(same))\n"
        "                    verdicts = verdicts[1:] + verdicts[:1]\n",
        "calm",
    ),
    Mutant(
        "two rounds of lookups are under way at a time",
        "crawl/lookups.py",
        "                if self._round is None:\n                    self._round = asyncio",
        "                if True:\n                    self._round = asyncio",
        "calm",
    ),
    Mutant(
        "a page is recorded whose lookup was cancelled",
        "crawl/outputs.py",
        "                    await self._decider.decide_many(lookups)\n",
        "                    try:\n"
        "                        await self._decider.decide_many(lookups)\n"
        "                    except asyncio.CancelledError:\n"
        "                        return\n",
    ),
    Mutant(
        "what a callback has yielded before it waits is lost when it is cancelled",
        "crawl/outputs.py",
        "        except BaseException:  # cancelled: what was yielded before is crawled\n"
        "            self._begin_hand_over()\n            raise\n",
        "        except BaseException:\n            return\n",
    ),
    Mutant(
        "outputs after an exception are lost",
        "crawl/outputs.py",
        "                continue  # as Scrapy does: a middleware may have more to yield\n",
        "                return\n",
    ),
    Mutant(
        "a reserved verdict is used twice",
        "crawl/local_state.py",
        "reserved = self._reserved.pop(key, None)",
        "reserved = self._reserved.get(key)",
        "calm",
    ),
    Mutant(
        "a lookup that joins another page's is not new to anybody",
        "crawl/lookups.py",
        "        for lookup in waiting:\n            if not self._joins(lookup):\n",
        "        for lookup in waiting:\n            if self._joins(lookup):\n",
        "calm",
    ),
    Mutant(
        "a claim stays whose page was crawled during its lookup",
        "crawl/decider.py",
        "                self._give_back(key, Reserved(verdict, lookup.length))\n",
        "                pass\n",
        "kills",
    ),
    Mutant(
        "a page with a request that another worker may lose is recorded",
        "crawl/apply_jobs.py",
        "                self._doubtful.add(job.page)\n",
        "                pass\n",
        "shared",
    ),
    Mutant(
        "a page is recorded that has waited for one which is left for later",
        "crawl/apply_jobs.py",
        "            self._doubtful.update(page.waiting)\n",
        "            pass\n",
        "pipelines",
    ),
    Mutant(
        "a page takes the answer to another page, whose request it is not",
        "crawl/lookups.py",
        "            self._ask_again()\n",
        "",
        "pipelines",
    ),
    Mutant(
        "after an outage the silence of others counts",
        "crawl/liveness.py",
        "self._distrusts_until = self._clock() + GRACE_SECONDS",
        "self._distrusts_until = 0.0",
    ),
    Mutant(
        "a crawl ends while pages are not written",
        "crawl/recovery.py",
        "if idle is None or self._idle != idle or self._jobs:",
        "if idle is None or self._idle != idle:",
        "forgetful",
    ),
    Mutant(
        "on a full server, jobs that need memory are dropped",
        "crawl/writer.py",
        "self._jobs.put_back(freeing + others)",
        "self._jobs.put_back(freeing)",
        "server-full",
    ),
    Mutant(
        "on a full server, a page is settled before its links are claimed",
        "crawl/jobs.py",
        "not (job.is_last and others) and ",
        "",
        "server",
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


def count_found(mutant: Mutant, runs: int, jobs: int, *more: str) -> int:
    """Return the number of runs in which something does not hold, in a copy with the bug."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / PACKAGE.name
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / mutant.file).write_text(mutated(mutant))
        command = [sys.executable, "-m", "simulation", "--brief", *more]
        command += ["--kind", mutant.kind, "--runs", str(runs), "--jobs", str(jobs)]
        path = os.pathsep.join((directory, str(TESTS)))
        environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": path}
        done = subprocess.run(
            command, cwd=directory, env=environment, capture_output=True, text=True, check=False
        )
    found = re.search(r"^(\d+) runs in which", done.stdout, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{mutant.what}: {done.stdout[-2_000:]}{done.stderr[-2_000:]}")
    return int(found[1])


def main(mutants: Sequence[Mutant] = MUTANTS) -> int:
    """Print how many runs find each bug; return 1 if one is not found."""
    parser = argparse.ArgumentParser(
        prog="simulation.mutants", description="Counts the runs that find bugs put in on purpose."
    )
    add = parser.add_argument
    add("--runs", type=int, default=100, metavar="N", help="for each bug")
    add("--most", type=int, default=1_000, metavar="N", help="for those that none of these finds")
    add("--jobs", type=int, default=os.cpu_count(), metavar="N")
    add("--only", metavar="TEXT", default="", help="bugs with this in their name")
    options = parser.parse_args()
    missed = 0
    for mutant in (mutant for mutant in mutants if options.only in mutant.what):
        for runs in (options.runs, options.most):
            if found := count_found(mutant, runs, options.jobs):
                break
        missed += not found
        line = f"{found} of {runs} runs ({mutant.kind}) find: {mutant.what}"
        console.print(line, markup=False, highlight=False)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
