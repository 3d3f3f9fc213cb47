"""How often workers send what other workers send too, and whose turn it is: they share the looks.

So all workers together load the server with about as much as a few do, and a crawl of a few workers
still ends, and takes over claims, within a second.
"""

from functools import partial
from hashlib import blake2b

from scrapy_bloom.bloom.protocol import worker_protocol
from scrapy_bloom.bloom.protocol.worker_protocol import Turn
from scrapy_bloom.crawl import workers
from scrapy_bloom.crawl.server import Server
from scrapy_bloom.crawl.workers import Worker
from scrapy_bloom.settings import DEFAULT

#: Seconds between looks at the other workers while the crawl is idle, at least.
IDLE_SECONDS = 0.5
#: Such looks of all workers in a second, at most, unless each has to send a heartbeat more often.
IDLE_LOOKS_PER_SECOND = 40
#: Seconds between the looks at all claims of any two workers, of many.
LOOK_PAUSE_SECONDS = 1.0
#: Up to so many workers (one of them may be dead) look whenever they like; so many more are many.
FEW, MANY = 3, 20
#: Entries of workers that all workers read in a second, at most, if the set of workers changes.
READ_PER_SECOND = 5_000
#: Seconds between looks at all claims: failed URLs may be due.
LOOK_SECONDS = 600.0
#: Seconds until the crawl is asked again whether it has room for more requests.
ROOM_SECONDS = 0.5


def idle_seconds(workers: int, heartbeat: float) -> float:
    """Return the seconds between two looks of an idle worker at the others."""
    return max(IDLE_SECONDS, min(heartbeat, workers / IDLE_LOOKS_PER_SECOND))


def retry_seconds(workers: int, heartbeat: float, pause: float) -> float:
    """Return the seconds until a worker asks again whether it is its turn to look at all claims."""
    return max(pause, min(heartbeat, workers / IDLE_LOOKS_PER_SECOND))


def pause_seconds(workers: int, *, is_urgent: bool) -> float:
    """Return the seconds between the looks at all claims of any two workers.

    Idle workers share what there is; one that has something to do leaves it to another.
    """
    pause = LOOK_PAUSE_SECONDS * min(1.0, max(0, workers - FEW) / MANY)
    return pause if is_urgent else 10 * pause


def read_seconds(workers: int) -> float:
    """Return the seconds for which a worker uses the list of workers that it has read."""
    return min(LOOK_SECONDS, workers * workers / READ_PER_SECOND)


class LookTurns:
    """Takes turns with the other workers of a spider, on the server.

    Args:
        me: this worker.
        spider: name of its spider.
        server: of the filters.
    """

    def __init__(self, me: Worker, spider: str, server: Server) -> None:
        self._server = server
        keys = sorted(bloom.key for bloom in server.filters.by_window.values())
        common = "\0".join((me.shared_queue, *keys)).encode()
        #: What workers have in common that look for the same claims.
        self._group = workers.tag(spider) + blake2b(common, digest_size=8).hexdigest()
        #: When this worker's last look began, in Unix milliseconds on the server.
        self._begun = 0
        #: A look that began after this moment will do; 0 for none that has begun yet.
        self._since = 0

    def demand_new(self) -> None:
        """From now on, no look will do that has begun already."""
        self._since = 0

    async def take(self, pause: float, *, clean: bool) -> Turn:
        """Return whether it is this worker's turn, or another one has looked.

        Args:
            pause: seconds between the beginnings of two looks.
            clean: whether only a look will do that has found nothing.
        """
        begin = partial(worker_protocol.begin_look, group=self._group, since=self._since)
        turn = await self._server.run(DEFAULT, partial(begin, pause=pause, clean=clean))
        if turn.is_mine:
            self._begun, self._since = turn.now, turn.now - 1
        self._since = self._since or turn.now
        return turn

    async def end(self, *, clean: bool) -> None:
        """Note that this worker's look has ended, and whether it has found nothing."""
        end = partial(worker_protocol.end_look, group=self._group, begun=self._begun)
        await self._server.run(DEFAULT, partial(end, clean=clean))
