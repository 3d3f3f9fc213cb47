"""What slips through when 8 workers meet the same URLs at the same moment.

Eight processes wait for each other before every URL and then all ask ``request_seen`` for it. One
of them should hear "new", the others "seen". More than one is a page fetched twice; none is a page
nobody fetches.
"""

import multiprocessing
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from typing import Any

from benchmarks.contestants import CLASSES, Server, Traffic, build, found_servers, request
from benchmarks.report import Outcome, Table, progress, server_name

WORKERS = 8
#: Seconds a worker waits for the others before it gives up.
PATIENCE = 60.0

COLUMNS = ("", "URLs", "fetched twice", "per URL", "hidden", "round trips", "commands")
NOTES = (
    (
        f"A barrier before every URL, then {WORKERS} processes ask for it. `fetched twice` counts "
        'the answers "new" beyond the first for a URL, `hidden` the URLs without such an answer. '
        "Round trips and commands are per call."
    ),
)


@dataclass(frozen=True)
class Finding:
    """What one worker heard from one dupefilter: new or not, per URL; and what it sent."""

    new: list[bool]
    traffic: Traffic


def work(url: str, urls: int, barrier: Barrier, queue: Any) -> None:
    """Ask each contestant in turn for all URLs, in step with the other workers."""
    findings = []
    for name in CLASSES:
        contestant = build(name, url)
        requests = [request(number) for number in range(urls)]
        with Traffic.counted() as traffic:
            new = []
            for asked in requests:
                barrier.wait(PATIENCE)
                new.append(not contestant.dupefilter.request_seen(asked))
        contestant.client.close()
        findings.append(Finding(new, traffic))
        queue.put(None)  # a sign of life
    queue.put(findings)


def run(*, quick: bool = False, full: bool = False) -> Outcome:
    """Run the workers on the first server there is with many more URLs if ``full``."""
    urls = 300 if quick else 10_000 if full else 2_000
    with Server(next(iter(found_servers().values()))) as server:
        findings = _findings(server.url, urls)
        table = Table(f"{WORKERS} workers, {server_name(server.client())}", COLUMNS, notes=NOTES)
    for name, heard in zip(CLASSES, zip(*findings, strict=True), strict=True):
        table.add(name, *_cells(heard, urls))
    return Outcome([table])


def _findings(url: str, urls: int) -> list[list[Finding]]:
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(WORKERS), context.Queue()
    workers = [
        context.Process(target=work, args=(url, urls, barrier, queue), daemon=True)
        for _ in range(WORKERS)
    ]
    for worker in workers:
        worker.start()
    findings: list[list[Finding]] = []
    with progress() as bar:
        task = bar.add_task(f"{WORKERS} workers in lock step", total=WORKERS * len(CLASSES))
        while len(findings) < WORKERS:
            message = queue.get(timeout=2 * PATIENCE)
            if message is None:
                bar.advance(task)
            else:
                findings.append(message)
    for worker in workers:
        worker.join()
    return findings


def _cells(heard: tuple[Finding, ...], urls: int) -> list[str]:
    takers = [sum(answers) for answers in zip(*(one.new for one in heard), strict=True)]
    twice = sum(max(0, number - 1) for number in takers)
    calls = urls * len(heard)
    return [
        f"{urls:,}",
        f"{twice:,}",
        f"{twice / urls:.2f}",
        f"{takers.count(0):,}",
        f"{sum(one.traffic.round_trips for one in heard) / calls:.2f}",
        f"{sum(one.traffic.commands for one in heard) / calls:.2f}",
    ]
