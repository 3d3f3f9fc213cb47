"""Applies the jobs of the queue, in their order. No I/O.

The event loop or the background thread asks the server: one of them at a time.
"""

import logging
from collections.abc import Callable, Sequence
from itertools import groupby
from threading import Lock

from scrapy_bloom.bloom.errors import BloomError, ServerFullError, tagged
from scrapy_bloom.crawl.apply_jobs import JobApplier
from scrapy_bloom.crawl.jobs import REPLAYED, Job, JobQueue, Steps, freeing_first, group

logger = logging.getLogger(__name__)

#: Jobs applied together at most.
MAX_BATCH = 500


class Flush:
    """Applies jobs.

    Args:
        applier: applies those of one kind.
        written: is called with jobs that were applied, and the items that could not be recorded.

    Attributes:
        queue: the jobs that wait.
        lock: is held while jobs are applied.
    """

    def __init__(
        self,
        applier: JobApplier,
        written: Callable[[Sequence[Job], Sequence[bytes]], object],
    ) -> None:
        self._applier, self._written = applier, written
        self.queue = JobQueue()
        self.lock = Lock()

    def steps(self, most: float, *, is_late: Callable[[], bool] = bool) -> Steps[None]:
        """Apply jobs; return after so many, when none is left, or when it is late.

        Raises:
            BloomError: the server failed. Jobs that were under way are applied again later: a
                second time changes nothing.
        """
        while self.queue and most > 0 and not is_late():
            jobs = self.queue.first_batch(MAX_BATCH)
            most -= len(jobs)
            try:
                unrecorded = yield from self._applier.apply(jobs)
            except ServerFullError:
                if not (yield from self._free_memory()):
                    raise
                continue
            except BloomError:
                raise
            except Exception:
                logger.exception(
                    tagged("job-failed", "Bloom filter: %s cannot be applied"), jobs[0]
                )
                self.queue.take(1)
                continue  # the others are tried again, without it
            self.queue.take(len(jobs))
            if unrecorded or jobs[0].kind in REPLAYED:
                self._written(jobs, unrecorded)

    def _free_memory(self) -> Steps[bool]:
        """Apply the jobs that give memory back on a full server; return whether there were any."""
        freeing, others = freeing_first(self.queue.take(len(self.queue)))
        is_freed = False
        try:
            for _, jobs in groupby(freeing.copy(), group):
                same = list(jobs)
                for start in range(0, len(same), MAX_BATCH):
                    batch = same[start : start + MAX_BATCH]
                    yield from self._applier.apply(batch)
                    del freeing[: len(batch)]
                    is_freed = True
        except ServerFullError:
            pass  # a filter has to grow first; the others may have made room for it
        finally:
            self.queue.put_back(freeing + others)
        return is_freed
