"""A server, a proxy in front of it and two crawlers; samples of them; what is left at the end."""

import csv
import json
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from chaos.crew import Crew
from chaos.faults import AOF, write_launcher
from redis.backoff import NoBackoff
from redis.retry import Retry
from support.ends import UNWRITTEN
from support.polling import until
from support.proxy import Proxy
from support.servers import SERVERS, Server

from scrapy_bloom.crawl.server import LAST_RETRY_SECONDS
from soak import worker
from soak.faults import FaultLoop
from soak.visits import gaps, read_visits
from soak.worker import GENERATIONS, HUB_PERIODS

TICK_SECONDS = 0.05
#: Share of the requests after which caches and allocators have reached their sizes; and different
#: samples after it, for a line through them.
WARM_UP, FEWEST_SAMPLES = 0.25, 4
#: Settings of the crawler that is killed: the one that is measured gets most of the machine.
SECOND = {"CONCURRENT_REQUESTS": 4, "SOAK_IS_BUSY": False}
#: Seconds that the crawlers get to crawl what is in their queues.
DRAIN_SECONDS = 600.0
#: Samples of the crawler's own, for the CSV; the other columns are the server's.
OF_CRAWLER = (
    *("requests", "pages", "rss_mb", "objects", "files", "threads", "tasks", "queue", "entries"),
    *("rotations", "outages", "offline", "unknown", "taken_over", "failed", "not_kept"),
)
OF_SERVER = ("server_mb", "keys", "claims", "lasting_keys")
COLUMNS = ("seconds", "fault", "faults", *OF_CRAWLER, *OF_SERVER)


@dataclass(frozen=True)
class Options:
    """What runs.

    Args:
        directory: for logs and results.
        seconds: how long the crawl goes on.
        requests: that the measured crawler looks up at least, however long that takes.
        pages: of the site.
        period: `BLOOM_ROTATE_EVERY` in seconds; the window is four times as long.
        fault_every: seconds between faults; 0 for none.
        sample_every: seconds between samples.
        patience: seconds that a page may wait in the queue, and longer because of outages.
        seed: of the faults.
    """

    directory: Path
    seconds: float
    requests: int = 0
    pages: int = 1_500
    period: int = 60
    fault_every: float = 20.0
    sample_every: float = 5.0
    patience: float = 240.0
    seed: int = 1

    @property
    def longest_gap(self) -> float:
        """Seconds within which each page has to be crawled again.

        It is forgotten within a window, and a hub that links to it comes within 0.75 periods. If it
        fails then, it is due again after a period, and a hub comes once more.
        """
        return self.period * (GENERATIONS + 2 * HUB_PERIODS + 1) + self.patience


class Worker(Crew):
    """A crawler, in the place of a crew of one.

    Args:
        settings: of it.
        directory: for its log.
        name: of the log.
        probe: file with its samples: empty until the crawl has opened the filter.
    """

    def __init__(
        self, settings: Mapping[str, object], directory: Path, name: str, probe: Path
    ) -> None:
        self.probe = probe
        command = ("runspider", worker.__file__)
        settings = {**settings, "SOAK_PROBE": probe}
        super().__init__(1, settings, directory, name, command=command, directory=directory)

    def _launch(self, log: Path) -> int:
        self.probe.write_text("")
        return super()._launch(log)

    @property
    def is_open(self) -> bool:
        """Whether it has opened the filter: while a fault lasts, a crawl does not start."""
        return self.probe.stat().st_size > 0


@dataclass(frozen=True)
class End:
    """What is there at the end.

    Args:
        exit_codes: of the crawlers; None for one that did not end by itself.
        failed_claims: claims on the server of pages that failed.
        claims: claims on the server of crawlers, none of which says that it could not write all.
        lasting_keys: keys without an expiry.
        gaps: the longest time that each page was not crawled.
        crawled: crawls of pages, by both crawlers.
        kills: crawlers that were killed.
        faults: faults that struck.
    """

    exit_codes: list[int | None]
    failed_claims: int
    claims: int
    lasting_keys: list[str]
    gaps: list[float]
    crawled: int
    kills: int
    faults: int


