"""Checks at each step that no pending request is lost, and that no page has two workers.

A claim with a stored request ends only when its page is remembered or dropped. While its worker
lives, nobody else changes it, or downloads its page. The checks come right after the server has
carried out a batch, and right before a download. So they find a claim that ends too early even if,
by luck, its page is found again.
"""

from collections.abc import Sequence
from typing import Any

from scrapy_bloom.bloom.protocol import claims, scripts
from scrapy_bloom.crawl.owners import Worker
from simulation.kinds import Kind
from simulation.process import owner_of
from simulation.rule import ONCE, Rule
from simulation.site import Site, short
from simulation.world import URL, Claim, Words, World

#: Scripts and commands that end claims, or make them somebody else's.
CHANGES = {"release", "leave", "take", "wait", "recrawl", "add", "HDEL"}
#: Faults that leave no doubt which workers live.
CERTAIN = {"kill", "stop", "kill_sharer"}
#: Stands for a claim that there isn't.
NONE = Claim("", 0, "")


class Watch:
    """Watches the claims and the downloads of a run.

    Args:
        world: whose server is looked at.
        site: knows the pages, and which of them are dropped.
        kind: of the run.
    """

    def __init__(self, world: World, site: Site, kind: Kind) -> None:
        self._world, self._site, self._kind = world, site, kind
        self._rule = Rule(world, site)
        #: The claims before the batch that is carried out, by key and field.
        self._before: dict[tuple[bytes, str], Claim] = {}
        #: Field of each page that was handed out, and isn't settled -> its process.
        self._handed_out: dict[str, str] = {}
        #: Process and URL of each filtered request that was handed out.
        self._started: set[tuple[str, str]] = set()
        #: Workers that have removed their entries. A heartbeat under way may bring one back.
        self._ended: set[object] = set()

    # -- claims --

    def begin(self, commands: Sequence[Words]) -> None:
        """Note the claims before a batch of commands that may end some."""
        names = {self._world.script_of(words) or words[0] for words in commands}
        self._before = self._world.claims() if names & CHANGES else {}

    def look(self, name: str, commands: Sequence[Words], replies: Sequence[Any]) -> None:
        """Check what a batch has done to claims, and the pages that it has recorded.

        Args:
            name: of the process that has sent the batch.
            commands: the batch.
            replies: to the commands that were carried out.
        """
        self._rule.look(name, commands, replies)
        beats = [words for words in commands if self._world.script_of(words) == "beat"]
        self._ended |= {worker for *_, worker, seconds in beats if seconds in (0, "0")}
        if not self._before:
            return
        after, workers = self._world.claims(), self._workers()
        stored = {field for (_, field), claim in after.items() if claim.request}
        settling = [words for words in commands if self._world.script_of(words) == "release"]
        held = {field for words in commands for field in self._held_by(words)}
        for (key, field), before in self._before.items():
            claim = after.get((key, field), NONE)
            if before.request and field not in stored:
                is_settled = any(field in words for words in settling)
                self._check_end(name, field, before, is_settled=is_settled)
            if self._handed_out.get(field) == name and claim.owner[:1] in ("", "-"):
                del self._handed_out[field]
            if field in held:  # for example a retry, which another worker has put into the queue
                self._handed_out.pop(field, None)
            elif claim.owner != before.owner and (before.request or field in self._site.fields):
                self._check_owner(name, field, before, workers.get(before.owner, name))

    def _held_by(self, words: Words) -> Sequence[str]:
        """Return the fields of claims whose requests have come out of a queue that all use."""
        if self._world.script_of(words) != "take":
            return ()
        pairs = words[
            4 + len(scripts.load("take").arguments) :
        ]  # after the key, and those with names
        return [field for field, source in zip(pairs[::2], pairs[1::2], strict=True) if not source]

    def _check_end(self, name: str, field: str, claim: Claim, *, is_settled: bool) -> None:
        """Check that nobody needs the stored request of a claim that has ended."""
        site, (url, *_) = self._site, URL.findall(claim.request)
        if self._rule.is_recorded(url):  # also that of a filter whose header was lost
            return
        if not is_settled:
            is_over = claim.attempts >= claims.MAX_ATTEMPTS
        elif field.startswith(ONCE):
            is_over = (name, url) in site.done or url in site.redirects
        elif url in site.listed and (name, url) not in self._started:
            is_over = True  # it was read ahead, and never scheduled
        else:
            is_over = url in site.leads_nowhere or (self._kind.items < 1 and url in site.each_run)
        if not is_over:
            what = f"{name} ends the claim on {short(url)}, which is neither remembered nor dropped"
            self._world.violate(what, short(url))

    def _check_owner(self, name: str, field: str, claim: Claim, owner: str) -> None:
        """Check that a claim of a worker that lives was changed by itself."""
        if owner != name and {*self._kind.faults} <= CERTAIN:
            url = self._site.fields.get(field) or URL.findall(claim.request)[0]
            what = f"{name} ends the claim on {short(url)}, which {owner} has"
            self._world.violate(what, short(url))

    def _workers(self) -> dict[str, str]:
        """Return the processes of workers that live, by the owners of their claims."""
        found, now = dict[str, str](), self._world.time
        entries = self._world.execute("ZRANGE", "{k:0}:workers:pages", 0, -1, "WITHSCORES")
        for member, until in entries:
            worker, is_over = Worker.parse(member.decode()), member.decode() in self._ended
            if worker and until > now and not is_over and self._world.lives(f"p{worker.pid}"):
                found[owner_of(worker.id)] = f"p{worker.pid}"
        return found

    # -- downloads --

    def hand_out(self, name: str, url: str) -> None:
        """Check that no other worker has a page, and that it's not remembered.

        Args:
            name: of the process that is about to download it.
            url: of the page, whose request is filtered.
        """
        self._started.add((name, url))
        if self._kind.repeats or url in self._site.each_run:
            return
        field, workers = self._site.field(url), self._workers()
        owners = [one.owner for (_, own), one in self._world.claims().items() if own == field]
        others = {workers.get(owner, name) for owner in owners}
        before = self._handed_out.get(field, name)
        if before in workers.values():
            others.add(before)
        for other in others - {name}:
            what = f"{name} fetches {short(url)}, which {other} has"
            self._world.violate(what, short(url))
        if self._rule.is_recorded(url):
            self._world.violate(f"{name} fetches {short(url)}, which is remembered", short(url))
        self._handed_out[field] = name
