"""One trial: three crawlers, a schedule of faults, then runs without faults until all is quiet."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from random import Random

from example_site.build import Site
from support.proxy import Proxy
from support.servers import SERVERS, Server

from chaos.crew import Crew
from chaos.failovers import KEY
from chaos.faults import OPTIONS, write_launcher
from chaos.outcome import CONCURRENT_REQUESTS, CRAWLERS, Outcome
from chaos.play import HungError, Play, await_end, await_first_pages
from chaos.schedule import Schedule
from chaos.site import SLOW, SlowSite, Tally, serve_slowly
from chaos.stands import STANDS, Stand
from chaos.witness import Testimony

#: Runs without faults, after which a crawl that is still not quiet has failed.
MOST_RUNS = 6
#: Seconds between heartbeats: a crawler that is silent for twice as long counts as dead. On a busy
#: machine, or while servers replace each other, heartbeats come late.
HEARTBEAT = 4.0
#: BLOOM_TIMEOUT of runs with faults, and of those without, however busy the machine is.
TIMEOUT, PATIENCE = 0.4, 30.0

SETTINGS: dict[str, object] = {
    "CONCURRENT_REQUESTS": CONCURRENT_REQUESTS,
    "TELNETCONSOLE_ENABLED": False,
    "EXTENSIONS": {"chaos.witness.Witness": 500},
    "BLOOM_KEY": KEY,
    "BLOOM_TIMEOUT": TIMEOUT,
    "BLOOM_HEARTBEAT": HEARTBEAT,
    "BLOOM_RECRAWL_AFTER": "1 year",
}


class Trial:
    """Servers and a site of its own, and what happens on them.

    Args:
        site: that is crawled.
        schedule: the faults.
        remember: `BLOOM_REMEMBER`.
        logs: directory for the crawlers' logs and the servers'.
        settings: further settings of the crawlers.
    """

    stand: Stand
    crew: Crew
    evicted = 0

    def __init__(
        self,
        site: Site,
        schedule: Schedule,
        remember: str,
        logs: Path,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.site, self.truth = site, site.truth()
        self.schedule = schedule
        self.logs = logs
        self.settings = {**SETTINGS, "BLOOM_REMEMBER": remember, **(settings or {})}
        server = Random(f"{schedule.kind}:{schedule.seed}").choice(sorted(SERVERS))
        self.outcome = Outcome(schedule.kind, schedule.seed, server, remember, stand=schedule.stand)

    @property
    def server(self) -> Server:
        """The server that a fault harms."""
        return self.stand.server

    @property
    def proxy(self) -> Proxy | None:
        """The proxy before it, if there is one."""
        return self.stand.proxy

    def run(self) -> Outcome:
        """Crawl with faults, then without; return what became of it."""
        with ExitStack() as stack:
            web = stack.enter_context(serve_slowly(self.site.directory))
            self.stand = stack.enter_context(self._make_stand())
            self.settings |= {"SITE_URL": web.url, "WITNESS_FILE": self.logs / "witness"}
            self.settings |= self.stand.settings
            try:
                self._crawl_with_faults(web)
                self.stand.calm()
                self.outcome.promotions = self.stand.promotions()
                self._crawl_until_quiet(web)
            except HungError as error:
                self.outcome.broken = str(error)
            finally:
                self.stand.save_logs(self.logs)
            self._conclude(Tally(web.hits(), Testimony.read(self.logs / "witness")))
        return self.outcome

    def _conclude(self, tally: Tally) -> None:
        truth, outcome = self.truth, self.outcome
        outcome.lasting = len(truth.lasting)
        outcome.judge_hidden(tally, tally.hidden(truth), self.crew.killed)
        outcome.again = tally.again(truth)
        outcome.alone = tally.alone(truth)
        outcome.killed = [tally.asked(pid, truth) for pid in self.crew.killed]

    def _make_stand(self) -> Stand:
        binary = write_launcher(SERVERS[self.outcome.server], self.logs)
        options = [OPTIONS.get(event.fault, ()) for event in self.schedule.events]
        return STANDS[self.schedule.stand](
            binary,
            max(options, key=len, default=()),
            proxied=self.schedule.proxied,
        )

    def _crawl_with_faults(self, web: SlowSite) -> None:
        web.slow = SLOW[self.schedule.stand]
        self.crew = Crew(CRAWLERS, self.settings, self.logs, "faults")
        await_first_pages(self.crew, web)
        play = Play(self.schedule, self, self.crew, web.hurry)
        try:
            play.run()
        finally:
            self.outcome.struck = [event.fault for event in play.struck]
            self.outcome.outages = self.crew.stat("bloom/outages")
            self.outcome.unasked = self.crew.stat("bloom/offline") + self.crew.stat("bloom/unknown")
            self.outcome.taken_over = self.crew.stat("bloom/taken_over")
            self.outcome.undone = self.crew.undone()
            self.outcome.closed = self.crew.closed()
            self.outcome.evicted = self.evicted
            self.outcome.new = self.crew.stat("bloom/new")
            web.hurry()

    def _crawl_until_quiet(self, web: SlowSite) -> None:
        """Run single crawlers until one finds nothing to do, and no claim is left."""
        settings = {**self.settings, "BLOOM_TIMEOUT": PATIENCE}
        done = False
        while self.outcome.runs < MOST_RUNS and not done:
            self.outcome.runs += 1
            before = web.hits()
            crew = Crew(1, settings, self.logs, f"run-{self.outcome.runs}")
            await_end(crew)
            found = (web.hits() - before).keys() & self.truth.lasting
            self.outcome.quiet = not found and not self._pending()
            self.outcome.endless = self._endless()
            if crew.exit_codes != [0]:
                self.outcome.broken = "a crawler ended with an error although nothing was wrong"
            done = self.outcome.quiet or bool(self.outcome.broken)

    def _pending(self) -> int:
        """Return how many claims there are, other than of pages that failed."""
        owners = []
        for server in self.stand.primaries:
            with server.client() as client:
                for key in client.scan_iter("*:claims:*"):
                    owners += [claim.split()[0] for claim in client.hvals(key)]
        return sum(not owner.startswith(b"-") for owner in owners)

    def _endless(self) -> list[str]:
        """Return the keys that do not expire."""
        endless = []
        for server in self.stand.primaries:
            with server.client() as client:
                endless += [str(key) for key in client.scan_iter("*") if client.ttl(key) == -1]
        return endless
