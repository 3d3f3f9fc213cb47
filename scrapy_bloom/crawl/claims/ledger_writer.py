"""Adds pages to the ledgers of their filters, before their claims are ended. No I/O."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from scrapy_bloom.bloom.protocol import ledger_protocol
from scrapy_bloom.bloom.protocol.ledger_protocol import Added
from scrapy_bloom.crawl.jobs import Job
from scrapy_bloom.crawl.steps import Step, Steps


@dataclass(frozen=True, slots=True)
class LedgerWriter:
    """Adds pages to ledgers: requests that their claims keep.

    Args:
        windows: windows of the filters that have a ledger.
        owners: whose claims count.
        tag: the spider's: another one that shares the filter has other callbacks.
        tries: after how many a failed page is tried no more in this window.
        added: is called with a window and what was added.
    """

    windows: Collection[str]
    owners: tuple[str, ...]
    tag: str
    tries: int
    added: Callable[[str, Added], object]

    def add_crawled(self, jobs: Sequence[Job]) -> Steps[None]:
        """Add pages of one window that are about to be recorded."""
        yield from self._add(jobs, 0, {job.item: job.reason for job in jobs if job.reason})

    def add_failed(self, jobs: Sequence[Job]) -> Steps[None]:
        """Add pages of one window that have failed, if this was the last try."""
        yield from self._add(jobs, self.tries, {job.item: job.reason for job in jobs})

    def _add(self, jobs: Sequence[Job], tries: int, missing: dict[bytes, str]) -> Steps[None]:
        if not jobs or jobs[0].window not in self.windows:
            return
        window, items = jobs[0].window, [job.item for job in jobs]
        add = partial(ledger_protocol.add, items=items, owners=self.owners, missing=missing)
        self.added(window, (yield Step(window, partial(add, tag=self.tag, tries=tries))))
