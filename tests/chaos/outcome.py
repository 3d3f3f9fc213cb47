"""What became of a trial, and whether that is as it should be."""

from dataclasses import dataclass, field

from chaos.schedule import CLUSTER, FAULTS, SINGLE
from chaos.site import Tally

CRAWLERS = 3
#: Requests that one crawler has under way at most.
CONCURRENT_REQUESTS = 4
#: Pages that a crawler has crawled and not yet confirmed: what it does in 0.3 seconds, while the
#: site is slow. It confirms them every 0.1 seconds, unless the machine is busy.
UNCONFIRMED = 8
#: Pages that a crawler which is killed leaves to be fetched a second time.
PER_KILL = CONCURRENT_REQUESTS + UNCONFIRMED
#: Pages that one key of the filter knows at most: there are 16 blocks, and so many pages in all.
PER_KEY = 20
_KILL = "crawler_kill"


@dataclass
class Outcome:
    """What became of a trial.

    Attributes:
        server: name of the server it ran on.
        struck: the faults that came while the crawl was running.
        outages: how often a crawler found the server gone, save for crawlers that were killed.
        unasked: how often one took a page without the server's word, save for those killed.
        undone: what could not be written when crawlers ended, save for those killed.
        closed: how many closed because the server was away.
        taken_over: how many pages crawlers took over from others, save for those that were killed.
        killed: for each crawler that was killed, how many pages it had asked for.
        evicted: how many keys the server has evicted.
        promotions: how often a replica has become a primary.
        new: how often it said "new", save for those killed.
        lasting: how many pages are to be fetched once.
        hidden: pages that were never fetched, or fetched and lost.
        excused: those of them for which that is documented, see ``lost_part``.
        endless: keys that do not expire.
        again: how often pages were fetched again that are to be fetched once.
        alone: of those fetches, how many were of a page that the same process had fetched.
        runs: how many runs without faults it took to find that nothing is left to do.
        quiet: whether that was found in the end.
        broken: what went wrong with the trial itself, as a traceback.
        stand: what the filter was on.
    """

    kind: str
    seed: int
    server: str
    remember: str
    struck: list[str] = field(default_factory=list)
    outages: int = 0
    unasked: int = 0
    undone: int = 0
    closed: int = 0
    taken_over: int = 0
    killed: list[int] = field(default_factory=list)
    evicted: int = 0
    promotions: int = 0
    new: int = 0
    lasting: int = 0
    hidden: list[str] = field(default_factory=list)
    excused: list[str] = field(default_factory=list)
    endless: list[str] = field(default_factory=list)
    again: dict[str, int] = field(default_factory=dict)
    alone: int = 0
    runs: int = 0
    quiet: bool = False
    broken: str = ""
    stand: str = SINGLE

    @property
    def failed(self) -> bool:
        """Whether a page is hidden, the crawl never comes to rest, or fetches too much."""
        wrong = self.twice > self.most or self.alone > self.most_alone or not self.quiet
        return bool(self.hidden != self.excused or self.broken or self.endless or wrong)

    @property
    def lost_part(self) -> bool:
        """Whether a cluster may have kept the record of a page, and lost the claims on its links.

        These are on other nodes. A crawler that lives has the links in its queue; one that was
        killed as well has not, and then they are hidden.
        """
        lost = self.promotions + self.evicted + sum(FAULTS[fault].forgets for fault in self.struck)
        return self.stand == CLUSTER and bool(lost)

    def judge_hidden(self, tally: Tally, hidden: list[str], killed: list[int]) -> None:
        """Note the hidden pages, and which of them are excused.

        Args:
            tally: what crawlers had.
            hidden: the pages.
            killed: processes that were killed.
        """
        self.hidden = hidden
        self.excused = tally.orphans(hidden, killed) if self.lost_part else []

    @property
    def twice(self) -> int:
        """How many fetches were one too many."""
        return sum(self.again.values())

    @property
    def forgotten(self) -> int:
        """How often the server may have forgotten a page.

        While keys are being evicted, it may forget a page as often as it is told of it: nothing is
        promised then but that this ends.
        """
        losses = sum(FAULTS[fault].forgets for fault in self.struck if fault != "evict")
        losses += self.promotions
        return losses * self.lasting + min(self.evicted * PER_KEY, self.new)

    @property
    def repeated(self) -> int:
        """How many pages crawlers may crawl again because a server was restarted, or replaced.

        Those under way, and not confirmed: the server may have lost the claims on their links.
        """
        restarts = sum(fault.startswith("server_kill") for fault in self.struck)
        return CRAWLERS * PER_KILL * (restarts + self.promotions)

    @property
    def most_alone(self) -> int:
        """How often processes may fetch again what they have fetched themselves.

        Never, as long as the server forgets nothing: while it answers, it knows what each has
        taken; while it does not, each knows that of itself. Save for this: of a page that two have
        taken without the server's word, the claim is one's. If that one ends before it has settled
        it, the other takes it over and does not notice that it has the page already.
        """
        is_left = bool(self.killed or self.closed or self.undone or self.taken_over)
        return self.forgotten + self.repeated + self.silent + self.unasked * is_left

    @property
    def silent(self) -> int:
        """How many pages were taken over from crawlers that live, and crawl them too.

        One whose heartbeats do not come for too long counts as dead: the server was away, or the
        machine is busy.
        """
        return self.taken_over if self.outages or not self.killed else 0

    @property
    def most(self) -> int:
        """How many fetches may be one too many, after what has struck.

        A page is fetched because a crawler has taken it. The server says "new" of a page once, and
        again whenever it has forgotten it. Every other taking is one too many at most:

        - one without the server's word, because its answer was lost or it was away. A crawler does
          that once for each page it was not told of: never for one it took itself. Were all
          crawlers alone with the site all of the time, each would fetch all pages, and so does the
          run after them if none could tell the server: that limits these.
        - one that is repeated by a later run because the server could not be told, when a crawler
          ended, that a page was crawled;
        - one that is taken over from a crawler that was killed, although the page was crawled:
          what that had under way, and not told the server yet. After an outage this can be all it
          fetched, and nobody knows what it took without the server's word;
        - one of ``repeated`` or ``silent``.
        """
        alone = self.unasked + self.undone
        if len(set(self.struck)) <= 1 or not self.killed:
            alone = min(alone, CRAWLERS * self.lasting)
        return self.forgotten + self.repeated + self.silent + alone + sum(self._killed())

    def _killed(self) -> list[int]:
        """Return what each crawler that was killed leaves to be fetched again at most."""
        if set(self.struck) == {_KILL}:
            return [min(PER_KILL, pages) for pages in self.killed]
        return self.killed
