"""Has the ledgers of filters keep the requests of pages whose claims are ended. No I/O."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

from scrapy_bloom.bloom.protocol import ledger_protocol
from scrapy_bloom.bloom.protocol.ledger_protocol import Kept
from scrapy_bloom.crawl.jobs import Job
from scrapy_bloom.crawl.steps import Step, Steps


@dataclass(frozen=True, slots=True)
class LedgerWriter:
    """Decides which pages a ledger keeps.

    Args:
        windows: windows of the filters that have a ledger.
        owners: whose claims count.
        tag: the spider's: another one that shares the filter has other callbacks.
        tries: after how many a failed page is tried no more in this window.
    """

    windows: Collection[str]
    owners: tuple[str, ...]
    tag: str
    tries: int

    def kept(self, jobs: Sequence[Job]) -> Kept | None:
        """Return how the requests of pages of one window are kept; None if they are not."""
        if not jobs or jobs[0].window not in self.windows:
            return None
        return Kept(self.tag, {job.item: job.reason for job in jobs if job.reason})

    def add_failed(self, jobs: Sequence[Job]) -> Steps[None]:
        """Keep the requests of pages of one window that have failed, if this was the last try."""
        window, items = jobs[0].window, [job.item for job in jobs]
        if window in self.windows:
            kept = Kept(self.tag, {job.item: job.reason for job in jobs})
            add = partial(ledger_protocol.add_failed, items=items, kept=kept, tries=self.tries)
            yield Step(window, partial(add, owners=self.owners))
