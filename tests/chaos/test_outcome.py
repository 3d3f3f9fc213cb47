"""The bound on what is fetched again: what each fault may cost, and no more."""

from typing import Any

import pytest

from chaos import witness
from chaos.outcome import CRAWLERS, PER_KEY, PER_KILL, Outcome
from chaos.schedule import CLUSTER, SENTINEL
from chaos.site import Tally

LASTING = 100
#: Pages that all crawlers crawl again after a restart of the server.
REPEATED = CRAWLERS * PER_KILL


def outcome(*struck: str, **more: Any) -> Outcome:
    found = Outcome("any", 1, "any", "crawled", list(struck), lasting=LASTING, quiet=True)
    for name, value in more.items():
        setattr(found, name, value)
    return found


@pytest.mark.parametrize(
    ("trial", "most", "alone"),
    [
        (outcome("stall", unasked=7), 7, 0),
        (outcome("stall", unasked=7, undone=3), 10, 7),
        (outcome("flushall", "flushall"), 2 * LASTING, 2 * LASTING),
        (outcome("server_kill_aof", unasked=7), REPEATED + 7, REPEATED),
        (outcome("evict", evicted=3, new=1_000), 3 * PER_KEY, 3 * PER_KEY),
        (outcome("crawler_kill", "crawler_kill", killed=[90, 2]), PER_KILL + 2, 0),
        # It may forget all that was not replicated, and all crawl again what they had under way.
        (outcome("failover", promotions=1), LASTING + REPEATED, LASTING + REPEATED),
        (outcome("failover", taken_over=5), 5, 5),
    ],
)
def test_what_faults_may_cost(trial: Outcome, most: int, alone: int) -> None:
    assert (trial.most, trial.most_alone) == (most, alone)


@pytest.mark.parametrize(
    ("changes", "failed"),
    [({}, False), ({"again": {"/": 8}}, True), ({"alone": 1}, True), ({"endless": ["key"]}, True)],
)
def test_a_trial_that_fetches_too_much_has_failed(changes: dict[str, Any], failed: bool) -> None:
    assert outcome("stall", unasked=7, **{"again": {"/": 7}, **changes}).failed is failed


@pytest.mark.parametrize(
    ("stand", "promotions", "killed", "failed"),
    [
        (CLUSTER, 1, [1, 2], False),
        (CLUSTER, 1, [1], True),  # the other one lives, and has the page in its queue
        (CLUSTER, 0, [1, 2], True),  # no claim was lost
        (SENTINEL, 1, [1, 2], True),  # a replica has all that came before what it has
    ],
)
def test_pages_may_be_hidden_only_on_a_cluster_with_the_processes_that_had_them(
    stand: str, promotions: int, killed: list[int], failed: bool
) -> None:
    tally = Tally(testimony=witness.Testimony(held={"/": {1, 2}}))
    trial = outcome("failover", promotions=promotions, stand=stand)
    trial.judge_hidden(tally, ["/"], killed)
    assert trial.failed is failed
    assert trial.hidden == ["/"]
