"""What became of a trial, and whether that is as it should be."""

from dataclasses import dataclass, field

from chaos.schedule import FAULTS

CRAWLERS = 3
#: Requests that one crawler has under way at most.
CONCURRENT_REQUESTS = 4
#: Pages that a crawler has crawled and not yet confirmed: what it does in 0.1 seconds, at most.
UNCONFIRMED = 24
#: Pages that a crawler which is killed leaves to be fetched a second time.
PER_KILL = CONCURRENT_REQUESTS + UNCONFIRMED


@dataclass
class Outcome:
    """What became of a trial.

    Attributes:
        server: name of the server it ran on.
        struck: the faults that came while the crawl was running.
        outages: how often a crawler found the server gone, save for crawlers that were killed.
        lasting: how many pages are to be fetched once.
        hidden: pages that were never fetched, or fetched and lost.
        again: how often pages were fetched again that are to be fetched once.
        runs: how many runs without faults it took to find that nothing is left to do.
        quiet: whether that was found in the end.
        tracebacks: how often each error was logged with a traceback, in the run with faults.
        later: the same, in those without.
        seconds: how long it took.
        broken: what went wrong with the trial itself, as a traceback.
    """

    kind: str
    seed: int
    server: str
    remember: str
    struck: list[str] = field(default_factory=list)
    outages: int = 0
    lasting: int = 0
    hidden: list[str] = field(default_factory=list)
    again: dict[str, int] = field(default_factory=dict)
    runs: int = 0
    quiet: bool = False
    exit_codes: list[int | None] = field(default_factory=list)
    tracebacks: dict[str, int] = field(default_factory=dict)
    later: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    broken: str = ""

    @property
    def failed(self) -> bool:
        """Whether a page is hidden, the crawl never comes to rest, or fetches far too much."""
        return bool(self.hidden or self.broken) or not self.quiet or self.twice > self.most

    @property
    def twice(self) -> int:
        """How many fetches were one too many."""
        return sum(self.again.values())

    @property
    def most(self) -> int:
        """How many fetches may be one too many, after what has struck.

        In an outage a crawler knows what it has seen during that outage, and nothing else. When
        the server forgets, so do all crawlers; while its memory is being taken away, it does so
        repeatedly.
        """
        kills = self.struck.count("crawler_kill")
        losses = sum(FAULTS[fault].forgets for fault in self.struck)
        times = self.outages + losses + CRAWLERS * self.struck.count("evict")
        if kills and kills < len(self.struck):
            times += len(self.struck)  # nobody knows how many outages the killed ones had
        return times * self.lasting + kills * PER_KILL
