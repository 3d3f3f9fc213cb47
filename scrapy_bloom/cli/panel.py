"""What the page of ``scrapy bloom report`` shows of a filter."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest

from scrapy_bloom.bloom.model.ledger import GONE_AFTER
from scrapy_bloom.bloom.protocol.info import FilterInfo, Measurement
from scrapy_bloom.bloom.protocol.ledger_info import LedgerInfo
from scrapy_bloom.cli.claims import due_first, failed_pages, missing_pages
from scrapy_bloom.cli.info import measure
from scrapy_bloom.cli.output import Document
from scrapy_bloom.cli.server import FoundClaim, Stored
from scrapy_bloom.cli.session import CommandSession
from scrapy_bloom.crawl import workers

#: Pages that failed, or are gone, that the page shows at most.
SHOWN = 20


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker as the page shows it.

    Args:
        name: its host and process.
        spider: name of its spider, or the tag in its id.
        state: "alive", "dead" or "stopped".
        worker_claims: URLs that it has claimed.
    """

    name: str
    spider: str
    state: str
    worker_claims: int


@dataclass(frozen=True, slots=True)
class Panel:
    """What the page shows of a window's filter.

    Args:
        name: of the window.
        key: key prefix of the filter.
        info: None if there is no such filter.
        measured: None if nothing was measured.
        ledger: None if it has none.
        failed: URLs that failed, and wait until they are due.
        due: failed URLs that are due by now.
        next_due: when the next failed URL is due, as Unix time; 0 for none.
        elsewhere: claims of shared queues, and of workers that are not registered.
        workers: all workers.
        failed_pages: pages that failed, some of them, due first.
        gone_pages: pages that are gone, missing longest first.
    """

    name: str
    key: str
    info: FilterInfo | None = None
    measured: Measurement | None = None
    ledger: LedgerInfo | None = None
    failed: int = 0
    due: int = 0
    next_due: int = 0
    elsewhere: int = 0
    workers: Sequence[WorkerRow] = ()
    failed_pages: Sequence[Document] = ()
    gone_pages: Sequence[Document] = ()


def read_panel(session: CommandSession, stored: Stored) -> Panel:
    """Return what the page shows of a filter that is there."""
    now, known = stored.workers.now, workers.parse_all(stored.workers.entries)
    owned, due_times = Counter[str](), list[int]()

    def failures() -> Iterator[FoundClaim]:
        """Yield the claims of pages that failed; count all."""
        for one in stored.claims():
            if not one.claim.failed:
                owned[one.claim.owner] += 1
                continue
            due_times.append(one.due)
            if one.claim.was_tried:
                yield one

    first = nsmallest(SHOWN, failures(), due_first)
    rows = [
        WorkerRow(
            f"{worker.process.host}:{worker.process.pid}",
            session.spider_of(worker.id),
            "stopped" if not worker.until else "alive" if worker.until > now else "dead",
            owned[worker.id],
        )
        for worker in known.values()
    ]
    return Panel(
        stored.window,
        stored.key,
        stored.info,
        measure(session, stored),
        stored.ledger,
        failed=len(due_times),
        due=sum(time <= now for time in due_times),
        next_due=min((time for time in due_times if time > now), default=0),
        elsewhere=sum(count for owner, count in owned.items() if owner not in known),
        workers=sorted(rows, key=lambda row: (row.spider, row.name)),
        failed_pages=[*failed_pages(session, first)],
        gone_pages=[page for page in missing_pages([stored]) if page["windows"] >= GONE_AFTER],
    )