class Stand:
    """Everything that runs.

    Args:
        options: see there.
        stack: ends it.
    """

    proxy: Proxy | None
    evicted = 0

    def __init__(self, options: Options, stack: ExitStack) -> None:
        self.options = options
        directory = options.directory
        binary = write_launcher(next(iter(SERVERS.values())), directory)
        self.server = stack.enter_context(Server(binary, *AOF))
        self.proxy = stack.enter_context(Proxy(self.server.port))
        #: Requests at each sample.
        self._counts: set[int] = set()
        self._visits, self._stop = directory / "visits", directory / "stop"
        self._stop.unlink(missing_ok=True)
        self._visits.write_text("")
        self._began = time.time()
        settings = {
            "BLOOM_REDIS_URL": self.proxy.url,
            "BLOOM_CAPACITY": max(100, options.pages // 2),
            "BLOOM_RECRAWL_AFTER": f"{options.period * GENERATIONS} seconds",
            "BLOOM_ROTATE_EVERY": f"{options.period} seconds",
            "BLOOM_RETRY_AFTER": f"{options.period} seconds",
            "SOAK_PAGES": options.pages,
            "SOAK_PERIOD": options.period,
            "SOAK_SAMPLE_SECONDS": options.sample_every,
            "SOAK_STOP": str(self._stop),
            "SOAK_VISITS": str(self._visits),
        }
        #: The one that is killed, and the one that is measured.
        self.crew = Worker({**settings, **SECOND}, directory, "killed", directory / "killed.jsonl")
        self.measured = Worker(settings, directory, "measured", directory / "measured.jsonl")
        for one in (self.crew, self.measured):
            stack.callback(one.kill, 0)
        # By TCP: redis-py 5.0 has no time-outs on unix sockets.
        self._client = stack.enter_context(
            redis.Redis.from_url(
                self.server.url,
                socket_timeout=0.5,
                retry=Retry(NoBackoff(), 0),
                decode_responses=True,
            )
        )

    def run(self, samples: Path) -> End:
        """Crawl for as long as the options say, then let the crawlers end; write the samples."""
        options = self.options
        until(lambda: self.is_open, "the crawls begin")
        began = time.monotonic()
        faults = FaultLoop(self, options.fault_every, options.seed)
        next_sample = 0.0
        with samples.open("w", newline="") as file, ExitStack() as stack:
            stack.callback(faults.stop)
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            while not self._is_over(now := time.monotonic() - began):
                faults.step(now)
                if now >= next_sample:
                    next_sample += options.sample_every
                    row = self._sample(now, faults)
                    self._counts.add(row["requests"])
                    writer.writerow(row)
                    file.flush()
                self._check_crawlers(faults.current)
                time.sleep(TICK_SECONDS)
        return self._end(faults)

    def _is_over(self, seconds: float) -> bool:
        last = max(self._counts, default=0)
        after_warm_up = sum(count >= WARM_UP * last for count in self._counts)
        is_enough = last >= self.options.requests and after_warm_up >= FEWEST_SAMPLES
        return is_enough and seconds >= self.options.seconds

    def _check_crawlers(self, fault: str) -> None:
        killed, measured = self._exit_codes()
        if measured is not None or (killed is not None and fault != "crawler_kill"):
            raise RuntimeError(f"a crawler has ended by itself: {killed}, {measured}")

    def _exit_codes(self) -> list[int | None]:
        return self.crew.exit_codes + self.measured.exit_codes

    @property
    def is_open(self) -> bool:
        """Whether both crawls have begun."""
        return self.crew.is_open and self.measured.is_open

    # -- samples --

    def _sample(self, now: float, faults: FaultLoop) -> dict[str, Any]:
        row: dict[str, Any] = dict.fromkeys(COLUMNS, "")
        row |= {"seconds": round(now, 1), "fault": faults.current, "faults": faults.count}
        own = json.loads(_last_lines(self.measured.probe)[-1])
        row |= {name: own[name] for name in OF_CRAWLER}
        with suppress(redis.RedisError):  # a fault: the sample has no such columns
            row |= self._of_server()
        return row

    def _of_server(self) -> dict[str, Any]:
        keys = self._client.keys("*")
        claims = [key for key in keys if key.endswith(":claims")]
        pipeline = self._client.pipeline(transaction=False)
        for key in claims:
            pipeline.hlen(key)
        for key in keys:
            pipeline.ttl(key)
        found = pipeline.execute()
        return {
            "server_mb": self._client.info("memory")["used_memory"] / 1e6,
            "keys": len(keys),
            "claims": sum(found[: len(claims)]),
            "lasting_keys": found[len(claims) :].count(-1),
        }

    # -- the end --

    def _end(self, faults: FaultLoop) -> End:
        # The server may have just come back, and the crawlers look for it every few seconds.
        time.sleep(max(self.options.sample_every / 2, LAST_RETRY_SECONDS + 1))
        self._stop.touch()
        deadline = time.monotonic() + DRAIN_SECONDS
        while None in self._exit_codes():
            if time.monotonic() > deadline:
                break
            time.sleep(TICK_SECONDS)
        keys = self._client.keys("*")
        claims = [self._client.hvals(key) for key in keys if key.endswith(":claims")]
        heads = [claim.split()[:4] for block in claims for claim in block]
        # A page that failed may be due again at the end: who stops then leaves it to the next.
        failed = [owner.startswith("-") or attempt != "0" for owner, _, _, attempt in heads]
        logs = (path.read_text() for path in self.options.directory.glob("*.log"))
        is_late = any(UNWRITTEN in log for log in logs)
        visits = read_visits(self._visits, self.options.pages)
        return End(
            exit_codes=self._exit_codes(),
            failed_claims=sum(failed),
            claims=0 if is_late else len(failed) - sum(failed),
            lasting_keys=[key for key in keys if self._client.ttl(key) == -1],
            gaps=gaps(visits, self._began, self._stop.stat().st_mtime),
            crawled=sum(map(len, visits)),
            kills=len(self.crew.killed),
            faults=faults.count,
        )


def _last_lines(path: Path) -> list[str]:
    """Return whole lines from the end of a file."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 16_384))
        text = file.read().decode()
    return text[: text.rfind("\n") + 1].splitlines()
