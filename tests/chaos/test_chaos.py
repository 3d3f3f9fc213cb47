"""The short form: one seeded schedule of each kind. `make chaos` runs as many as there is time."""

from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from chaos.outcome import Outcome
from chaos.run import Task, open_lab, run_task
from chaos.schedule import KINDS

SEED = 1
#: Trials at once: a crawl mostly waits.
JOBS = 2

Running = dict[tuple[str, str], Future[Outcome]]


@pytest.fixture(scope="module")
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """The trials of all tests that are to be run, under way in other processes."""
    wanted = [
        (item.callspec.params["kind"], item.callspec.params["remember"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path
    ]
    failures = tmp_path_factory.mktemp("failures")
    with ProcessPoolExecutor(JOBS, get_context("spawn"), open_lab) as pool:
        yield {
            (kind, remember): pool.submit(run_task, Task(kind, SEED, remember, {}, failures))
            for kind, remember in wanted
        }
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("remember", ["crawled"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_page_is_hidden_whatever_happens(running: Running, kind: str, remember: str) -> None:
    outcome = running[kind, remember].result()
    assert not outcome.broken
    assert outcome.struck
    assert outcome.hidden == []
    assert outcome.quiet, "the crawl does not come to rest"
    assert outcome.twice <= outcome.most, "pages are fetched again without need"
    assert outcome.alone <= outcome.most_alone, "a process fetches again what it fetched itself"


@pytest.mark.parametrize("remember", ["scheduled"])
@pytest.mark.parametrize("kind", ["crawler_kill"])
def test_the_suite_finds_what_marking_at_scheduling_hides(
    running: Running, kind: str, remember: str
) -> None:
    """Otherwise the other test would show nothing."""
    outcome = running[kind, remember].result()
    assert outcome.struck
    assert outcome.hidden
    assert outcome.quiet
